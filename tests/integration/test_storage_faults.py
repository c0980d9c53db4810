"""Clusters whose storage stands still, loses blocks, is full or read-only: only hits are lost (rules 1, 3, 5 and 8)."""

from __future__ import annotations

import contextlib
import random
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.fault_agents import (
    Agents,
    check_right,
    damage,
    in_use,
    leaves_nothing,
    own_temporaries,
    stored_files,
    thread_cluster,
    wait_serving,
    wait_status,
)
from tests.support.faulty_storage import Gate, GatedStorage
from tests.support.turn_reference import TinyModel, random_tokens

from dualpath.cluster.local import LocalCluster
from dualpath.engine import main as engine_main
from dualpath.settings import Dtype
from dualpath.storage.registry import StorageSpec, open_storage

STALL_S = 0.4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return TinyModel.create(tmp_path_factory.mktemp("models") / "tiny", Dtype.FLOAT64)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Each test leaves no thread, process or file behind."""
    with own_temporaries() as directory, leaves_nothing(directory):
        yield


# --- storage that stands still ----------------------------------------------------------------------------------------


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Between all engines and the store."""
    shared = Gate()

    def gated(spec: StorageSpec) -> GatedStorage:
        return GatedStorage(open_storage(spec), shared)

    monkeypatch.setattr(engine_main, "open_storage", gated)
    return shared


@pytest.mark.parametrize(("system", "readers"), [("basic", ["prefill"]), ("dualpath-split", ["prefill", "decode"])])
def test_reads_that_stall_are_given_up_and_their_slots_are_kept(
    model: TinyModel, gate: Gate, system: str, readers: list[str]
) -> None:
    slot = model.geometry(16).slot_bytes
    sizes = {"stall_timeout_s": STALL_S, "decode_buffer": 50 * slot, "prefill_buffer": 24 * slot}
    with thread_cluster(model, system, **sizes) as cluster:
        check_right(model, Agents(cluster, count=2, turns=1, seed=1).begin())
        wait_serving(cluster)
        gate.close_reads()
        again = Agents(cluster, count=2, turns=1, seed=1, timeout_s=10.0).begin()
        check_right(model, again)
        assert all(outcome.turn.cached_tokens == 0 and outcome.seconds > STALL_S for outcome in again.outcomes if outcome.turn)
        held = wait_status(cluster, lambda status: not status.running, 10.0, "end of the turns")
        assert {name for name in in_use(held) if name.endswith("buffer")} == {f"{name}-0.0 buffer" for name in readers}
        others = Agents(cluster, count=4, turns=2, seed=2).begin()  # use the other slots meanwhile
        others.wait_tokens(10)
        gate.open()
        check_right(model, others)
        wait_serving(cluster)
        warm = Agents(cluster, count=2, turns=2, seed=1).begin()
        check_right(model, warm)
        assert all(outcome.turn.cached_tokens > 100 for outcome in warm.outcomes if outcome.turn)
        wait_serving(cluster)


def test_a_read_that_stalls_when_the_buffer_is_full_goes_on_when_it_drains(model: TinyModel, gate: Gate) -> None:
    slot = model.geometry(16).slot_bytes
    prompt = random_tokens(3, 200)
    with thread_cluster(model, "dualpath-split", stall_timeout_s=STALL_S, decode_buffer=14 * slot, max_len=220) as cluster:
        first = cluster.generate(prompt, max_tokens=12, ignore_eos=True, timeout_s=20.0)
        wait_serving(cluster)
        gate.close_reads()
        timer = threading.Timer(3 * STALL_S, gate.open)
        timer.start()
        assert cluster.generate(prompt, max_tokens=12, ignore_eos=True, timeout_s=20.0).tokens == first.tokens
        timer.join()
        wait_serving(cluster)


