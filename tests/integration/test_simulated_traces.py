"""Real traces, whole, through the simulated cluster of the paper."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.test_real_traces import TRACES

from dualpath.evaluation.lab import Case, run_case
from dualpath.evaluation.trace_files import FILE, trace

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"no traces in {TRACES}; set DUALPATH_TRACES")


@pytest.mark.parametrize("name", ["coding_sessions.jsonl", "swebench_runs.jsonl"])
def test_every_turn_within_the_window_is_served_with_the_hits_that_there_are(name: str) -> None:
    path: Path = TRACES / name
    if not path.exists():
        pytest.skip(f"{path} is absent")
    dataset = f"{FILE}{path}"
    trajectories = trace(dataset).trajectories
    outcome = run_case(Case(dataset=dataset, agents=len(trajectories)))
    assert outcome.turns == sum(len(one.turns) for one in trajectories)
    assert outcome.failed == 0
    assert outcome.hit_rate is not None
    assert outcome.theoretical_hit_rate is not None
    # Whole blocks of 64 tokens, and at least a token of every prompt is computed.
    assert outcome.theoretical_hit_rate - 0.01 < outcome.hit_rate <= outcome.theoretical_hit_rate
