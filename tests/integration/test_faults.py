"""Clusters of real processes, of which one is killed or stopped while agents talk to them (rules 1, 2 and 10)."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dualpath.cluster.local import LocalCluster
from dualpath.settings import Dtype
from tests.support.fault_agents import (
    Agents,
    check_right,
    fault_knobs,
    leaves_nothing,
    pid_of,
    stopped,
    stored_files,
    wait_gone,
    wait_serving,
)
from tests.support.turn_reference import TinyModel

pytestmark = pytest.mark.slow

HEARTBEAT_S = 1.5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return TinyModel.create(tmp_path_factory.mktemp("models") / "tiny", Dtype.FLOAT64)


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty directory for temporary files, on a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="faults-") as directory:
        before, tempfile.tempdir = tempfile.tempdir, directory
        yield Path(directory)
        tempfile.tempdir = before


@pytest.fixture(scope="module")
def pair(model: TinyModel, temporary: Path) -> Iterator[LocalCluster]:
    """One prefill and one decode engine."""
    with leaves_nothing(temporary), LocalCluster(model.directory, **fault_knobs(model)) as cluster:
        yield cluster


def kill(cluster: LocalCluster, prefix: str) -> str:
    """Kill a member in the middle of its work; its name."""
    name, pid = pid_of(cluster, prefix)
    os.kill(pid, signal.SIGKILL)
    return name


def stop_until_fenced(cluster: LocalCluster, prefix: str) -> str:
    """Stop a member until it is past its deadline, and let it go on; its name."""
    name, pid = pid_of(cluster, prefix)
    with stopped(pid):
        wait_gone([pid], 4 * HEARTBEAT_S)  # nobody but the launcher ends it
    return name


@pytest.mark.parametrize("fault", [kill, stop_until_fenced])
@pytest.mark.parametrize("victim", ["prefill", "decode"])
def test_the_only_engine_of_a_role_dies(
    model: TinyModel, pair: LocalCluster, fault: Callable[[LocalCluster, str], str], victim: str
) -> None:
    wait_serving(pair)
    agents = Agents(pair, seed=hash((fault.__name__, victim)) % 1000).begin()
    agents.wait_tokens(40)
    gone = fault(pair, victim)
    check_right(model, agents)
    status = wait_serving(pair, gone=[gone])
    assert status.stored_blocks == len(stored_files(pair))
