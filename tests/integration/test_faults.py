"""Clusters of real processes, of which some are killed or stopped while agents talk to them (rules 1, 2, 6 and 10)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.support.fault_agents import (
    Agents,
    alive,
    check_ended,
    check_right,
    fault_knobs,
    leaves_nothing,
    names,
    own_temporaries,
    pid_of,
    stopped,
    stored_files,
    wait_gone,
    wait_serving,
    wait_status,
)
from tests.support.turn_reference import TinyModel

from dualpath.cluster.local import LocalCluster
from dualpath.control.turns import ClusterStatus
from dualpath.errors import Cancelled, DeadlineExceeded, RequestFailed
from dualpath.scheduling.central import RAMP_REQUESTS
from dualpath.scheduling.decisions import Lost, Placed
from dualpath.scheduling.log import decode
from dualpath.settings import Dtype

pytestmark = pytest.mark.slow

HEARTBEAT_S = 1.5
FENCED_S = 4 * HEARTBEAT_S
WORK_PILES_UP_S = 0.3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return TinyModel.create(tmp_path_factory.mktemp("models") / "tiny", Dtype.FLOAT64)


@pytest.fixture(scope="module")
def temporary() -> Iterator[Path]:
    with own_temporaries() as directory:
        yield directory


@pytest.fixture(scope="module")
def decision_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("decisions") / "log"


@pytest.fixture(scope="module")
def pair(model: TinyModel, temporary: Path, decision_log: Path) -> Iterator[LocalCluster]:
    """One prefill and one decode engine."""
    knobs = fault_knobs(model, heartbeat_timeout_s=HEARTBEAT_S, decision_log=str(decision_log))
    with leaves_nothing(temporary), LocalCluster(model.directory, **knobs) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def two_pairs(model: TinyModel, temporary: Path) -> Iterator[LocalCluster]:
    """Two prefill and two decode engines; hits are read by both sides."""
    knobs = fault_knobs(model, heartbeat_timeout_s=HEARTBEAT_S, prefill=2, decode=2)
    with leaves_nothing(temporary), LocalCluster(model.directory, system="dualpath-split", **knobs) as cluster:
        yield cluster


def kill(cluster: LocalCluster, prefix: str) -> str:
    """Kill a member in the middle of its work, of which it gets some more first; its name."""
    name, pid = pid_of(cluster, prefix)
    with stopped(pid):
        time.sleep(WORK_PILES_UP_S)
        os.kill(pid, signal.SIGKILL)
    return name


def stop_until_fenced(cluster: LocalCluster, prefix: str) -> str:
    """Stop a member until it is past its deadline, and let it go on; its name."""
    name, pid = pid_of(cluster, prefix)
    with stopped(pid):
        wait_gone([pid], FENCED_S)  # it cannot end by itself
    return name


Fault = Callable[[LocalCluster, str], str]


def check_whole(cluster: LocalCluster, gone: list[str]) -> ClusterStatus:
    """Everything serves again under new names, nothing is held, and the index knows every file of the store."""
    status = wait_serving(cluster, gone)
    assert status.stored_blocks == len(stored_files(cluster))
    return status


# --- one of each role -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [kill, stop_until_fenced])
@pytest.mark.parametrize(("victim", "seed"), [("prefill", 1), ("decode", 2)])
def test_the_only_engine_of_a_role_dies(
    model: TinyModel, pair: LocalCluster, decision_log: Path, fault: Fault, victim: str, seed: int
) -> None:
    before = wait_serving(pair)
    agents = Agents(pair, seed=seed).begin()
    agents.wait_tokens(60)
    gone = fault(pair, victim)
    check_right(model, agents)
    status = check_whole(pair, [gone])
    assert status.restarts == before.restarts + 1
    (newcomer,) = names(status) - names(before)
    assert newcomer.startswith(victim)
    check_not_flooded(decision_log, newcomer)


def check_not_flooded(log: Path, engine: str) -> None:
    """An engine that joined a running cluster held few requests at first, and one more for each that it did well."""
    held: set[str] = set()
    done = most = 0
    for call in map(decode, log.read_text().splitlines()):
        for decision in call.decisions:
            if isinstance(decision, Placed) and engine in (decision.prefill, decision.decode):
                held.add(decision.request_id)
            elif isinstance(decision, Lost):
                held.discard(decision.request_id)
        if call.method in ("finished", "prefilled") and call.arguments[0] in held:
            left = call.method == "finished" or engine.startswith("prefill")
            held -= {call.arguments[0]} if left else set()
            done += left
        most = max(most, len(held))
        assert len(held) <= RAMP_REQUESTS + done, f"{engine} holds {len(held)} after doing {done}"
    assert most > 1, f"{engine} was not put to the test"


@pytest.mark.parametrize(("victim", "seed"), [("prefill", 9), ("decode", 10)])
def test_an_engine_that_comes_back_before_it_is_fenced_does_no_harm(
    model: TinyModel, pair: LocalCluster, monkeypatch: pytest.MonkeyPatch, victim: str, seed: int
) -> None:
    wait_serving(pair)
    agents = Agents(pair, seed=seed).begin()
    agents.wait_tokens(60)
    name, pid = pid_of(pair, victim)
    worker = pair.launcher._workers[name]
    monkeypatch.setattr(worker, "kill", partial(kill_late, worker.kill))
    with stopped(pid):
        wait_status(pair, lambda status: name not in names(status), FENCED_S, f"status without {name}")
    assert alive(pid)  # and at work again: on turns that have been given to others, in memory that was granted to it
    check_right(model, agents)
    check_whole(pair, [name])
    wait_gone([pid])


def kill_late(kill_now: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(2.0, kill_now)


def test_the_scheduler_dies(model: TinyModel, pair: LocalCluster) -> None:
    before = wait_serving(pair)
    agents = Agents(pair, seed=3).begin()
    agents.wait_tokens(60)
    kill(pair, "scheduler")
    check_right(model, agents)
    status = check_whole(pair, [])
    assert names(status) == names(before)
    assert status.restarts == before.restarts + 1


def test_a_scheduler_that_stood_still_fences_nobody(model: TinyModel, pair: LocalCluster) -> None:
    before = wait_serving(pair)
    agents = Agents(pair, seed=4).begin()
    agents.wait_tokens(60)
    with stopped(pid_of(pair, "scheduler")[1]):
        time.sleep(HEARTBEAT_S + 0.5)
    check_right(model, agents)
    status = check_whole(pair, [])
    assert names(status) == names(before)
    assert max(outcome.turn.finished.attempts for outcome in agents.outcomes if outcome.turn) == 1


def test_a_stop_shorter_than_the_heartbeat_timeout_loses_nothing(model: TinyModel, pair: LocalCluster) -> None:
    before = wait_serving(pair)
    agents = Agents(pair, seed=5, turns=4).begin()
    for count, victim in enumerate(("prefill", "decode", "scheduler"), 1):
        agents.wait_tokens(60 * count)
        with stopped(pid_of(pair, victim)[1]):
            time.sleep(HEARTBEAT_S / 3)
    check_right(model, agents)
    assert max(outcome.turn.finished.attempts for outcome in agents.outcomes if outcome.turn) == 1
    assert names(check_whole(pair, [])) == names(before)


@pytest.mark.parametrize(("victim", "seed"), [("prefill", 6), ("decode", 7)])
def test_the_scheduler_dies_and_takes_the_news_of_an_engines_end_with_it(
    model: TinyModel, pair: LocalCluster, victim: str, seed: int
) -> None:
    wait_serving(pair)
    agents = Agents(pair, seed=seed).begin()
    agents.wait_tokens(60)
    name, pid = pid_of(pair, victim)
    scheduler = pid_of(pair, "scheduler")[1]
    with stopped(pid):
        time.sleep(WORK_PILES_UP_S)
        with stopped(scheduler):
            os.kill(pid, signal.SIGKILL)
            wait_gone([pid])
            time.sleep(WORK_PILES_UP_S)  # the news is under way
            os.kill(scheduler, signal.SIGKILL)
    check_right(model, agents)
    check_whole(pair, [name])


def test_turns_end_at_their_deadline_if_nobody_serves_them(model: TinyModel, pair: LocalCluster) -> None:
    wait_serving(pair)
    agents = Agents(pair, seed=8, turns=1, output_tokens=300, timeout_s=1.0).begin()
    agents.wait_tokens(20)
    gone = kill(pair, "decode")
    right, failed = check_ended(model, agents)
    assert (right, failed) == (0, agents.count)
    assert all(isinstance(outcome.error, DeadlineExceeded) for outcome in agents.outcomes)
    check_whole(pair, [gone])


# --- two of each role -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [kill, stop_until_fenced])
@pytest.mark.parametrize(("victim", "seed"), [("prefill-1", 11), ("decode-0", 12)])
def test_one_of_two_engines_dies(model: TinyModel, two_pairs: LocalCluster, fault: Fault, victim: str, seed: int) -> None:
    wait_serving(two_pairs)
    agents = Agents(two_pairs, count=10, seed=seed).begin()
    agents.wait_tokens(80)
    gone = fault(two_pairs, victim)
    check_right(model, agents)
    check_whole(two_pairs, [gone])


def test_both_sides_lose_an_engine_at_once(model: TinyModel, two_pairs: LocalCluster) -> None:
    wait_serving(two_pairs)
    agents = Agents(two_pairs, count=10, seed=13).begin()
    agents.wait_tokens(80)
    gone = [kill(two_pairs, "prefill-0"), kill(two_pairs, "decode-1")]
    check_right(model, agents)
    check_whole(two_pairs, gone)


def test_every_third_turn_is_given_up(model: TinyModel, two_pairs: LocalCluster) -> None:
    before = wait_serving(two_pairs)
    choice = random.Random(14)
    agents = Agents(
        two_pairs, count=10, turns=6, seed=14, cut_short=lambda: choice.randrange(1, 24) if choice.random() < 0.34 else None
    ).begin()
    right, given_up = check_ended(model, agents)
    assert right > 20
    assert given_up > 10
    assert all(outcome.error is None or isinstance(outcome.error, Cancelled) for outcome in agents.outcomes)
    assert names(check_whole(two_pairs, [])) == names(before)


def test_closing_ends_turns_that_run(two_pairs: LocalCluster) -> None:
    wait_serving(two_pairs)
    agents = Agents(two_pairs, count=10, turns=1, seed=15, output_tokens=400).begin()
    agents.wait_tokens(40)
    started = time.monotonic()
    two_pairs.close()
    assert time.monotonic() - started < 5.0
    outcomes = agents.end()
    assert len(outcomes) == agents.count
    assert all(isinstance(outcome.error, RequestFailed) for outcome in outcomes)
    with pytest.raises(RequestFailed):
        two_pairs.generate([1, 2, 3])


# --- the owner --------------------------------------------------------------------------------------------------------

OWNER = """
import sys
from dualpath.cluster.local import LocalCluster
LocalCluster(sys.argv[1], prefill_buffer="4MiB", decode_buffer="4MiB", decode_kv_memory="4MiB").open()
"""


def test_members_end_with_whoever_started_them_even_while_they_start(model: TinyModel, tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", OWNER, str(model.directory)], env=environment) as owner:
        try:
            members = wait_members(str(tmp_path), 3)  # they have begun to import, and not been told to die with their parent
        finally:
            owner.kill()
    try:
        wait_gone(members)
    finally:
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def wait_members(marker: str, count: int) -> list[int]:
    """The processes that were started with ``marker`` in an argument, once there are so many."""
    deadline = time.monotonic() + 30.0
    while True:
        found = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if marker in command_line(path)]
        if len(found) >= count:
            return found
        assert time.monotonic() < deadline, f"only {len(found)} processes for {marker}"
        time.sleep(0.02)


def command_line(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