def test_writes_that_stall_are_given_up_and_leave_no_files(model: TinyModel, gate: Gate) -> None:
    with thread_cluster(model, transfer_timeout_s=STALL_S) as cluster:
        gate.close_writes()
        check_right(model, Agents(cluster, count=4, turns=2, seed=4).begin())
        status = wait_status(cluster, lambda status: not status.pending_blocks, 20.0, "end of all waits for writes")
        assert status.stored_blocks == 0
        gate.open()
        wait_serving(cluster)
        assert stored_files(cluster) == []
        check_right(model, Agents(cluster, count=4, turns=2, seed=4).begin())
        assert wait_serving(cluster).stored_blocks == len(stored_files(cluster)) > 40


# --- storage that loses blocks, or takes none -------------------------------------------------------------------------


def test_blocks_are_damaged_while_agents_run(model: TinyModel) -> None:
    with thread_cluster(model, "dualpath-split", prefill=2, decode=2) as cluster:
        stop = threading.Event()
        damages: list[str] = []
        vandal = threading.Thread(target=damage_blocks, args=(cluster, stop, damages, random.Random(5)))
        vandal.start()
        try:
            check_right(model, Agents(cluster, count=6, turns=5, seed=5).begin())
        finally:
            stop.set()
            vandal.join()
        assert {"deleted", "truncated", "changed"} <= set(damages)
        check_right(model, Agents(cluster, count=6, turns=1, seed=5).begin())
        found = sum(engine.bad_blocks for engine in wait_serving(cluster).engines)
        assert found > 0
        again = Agents(cluster, count=6, turns=1, seed=5).begin()
        check_right(model, again)
        assert all(outcome.turn.cached_tokens >= 128 for outcome in again.outcomes if outcome.turn)
        assert sum(engine.bad_blocks for engine in wait_serving(cluster).engines) == found, "bad blocks were matched again"


def damage_blocks(cluster: LocalCluster, stop: threading.Event, damages: list[str], choice: random.Random) -> None:
    """Keep harming block files in all the ways that files get harmed."""
    while not stop.wait(0.01):
        for path in choice.sample(files := stored_files(cluster), min(2, len(files))):
            damages.append(damage(path, choice))


def mount(*arguments: str) -> None:
    """Mount something; skips the test where that is not allowed."""
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted: {done.stderr.strip()}")


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    """``directory`` is on a file system of 1 MiB meanwhile."""
    directory.mkdir()
    mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory))
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@contextlib.contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Nothing can be written to ``directory`` meanwhile, not even by root."""
    mount("--bind", str(directory), str(directory))
    try:
        mount("-o", "remount,ro,bind", str(directory))
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def test_a_full_disk_only_costs_hits(model: TinyModel, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk"), thread_cluster(model, store=str(tmp_path / "disk" / "store")) as cluster:
        check_right(model, Agents(cluster, count=6, turns=3, seed=6).begin())
        status = wait_serving(cluster)
        assert 5 < status.stored_blocks == len(stored_files(cluster)) < 30
        check_right(model, Agents(cluster, count=6, turns=1, seed=7).begin())
        assert wait_serving(cluster).stored_blocks == len(stored_files(cluster))


def test_a_store_that_becomes_read_only_only_costs_hits(model: TinyModel) -> None:
    with thread_cluster(model) as cluster:
        check_right(model, Agents(cluster, count=1, turns=1, seed=8).begin())
        stored = wait_serving(cluster).stored_blocks
        blocks = Path(cluster.spec.store_directory) / cluster.spec.namespace.digest.hex()
        with read_only(blocks):
            again = Agents(cluster, count=1, turns=2, seed=8).begin()
            check_right(model, again)
            assert [outcome.turn.cached_tokens for outcome in again.outcomes if outcome.turn] == [144, 160]
            assert wait_serving(cluster).stored_blocks == stored == len(stored_files(cluster))
        check_right(model, Agents(cluster, count=1, turns=2, seed=8).begin())
        assert wait_serving(cluster).stored_blocks > stored
