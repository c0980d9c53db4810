"""``dualpath model init``."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from dualpath.cli.model import model
from dualpath.models.create import create_model
from dualpath.models.registry import describe_model


def test_the_defaults_are_those_of_create_model(tmp_path: Path) -> None:
    done = CliRunner().invoke(model, ["init", str(tmp_path / "cli")])
    assert done.exit_code == 0, done.output
    created = create_model(tmp_path / "call")
    assert describe_model(tmp_path / "cli") == describe_model(tmp_path / "call")
    assert f"{created.parameters:,} parameters" in done.output
    assert "4,096 bytes a token over 4 layers" in done.output
    assert f"dualpath serve {tmp_path / 'cli'}" in done.output


def test_flags_reach_the_model(tmp_path: Path) -> None:
    flags = "--layers 2 --hidden 24 --heads 6 --kv-heads 3 --head-dim 10 --intermediate 31 --vocab 300 --max-positions 99"
    more = "--architecture Qwen3ForCausalLM --dtype bfloat16 --untied --seed 4"
    done = CliRunner().invoke(model, ["init", str(tmp_path / "model"), *flags.split(), *more.split()])
    assert done.exit_code == 0, done.output
    shape = describe_model(tmp_path / "model")
    assert (shape.architecture, shape.layers, shape.hidden_size, shape.vocab_size) == ("Qwen3ForCausalLM", 2, 24, 300)
    assert (shape.token_layer_bytes, shape.max_positions) == (2 * 3 * 10 * 2, 99)


def test_an_occupied_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    done = CliRunner().invoke(model, ["init", str(tmp_path)])
    assert done.exit_code == 1
    assert "not an empty directory" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_impossible_sizes_end_in_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(model, ["init", str(tmp_path / "model"), "--heads", "6", "--kv-heads", "4"])
    assert done.exit_code == 1
    assert done.output.startswith("Error: ")
    assert "is no multiple of" in done.output
    assert len(done.output.splitlines()) == 1
