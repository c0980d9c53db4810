"""``dualpath plan``: the paper's cluster, other input, and input that makes no sense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.model_configs import QWEN_32B

from dualpath.cli.plan import plan
from dualpath.errors import DualPathError


def report(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(plan, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.output, parse_constant=pytest.fail)
    return found


def test_the_papers_cluster() -> None:
    found = report("--model", "ds-660b", "--cluster", "2P4D", "--trace", "table2:64K")
    ratios = found["ratio_range"]
    assert isinstance(ratios, dict)
    assert ratios["lowest"] == pytest.approx(1 / 7)
    assert ratios["highest"] == pytest.approx(7 / 2)
    assert found["limit"] == {"basic": "storage NICs", "dualpath": "prefill compute"}
    assert 1.5 < float(str(found["speedup_at_most"])) < 3


def test_a_configuration_file_and_a_mean_turn(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_32B))
    turn = ("--prompt-tokens", "32768", "--new-tokens", "429")
    found = report("--model", str(tmp_path), *turn)
    assert found["token_bytes"] == 262_144
    named = report("--model", "qwen2.5-32b", *turn)
    assert found["gb_per_pflop"] == pytest.approx(named["gb_per_pflop"], rel=0.05)


def test_the_table_says_what_to_do() -> None:
    result = CliRunner().invoke(plan, ["--model", "ds-27b", "--cluster", "8P1D", "--gpus", "4"], catch_exceptions=False)
    assert "P/D may be" in result.output
    assert "outside the range" in result.output


def test_a_node_whose_storage_nic_no_ratio_can_keep_busy() -> None:
    arguments = ("--model", "ds-27b", "--cluster", "1P1D", "--gpus", "1")
    assert report(*arguments)["ratio_range"] is None
    shown = " ".join(CliRunner().invoke(plan, arguments, catch_exceptions=False).output.split())
    assert "No P/D keeps every storage NIC of this node busy" in shown
    assert "inf" not in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "ds-66b"), "did you mean 'ds-660b'"),
        (("--model", "ds-27b", "--hardware", "h80"), "hardware: 'h80' is not known; did you mean 'h800'"),
        (("--model", "ds-27b", "--cluster", "0P1D"), "--cluster: '0P1D'"),
        (("--model", "ds-27b", "--cluster", "two"), "--cluster: 'two'"),
        (("--model", "ds-27b", "--trace", "table2:63K"), "table2:63K: no such set"),
        (("--model", "ds-27b", "--trace", "nowhere.jsonl"), "nowhere.jsonl: No such file"),
        (("--model", "ds-27b", "--prompt-tokens", "100"), "go together"),
        (("--model", "ds-27b", "--prompt-tokens", "100", "--new-tokens", "200"), "cannot have 200 new ones"),
        (("--model", "ds-27b", "--snic-bandwidth", "fast"), "--snic-bandwidth: 'fast' is no size"),
        (("--model", "ds-27b", "--dram-bandwidth", "0"), "--dram-bandwidth must be positive"),
        (("--model", "."), "config.json: no readable model configuration"),
    ],
)
def test_input_that_makes_no_sense_is_named(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(DualPathError) as raised:
        CliRunner().invoke(plan, arguments, catch_exceptions=False)
    assert message in str(raised.value)
