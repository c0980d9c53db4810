"""What fault tests share: agents that talk to a cluster in the background, and what must be left of a cluster: nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.turn_reference import TinyModel, random_tokens

from dualpath.cluster.local import Generation, LocalCluster
from dualpath.control.turns import ClusterStatus, SamplingParams, TokenEvent, TurnFinished
from dualpath.errors import DualPathError
from dualpath.types import Role

BLOCK_TOKENS = 16
OUR_THREADS = ("dualpath", "scheduler", "prefill", "decode", "compute", "storage")
LATENESS_S = 2.0
"""How long after its deadline a turn may end on a machine whose cores are all busy."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one turn ended: with its tokens, or with an error."""

    prompt: tuple[int, ...]
    seconds: float
    turn: Generation | None = None
    error: DualPathError | None = None
    tokens: tuple[int, ...] = ()


@dataclass(slots=True)
class Agents:
    """Conversations of several turns each, all at the same time, on the cluster's own loop.

    ``begin`` starts them in the background; ``wait_tokens`` returns in the middle of their turns, ``end`` when all are
    over. ``cut_short`` is asked before every turn after how many tokens its caller loses interest (None: never).
    """

    cluster: LocalCluster
    count: int = 8
    turns: int = 3
    first_tokens: int = 150
    appended_tokens: int = 60
    output_tokens: int = 24
    seed: int = 0
    timeout_s: float = 60.0
    cut_short: Callable[[], int | None] = lambda: None
    outcomes: list[Outcome] = field(default_factory=list)
    tokens: int = 0
    _news: threading.Condition = field(default_factory=threading.Condition)
    _running: list[Future[None]] = field(default_factory=list)

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(max_tokens=self.output_tokens, ignore_eos=True)

    def begin(self) -> Agents:
        """Start all agents."""
        self._running = [self._start(agent) for agent in range(self.count)]
        return self

    def _start(self, agent: int) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(self._converse(agent), self.cluster._loop)

    def wait_tokens(self, count: int, timeout_s: float = 60.0) -> None:
        """Until so many tokens have come since the start, over all agents."""
        with self._news:
            assert self._news.wait_for(lambda: self.tokens >= count, timeout_s), f"only {self.tokens} tokens came"

    @property
    def over(self) -> bool:
        """Whether the last conversation has ended."""
        return all(conversation.done() for conversation in self._running)

    def end(self) -> list[Outcome]:
        """All turns' outcomes, when the last conversation is over."""
        end = time.monotonic() + self.turns * (self.timeout_s + LATENESS_S)
        for conversation in self._running:
            conversation.result(max(0.0, end - time.monotonic()))
        return self.outcomes

    async def _converse(self, agent: int) -> None:
        prompt = random_tokens(1000 * self.seed + agent, self.first_tokens)
        for turn in range(self.turns):
            outcome = await self._take_turn(prompt)
            self.outcomes.append(outcome)
            prompt = [*prompt, *outcome.tokens, *random_tokens(1000 * self.seed + 100 * turn + agent, self.appended_tokens)]

    async def _take_turn(self, prompt: list[int]) -> Outcome:
        started = time.monotonic()
        events: list[TokenEvent] = []
        stop_after = self.cut_short()
        stream = self.cluster.client.generate(prompt, self.sampling, timeout_s=self.timeout_s)
        finished, error = None, None
        try:
            async for event in stream:
                if isinstance(event, TurnFinished):
                    finished = event
                    break
                events.append(event)
                self._count()
                if len(events) == stop_after:
                    break
        except DualPathError as failure:
            error = failure
        finally:
            await stream.aclose()
        tokens = tuple(event.token for event in events)
        turn = None if finished is None else Generation(tuple(prompt), tokens, tuple(events), None, finished, ())
        return Outcome(tuple(prompt), time.monotonic() - started, turn, error, tokens)

    def _count(self) -> None:
        with self._news:
            self.tokens += 1
            self._news.notify_all()


def check_right(model: TinyModel, agents: Agents) -> None:
    """Fail unless every turn of every agent was completed with the reference's tokens."""
    outcomes = agents.end()
    assert [outcome.error for outcome in outcomes if outcome.error is not None] == []
    assert len(outcomes) == agents.count * agents.turns
    for outcome in outcomes:
        assert outcome.turn is not None
        model.check(outcome.turn, agents.sampling)


def check_ended(model: TinyModel, agents: Agents) -> tuple[int, int]:
    """Fail unless every turn ended in time, with the reference's tokens or an error; how many did which."""
    right, failed = 0, 0
    for outcome in agents.end():
        assert outcome.seconds < agents.timeout_s + LATENESS_S, outcome
        if outcome.turn is not None:
            model.check(outcome.turn, agents.sampling)
            right += 1
        else:
            failed += 1
    return right, failed


def fault_knobs(model: TinyModel, **knobs: Any) -> dict[str, Any]:
    """Settings of a small cluster with short deadlines; ``knobs`` on top."""
    geometry = model.geometry(BLOCK_TOKENS)
    sizes = {
        "block_tokens": BLOCK_TOKENS,
        "decode_kv_memory": 400 * geometry.full_block_bytes,
        "decode_buffer": 160 * geometry.slot_bytes,
        "prefill_buffer": 96 * geometry.slot_bytes,
        "write_back_buffer": 16 * geometry.slot_bytes,
        "prefill_kv_memory": 1024 * 2 * geometry.token_layer_bytes,
        "max_batch_tokens": 256,
        "fetch_interval_s": 0.05,
        "heartbeat_timeout_s": 1.5,
        "transfer_timeout_s": 3.0,
        "stall_timeout_s": 1.0,
        "dtype": model.dtype,
        "device": "cpu",
    }
    return sizes | knobs


