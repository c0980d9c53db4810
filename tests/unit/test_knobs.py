"""Every knob is checked by its own rules, wherever its value comes from."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.errors import SettingsError
from dualpath.knobs import checked_knobs, knob_type, with_knobs
from dualpath.settings import Dtype, ReadSidePolicy, Settings, parse_bytes, section_fields


def test_values_get_their_types_and_sections() -> None:
    changed = with_knobs(
        Settings(),
        {
            "block_tokens": 16,
            "snic_bandwidth": "64MB/s",
            "read_side": "split",
            "dtype": Dtype.FLOAT64,
            "alpha_s": 2,
            "store": Path("x") / "y",
            "layerwise": False,
        },
    )
    assert changed.cache.block_tokens == 16
    assert changed.storage.snic_bandwidth == 64_000_000
    assert changed.storage.store == "x/y"
    assert changed.scheduling.read_side is ReadSidePolicy.SPLIT
    assert changed.scheduling.alpha_s == 2.0
    assert isinstance(changed.scheduling.alpha_s, float)
    assert changed.model.dtype is Dtype.FLOAT64
    assert changed.prefill.layerwise is False
    assert changed.decode == Settings().decode


@pytest.mark.parametrize(
    ("says", "name", "value"),
    [
        ("no such setting; did you mean 'block_tokens'", "blok_tokens", 16),
        ("0 is below the least that makes sense, 1", "block_tokens", 0),
        ("'16' is not a whole number", "block_tokens", "16"),
        ("True is not a whole number", "prefill", True),
        ("None is not a whole number", "prefill", None),
        ("is above the most", "max_decode_batch", 10**30),
        ("65536 is above the most that makes sense, 65535", "port", 65536),
        ("1 is above the most that makes sense, 0.9", "decode_free_watermark", 1),
        ("1 is not true or false", "layerwise", 1),
        ("nan is not a finite number", "beta_s", float("nan")),
        ("is not a finite number", "beta_s", 10**400),
        ("0 is below", "prefill_tokens_per_s", 0),
        ("'' is not a text", "store", ""),
        ("3 is not a text", "store", 3),
        ("'nope' is none of prefill, round-robin, shorter-queue, split", "read_side", "nope"),
        ("'16 apples' is no size", "decode_buffer", "16 apples"),
        ("None is no size", "store_capacity", None),
        ("True is no size", "store_capacity", True),
        ("'0.4' is below", "store_capacity", "0.4"),
        ("is above the most", "store_capacity", "99999999999TB"),
    ],
)
def test_wrong_values_are_named(says: str, name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"^{name}: .*{says}"):
        checked_knobs({name: value})


def test_optional_knobs_may_be_none() -> None:
    optional = {name for name in section_fields() if knob_type(name)[1]}
    assert {"store", "snic_bandwidth", "max_len", "api_key", "storage_tokens_per_s"} <= optional
    assert "block_tokens" not in optional
    assert checked_knobs(dict.fromkeys(optional)) == dict.fromkeys(optional)


def test_defaults_obey_their_own_rules_and_numbers_have_minimums() -> None:
    for name, (_, knob) in section_fields().items():
        assert checked_knobs({name: knob.default}) == {name: knob.default}
        if knob_type(name)[0] in (int, float):
            assert knob.metadata["minimum"] is not None, name


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        (4096, 4096),
        ("64MB/s", 64_000_000),
        ("1.5GiB", 3 * 2**29),
        (" 2 kib ", 2048),
        ("0.1MB", 100_000),
        ("3t", 3 * 10**12),
    ],
)
def test_sizes(text: object, size: int) -> None:
    assert parse_bytes(text) == size


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.lists(st.integers())
    | st.sampled_from(["1MB", "split"])
)


@given(name=st.sampled_from(sorted(section_fields())), value=VALUES)
@settings(deadline=None, max_examples=300)
def test_any_value_is_taken_with_the_right_type_or_refused_by_name(name: str, value: Any) -> None:
    kind, optional = knob_type(name)
    message, typed = "", None
    try:
        typed = checked_knobs({name: value})[name]
    except SettingsError as error:
        message = str(error)
    assert message.startswith(f"{name}: ") or (not message and (type(typed) is kind or (optional and typed is None)))
