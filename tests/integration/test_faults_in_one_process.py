"""Callers and clients that go away, closes with turns running, and starts that fail (rules 2, 6 and 10)."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.fault_agents import (
    Agents,
    check_right,
    fault_knobs,
    leaves_nothing,
    own_temporaries,
    stored_files,
    thread_cluster,
    wait_serving,
)
from tests.support.turn_reference import TinyModel, random_tokens

from dualpath.cluster import launcher
from dualpath.cluster.local import LocalCluster
from dualpath.control import scheduler_service
from dualpath.engine.prefill import PrefillEngine
from dualpath.engine.prefill_turn import PrefillTurn
from dualpath.errors import ClusterError, DeadlineExceeded, RequestFailed, TransportError
from dualpath.settings import Dtype


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return TinyModel.create(tmp_path_factory.mktemp("models") / "tiny", Dtype.FLOAT64)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Each test leaves no thread, process or file behind."""
    with own_temporaries() as directory, leaves_nothing(directory):
        yield


# --- callers and clients that go away ---------------------------------------------------------------------------------


@pytest.mark.parametrize("system", ["basic", "dualpath-split"])
def test_a_third_of_the_turns_is_given_up(model: TinyModel, system: str) -> None:
    choice = random.Random(9)
    with thread_cluster(model, system, prefill=2, decode=2) as cluster:
        steady = Agents(cluster, count=6, turns=5, seed=9).begin()
        with ThreadPoolExecutor(2) as callers:
            hasty = callers.submit(hasty_turns, cluster, choice)
            fickle = callers.submit(asyncio.run, cancelled_turns(cluster, random.Random(10)))
            check_right(model, steady)
            assert hasty.result() > 5
            assert fickle.result() > 5
        status = wait_serving(cluster)
        assert status.stored_blocks == len(stored_files(cluster))


def hasty_turns(cluster: LocalCluster, choice: random.Random) -> int:
    """Turns whose time is up after some milliseconds; how many were."""
    late = 0
    for seed in range(20):
        prompt = [*random_tokens(choice.choice([9000, 9001, 9002]), choice.randrange(100, 400)), seed]
        started = time.monotonic()
        timeout_s = choice.uniform(0.001, 0.2)
        try:
            cluster.generate(prompt, max_tokens=40, ignore_eos=True, timeout_s=timeout_s)
        except DeadlineExceeded:
            late += 1
        assert time.monotonic() - started < timeout_s + 2.0
    return late


async def cancelled_turns(cluster: LocalCluster, choice: random.Random) -> int:
    """Turns that are cancelled while they run, from another loop; how many were."""
    cancelled = 0
    for seed in range(20):
        prompt = [*random_tokens(choice.choice([9000, 9001, 9003]), choice.randrange(100, 400)), seed]
        turn = asyncio.create_task(cluster.generate_async(prompt, max_tokens=40, ignore_eos=True))
        _, running = await asyncio.wait({turn}, timeout=choice.uniform(0.001, 0.3))
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)
        cancelled += len(running)
    return cancelled