def thread_cluster(model: TinyModel, system: str = "dualpath", **knobs: Any) -> LocalCluster:
    """A cluster of threads, to be entered; their heartbeats are late when others compute."""
    return LocalCluster(
        model.directory, system=system, processes=False, **fault_knobs(model, **{"heartbeat_timeout_s": 20.0} | knobs)
    )


# --- waiting ----------------------------------------------------------------------------------------------------------


def wait_status(cluster: LocalCluster, good: Callable[[ClusterStatus], bool], timeout_s: float, what: str) -> ClusterStatus:
    """The first status that is good; fails, saying ``what`` was waited for, if there is none in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        status: ClusterStatus | None = None
        with contextlib.suppress(DualPathError):  # a scheduler that is just restarting does not answer
            status = cluster.status()
        if status is not None and good(status):
            return status
        assert time.monotonic() < deadline, f"no {what} within {timeout_s:g} s; last: {status}"
        time.sleep(0.05)


def in_use(status: ClusterStatus) -> dict[str, int]:
    """What is still held somewhere."""
    counts = {name: getattr(status, name) for name in ("waiting", "running", "pinned_blocks", "pending_blocks")}
    for engine in status.engines:
        pages = engine.kv_blocks - engine.kv_blocks_free if engine.role == Role.DECODE else 0
        counts |= {
            f"{engine.name} running": engine.running,
            f"{engine.name} waiting": engine.waiting,
            f"{engine.name} unread": engine.read_queue_tokens,
            f"{engine.name} buffer": engine.buffer_blocks - engine.buffer_blocks_free,
            f"{engine.name} pages": pages,
        }
    return {name: count for name, count in counts.items() if count}


def names(status: ClusterStatus) -> set[str]:
    return {engine.name for engine in status.engines}


def wait_serving(cluster: LocalCluster, gone: Collection[str] = (), timeout_s: float = 60.0) -> ClusterStatus:
    """Until every engine has joined that should be there, under other names than ``gone``, and nothing is in use.

    Two reports in a row have to say so: engines report now and then.
    """
    settings = cluster.settings.cluster
    reports = 0

    def serving(status: ClusterStatus) -> bool:
        nonlocal reports
        whole = len(status.engines) == settings.prefill + settings.decode and not names(status) & set(gone)
        reports = reports + 1 if whole and all(e.buffer_blocks for e in status.engines) and not in_use(status) else 0
        return reports == 3

    return wait_status(cluster, serving, timeout_s, f"idle cluster without {sorted(gone)}")


def stored_files(cluster: LocalCluster) -> list[Path]:
    """The store's block files."""
    return sorted(Path(cluster.spec.store_directory).glob("*/*/*.kv"))


def damage(path: Path, choice: random.Random) -> str:
    """Harm a block file in one of the ways in which files get harmed; which one it was."""
    kind = choice.choice(["deleted", "truncated", "changed"])
    with contextlib.suppress(FileNotFoundError):
        if kind == "deleted":
            path.unlink()
        elif kind == "truncated":
            os.truncate(path, choice.randrange(path.stat().st_size))
        elif kind == "changed":
            with path.open("r+b") as file:
                file.seek(choice.randrange(path.stat().st_size))
                file.write(choice.randbytes(8))
        return kind
    return "gone already"


# --- processes --------------------------------------------------------------------------------------------------------


def pid_of(cluster: LocalCluster, prefix: str) -> tuple[str, int]:
    """Name and process of the member whose name begins so."""
    ((name, pid),) = [(name, pid) for name, pid in cluster.launcher.pids().items() if name.startswith(prefix)]
    return name, pid


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process stands still meanwhile, unless somebody ends it."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_gone(pids: Collection[int], timeout_s: float = 10.0) -> None:
    """Fail unless these processes end in time."""
    deadline = time.monotonic() + timeout_s
    while left := [pid for pid in pids if alive(pid)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.02)


@contextlib.contextmanager
def own_temporaries() -> Iterator[Path]:
    """``tempfile`` uses an empty directory of its own meanwhile, on a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="faults-") as directory:
        before, tempfile.tempdir = tempfile.tempdir, directory
        try:
            yield Path(directory)
        finally:
            tempfile.tempdir = before


@contextlib.contextmanager
def leaves_nothing(temporary: Path) -> Iterator[None]:
    """Fail if processes, threads, shared memory or temporary files are left that were not there before.

    ``temporary`` is the directory that ``tempfile`` uses meanwhile.
    """
    shared = set(Path("/dev/shm").glob("*dualpath*"))
    threads = set(threading.enumerate())
    others, files = children(), set(temporary.iterdir())
    yield
    deadline = time.monotonic() + 10.0
    while True:
        left = {
            "processes": children() - others,
            "shared memory": set(Path("/dev/shm").glob("*dualpath*")) - shared,
            "files": set(temporary.glob("dualpath*")) - files,
            "threads": {one.name for one in set(threading.enumerate()) - threads if one.name.startswith(OUR_THREADS)},
        }
        if not any(left.values()):
            return
        assert time.monotonic() < deadline, {what: found for what, found in left.items() if found}
        time.sleep(0.05)


def children() -> set[int]:
    """Processes of a cluster that this process has started."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return {pid for pid in found if alive(pid)}
