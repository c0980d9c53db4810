"""Profile files: what a simulation needs is in them, old ones still load."""

import json

import pytest

from dualpath.costmodel.fit import DecodeSample, fit_decode
from dualpath.costmodel.hardware import EngineProfile, EngineTimes
from dualpath.errors import SettingsError

OLD = {
    "attention": {"fixed_s": 1e-3, "token_s": 2e-5, "pair_s": 3e-8, "floor_s": 0.0},
    "prefill_tokens_per_s": 1000.0,
    "storage_tokens_per_s": 2000.0,
}


def test_a_profile_of_before_has_default_times() -> None:
    profile = EngineProfile.from_json(json.dumps(OLD))
    assert profile.times == EngineTimes()
    assert profile.prefill_tokens_per_s == 1000.0


def test_times_survive_the_file() -> None:
    profile = EngineProfile(times=EngineTimes(*(float(number) for number in range(1, 12))))
    assert EngineProfile.from_json(profile.to_json()) == profile


def test_missing_times_have_defaults_and_unknown_ones_are_ignored() -> None:
    profile = EngineProfile.from_dict({**OLD, "times": {"turn_s": 1, "of_another_version": 2}})
    assert profile.times == EngineTimes(turn_s=1.0)


@pytest.mark.parametrize(
    ("times", "complaint"),
    [
        ([], "times must be an object"),
        ({"turn_s": "fast"}, r"times\.turn_s must be a number"),
        ({"turn_s": -1.0}, r"times\.turn_s must be a number, 0 or more"),
        ({"finish_s": float("inf")}, r"times\.finish_s must be a number"),
        ({"copy_bytes_per_s": 0.0}, "copy_bytes_per_s must be positive"),
    ],
)
def test_broken_times_are_refused(times: object, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        EngineProfile.from_dict({**OLD, "times": times})


def test_decode_steps_are_fitted() -> None:
    grid = [(requests, requests * context) for requests in (1, 2, 4, 8) for context in (64, 512)]
    samples = [DecodeSample(n, tokens, 1e-3 + 2e-4 * n + 3e-7 * tokens) for n, tokens in grid]
    step, request, context = fit_decode(samples)
    assert (step, request, context) == pytest.approx((1e-3, 2e-4, 3e-7))
    assert EngineTimes(0.0, step, request, context).step_s(16, 1000) == pytest.approx(4.5e-3)


@pytest.mark.parametrize("bad", [[], [DecodeSample(1, 64, 0.0)]])
def test_decode_samples_without_times_are_refused(bad: list[DecodeSample]) -> None:
    with pytest.raises(ValueError, match="positive times"):
        fit_decode(bad)