CLIENT = """
import asyncio, sys
from pathlib import Path
from dualpath.clock import MonotonicClock
from dualpath.control.client import ClientProfile, ClusterClient
from dualpath.control.turns import SamplingParams
from dualpath.settings import DeadlineSettings

async def turn(client, number):
    async for event in client.generate([number] * 100, SamplingParams(max_tokens=800, ignore_eos=True)):
        print("token", flush=True)

async def main():
    directory, namespace = Path(sys.argv[1]), bytes.fromhex(sys.argv[2])
    client = ClusterClient(ClientProfile(directory, namespace, 16, 320, 1000, (), 100, DeadlineSettings()), MonotonicClock())
    await client.start()
    await asyncio.gather(*(turn(client, number) for number in range(4)))

asyncio.run(main())
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGSTOP])
def test_the_turns_of_a_client_that_falls_silent_are_given_up(
    model: TinyModel, monkeypatch: pytest.MonkeyPatch, ending: signal.Signals
) -> None:
    monkeypatch.setattr(scheduler_service, "CLIENT_TIMEOUT_S", 1.0)
    with thread_cluster(model) as cluster:
        arguments = [sys.executable, "-c", CLIENT, cluster.spec.run_directory, cluster.spec.namespace.digest.hex()]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE) as client:
            try:
                assert client.stdout is not None
                assert client.stdout.readline() == b"token\n"
                assert cluster.status().running == 4
                client.send_signal(ending)
                wait_serving(cluster, timeout_s=10.0)
            finally:
                client.kill()
        check_right(model, Agents(cluster, count=4, turns=2, seed=11).begin())
        wait_serving(cluster)


def test_attempts_that_fail_at_once_do_not_use_up_a_turn(model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    attach, failed_s = PrefillEngine._attach, []

    def refused_at_first(engine: PrefillEngine, turn: PrefillTurn) -> None:
        failed_s.append(time.monotonic())
        if failed_s[-1] < failed_s[0] + 0.4:
            raise TransportError("refused")
        attach(engine, turn)

    monkeypatch.setattr(PrefillEngine, "_attach", refused_at_first)
    with thread_cluster(model) as cluster:
        agents = Agents(cluster, count=1, turns=1, seed=15).begin()
        check_right(model, agents)
        assert agents.outcomes[0].turn is not None
        assert agents.outcomes[0].turn.finished.attempts == len(failed_s) > 2


# --- ends and starts --------------------------------------------------------------------------------------------------


def test_closing_ends_turns_that_run(model: TinyModel) -> None:
    with thread_cluster(model, prefill=2, decode=2) as cluster:
        agents = Agents(cluster, count=10, turns=1, seed=12, output_tokens=500).begin()
        agents.wait_tokens(30)
        started = time.monotonic()
        cluster.close()
        assert time.monotonic() - started < 5.0
        assert len(agents.end()) == agents.count
        assert all(isinstance(outcome.error, RequestFailed) for outcome in agents.outcomes)


def test_closing_while_callers_keep_asking(model: TinyModel) -> None:
    closed = threading.Event()
    with thread_cluster(model) as cluster, ThreadPoolExecutor(4) as callers:
        asking = [callers.submit(ask_until_closed, cluster, seed, closed) for seed in range(4)]
        time.sleep(0.5)
        cluster.close()
        closed.set()
        assert all(one.result(timeout=10.0) > 0 for one in asking)


def ask_until_closed(cluster: LocalCluster, seed: int, closed: threading.Event) -> int:
    """Turns until some time after the close; how many were refused."""
    refused = 0
    while not (closed.is_set() and refused):
        try:
            cluster.generate(random_tokens(seed, 60), max_tokens=4, timeout_s=5.0)
        except RequestFailed:
            refused += 1
    return refused


def test_an_engine_that_dies_at_every_start_is_not_restarted_for_ever(
    model: TinyModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "model"
    shutil.copytree(model.directory, directory)
    knobs = fault_knobs(model)
    with LocalCluster(directory, processes=False, **knobs) as cluster, caplog.at_level(logging.WARNING):
        cluster.generate(random_tokens(13, 100), max_tokens=4, timeout_s=20.0)
        directory.rename(tmp_path / "gone")
        cluster.launcher._workers["decode-0.0"].kill()
        agents = Agents(cluster, count=3, turns=1, seed=13, timeout_s=1.5).begin()
        assert all(isinstance(outcome.error, DeadlineExceeded) for outcome in agents.end())
        assert all(outcome.seconds < 3.0 for outcome in agents.outcomes)
        lines = [record.getMessage() for record in caplog.records if record.name == launcher.logger.name]
        assert len(lines) == launcher.QUICK_DEATHS + 1, lines
        assert all(str(directory) in line for line in lines[1:-1]), lines
        assert "decode-0.4 died 5 times in a row" in lines[-1]
        assert cluster.status().waiting == 0
        started = time.monotonic()
    assert time.monotonic() - started < 5.0


@pytest.mark.parametrize("processes", [True, False])
def test_a_cluster_that_cannot_start_says_why(model: TinyModel, tmp_path: Path, processes: bool) -> None:
    (tmp_path / "precious").write_text("not a block")
    cluster = LocalCluster(model.directory, processes=processes, **fault_knobs(model, store=str(tmp_path)))
    with pytest.raises(ClusterError, match="is no DualPath store"):
        cluster.open()
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize("processes", [True, False])
def test_a_second_cluster_on_the_same_store_is_refused(model: TinyModel, tmp_path: Path, processes: bool) -> None:
    with thread_cluster(model, store=str(tmp_path)) as first:
        before = first.generate(random_tokens(14, 100), max_tokens=4, timeout_s=20.0)
        second = LocalCluster(model.directory, processes=processes, **fault_knobs(model, store=str(tmp_path)))
        with pytest.raises(ClusterError, match=f"the store {tmp_path} is in use by process {os.getpid()}"):
            second.open()
        wait_serving(first)
        again = first.generate(random_tokens(14, 100), max_tokens=4, timeout_s=20.0)
    assert again.tokens == before.tokens
    assert again.cached_tokens == 96
