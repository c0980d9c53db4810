"""Flags and keys follow from the settings; a file is overridden by flags, a preset by both."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from dualpath.cli.options import FiniteRange, Given, read_config, settings_options
from dualpath.errors import SettingsError
from dualpath.settings import Placement, ReadSidePolicy, Settings, section_fields


def given(*arguments: str, without: tuple[str, ...] = ()) -> Given:
    """What a command with these flags is given."""
    found: list[Given] = []

    @click.command()
    @settings_options(*without)
    def command(given: Given) -> None:
        found.append(given)

    done = CliRunner().invoke(command, arguments)
    if done.exception is not None and not found:
        raise done.exception if isinstance(done.exception, Exception) else AssertionError(done.output)
    return found[0]


def config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    return path


def test_without_flags_the_settings_are_the_preset_s() -> None:
    settings = given().settings()
    assert settings == Settings()
    basic = given().settings("basic")
    assert (basic.cluster.system, basic.scheduling.read_side, basic.prefill.layerwise) == (
        "basic",
        ReadSidePolicy.PREFILL,
        False,
    )


def test_every_knob_has_a_flag() -> None:
    @click.command()
    @settings_options()
    def command(given: Given) -> None:
        raise AssertionError("not called")

    names = {parameter.name for parameter in command.params}
    assert names == {*section_fields(), "config"}
    shown = CliRunner().invoke(command, ["--help"], terminal_width=200).output
    for name in section_fields():
        assert f"--{name.replace('_', '-')}" in shown


def test_flags_override_the_file_and_both_override_the_preset(tmp_path: Path) -> None:
    path = config(
        tmp_path,
        '[cluster]\nsystem = "basic"\nprefill = 2\ndecode = 3\n[prefill]\nlayerwise = true\nprefill-buffer = "2MB"\n'
        "[storage]\nsnic_bandwidth = 5000\n[scheduling]\nalpha_s = 1\n",
    )
    settings = given("--config", str(path), "--decode", "4", "--no-verify-checksums", "--snic-bandwidth", "1.5GiB/s").settings()
    assert (settings.cluster.system, settings.cluster.prefill, settings.cluster.decode) == ("basic", 2, 4)
    assert settings.scheduling.placement is Placement.ROUND_ROBIN
    assert settings.scheduling.alpha_s == 1.0
    assert settings.prefill.layerwise
    assert settings.prefill.prefill_buffer == 2_000_000
    assert settings.storage.snic_bandwidth == 3 * 2**29
    assert not settings.storage.verify_checksums


def test_one_given_makes_the_settings_of_several_systems(tmp_path: Path) -> None:
    flags = given("--block-tokens", "16", "--placement", "round-robin")
    basic, dualpath = flags.settings("basic"), flags.settings("dualpath")
    assert (basic.cluster.system, dualpath.cluster.system) == ("basic", "dualpath")
    assert (basic.cache.block_tokens, dualpath.cache.block_tokens) == (16, 16)
    assert dualpath.scheduling.placement is Placement.ROUND_ROBIN
    assert dualpath.scheduling.read_side is ReadSidePolicy.SHORTER_QUEUE


def test_flags_that_a_command_does_not_want_are_not_there() -> None:
    with pytest.raises(AssertionError, match="No such option '--port'"):
        given("--port", "80", without=("port",))
    assert given("--host", "h", without=("port",)).settings().server.host == "h"


@pytest.mark.parametrize(
    ("says", "text"),
    [
        (r"no table \[cachee\]; .*storage; did you mean 'cache'", "[cachee]\nblock_tokens = 16"),
        (r"'block_tokens' belongs into the table \[cache\]", "block_tokens = 16"),
        (r"no table \[cache\]", "cache = 16"),
        (r"\[cache\] has no key 'blok_tokens'; did you mean 'block_tokens'", "[cache]\nblok_tokens = 16"),
        (r"\[cache\] has no key 'port'; it belongs to \[server\]", "[cache]\nport = 80"),
        (r"'prefill' belongs into the table \[cluster\]", "prefill = 2"),
        ("block_tokens: '16' is not a whole number", '[cache]\nblock_tokens = "16"'),
        ("block_tokens: 1.5 is not a whole number", "[cache]\nblock_tokens = 1.5"),
        ("alpha_s: inf is not a finite number", "[scheduling]\nalpha_s = inf"),
        (r"system: \[3\] is not a text", "[cluster]\nsystem = [3]"),
        (r"at line 1", "[cache"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(tmp_path: Path, says: str, text: str) -> None:
    path = config(tmp_path, text + "\n")
    with pytest.raises(SettingsError, match=f"^{path}: .*{says}"):
        read_config(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="nope: No such file"):
        read_config(tmp_path / "nope")
    path = tmp_path / "latin"
    path.write_bytes(b"# \xff\xfe")
    with pytest.raises(SettingsError, match=r"latin: .*utf-8"):
        read_config(path)


def test_finite_ranges() -> None:
    rate = FiniteRange(0, min_open=True)
    assert rate.convert("1.5", None, None) == 1.5
    for wrong in ("nan", "inf", "0", "-1", "x"):
        with pytest.raises(click.BadParameter, match=wrong):
            rate.convert(wrong, None, None)
