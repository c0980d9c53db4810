"""Request lives a second that one core's scheduler gets through: submit, both placements, reads, prefilled, finished.

Turns of 33k tokens on average with a 98 % hit arrive at the rate that is aimed at, while the leader of every group fetches
once an interval and brings a report for each engine, so that a fetch finds ``rate * interval / groups`` new turns. A
placed request is read and prefilled one interval later and finished some intervals after that; by default as many are in
flight as decode engines of a million tokens can hold. Reports are true but up to an interval old. All calls of the
scheduler count, in processor time of the thread; the time of an empty function call tells how fast the machine was
meanwhile.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass

from dualpath.clock import MonotonicClock
from dualpath.scheduling.central import CentralScheduler
from dualpath.scheduling.decisions import Decision, EngineDescription, EngineLoad, Placed, RequestDescription
from dualpath.scheduling.limits import SchedulerLimits
from dualpath.settings import SchedulingSettings
from dualpath.types import EngineName, GroupName, NodeName, RequestId, Role, Side

BLOCK_TOKENS = 64
BUFFER_BLOCKS = 1 << 20
TARGET_LIVES_PER_S = 80_000
"""For the large cluster, at the rate that is aimed at by default."""
PREFILL_SIDE, DECODE_SIDE = Side.PREFILL, Side.DECODE

Fetch = Callable[[GroupName, list[EngineLoad]], list[Decision]]


@dataclass(frozen=True)
class Scale:
    """A cluster's engines, in groups of ``group``, each group a node."""

    prefill: int
    decode: int
    group: int = 8

    @property
    def groups(self) -> int:
        return -(-self.prefill // self.group) + -(-self.decode // self.group)


@dataclass(frozen=True)
class Load:
    """Turns that come between two fetches, the intervals for which a request decodes, and a decode engine's KV blocks."""

    turns_per_fetch: int
    intervals_decoding: int = 3
    kv_blocks: int = 16_384
    seed: int = 0


@dataclass(frozen=True)
class Measured:
    """One cluster's result, over rounds in which every group fetches once."""

    prefill: int
    decode: int
    group: int
    turns_per_fetch: int
    in_flight: int
    waiting: int
    lives_per_s: float
    slowest_lives_per_s: float
    fastest_lives_per_s: float
    empty_call_ns: float


class Driver:
    """Clients and engines that do what the scheduler says."""

    def __init__(self, scale: Scale, load: Load) -> None:
        self._random = random.Random(load.seed)
        self._load = load
        limits = SchedulerLimits(BLOCK_TOKENS, storage_tokens_per_s=600_000, prefill_tokens_per_s=400_000)
        self.scheduler = CentralScheduler(limits, MonotonicClock())
        self._groups: list[tuple[Fetch, GroupName, list[EngineName]]] = []
        self._join(Role.DECODE, scale.decode, scale.group, self.scheduler.fetch_decode)
        self._join(Role.PREFILL, scale.prefill, scale.group, self.scheduler.fetch_prefill)
        self._random.shuffle(self._groups)
        self._prefilling: deque[list[Placed]] = deque([] for _ in self._groups)
        self._decoding: deque[list[RequestId]] = deque([] for _ in range(load.intervals_decoding * len(self._groups)))
        self._submitted = 0
        self._reports: dict[EngineName, EngineLoad] = {}
        self._measure_loads()

    def _join(self, role: Role, engines: int, group_size: int, fetch: Fetch) -> None:
        kv_blocks = self._load.kv_blocks if role is Role.DECODE else 0
        for first in range(0, engines, group_size):
            node = f"{role}-{first // group_size}"
            names = [EngineName(f"{node}.{index}") for index in range(min(group_size, engines - first))]
            for name in names:
                description = EngineDescription(name, role, GroupName(node), NodeName(node), kv_blocks, BUFFER_BLOCKS)
                self.scheduler.engine_joined(description)
            self._groups.append((fetch, GroupName(node), names))

    def _measure_loads(self) -> None:
        """What the engines would report now: they have heard of all placements.

        A picture of the whole cluster at once is this driver's own garbage, for which nothing is to be collected.
        """
        gc.disable()
        status = self.scheduler.status()
        self._reports = {
            name: EngineLoad(
                name,
                status.sequence,
                engine.unread_tokens,
                self._load.kv_blocks - engine.reserved_blocks if engine.role is Role.DECODE else None,
            )
            for name, engine in status.engines.items()
        }
        del status
        gc.enable()

    def _turn(self) -> RequestDescription:
        self._submitted += 1
        hit = self._random.randrange(64, 1024) * BLOCK_TOKENS
        return RequestDescription(RequestId(f"turn-{self._submitted}"), hit + 429, hit, 176)

    def round(self) -> tuple[int, float]:
        """Every group fetches once; lives that ended, and the thread's seconds for it."""
        lives, elapsed_s = 0, 0.0
        submit = self.scheduler.submit
        for fetch, group, names in self._groups:
            reports = [self._reports[name] for name in names]
            turns = [self._turn() for _ in range(self._load.turns_per_fetch)]
            start_s = time.thread_time()
            for turn in turns:
                submit(turn)
            decisions = fetch(group, reports)
            elapsed_s += time.thread_time() - start_s
            self._prefilling.append([decision for decision in decisions if isinstance(decision, Placed)])
            prefilled = self._prefilling.popleft()
            self._decoding.append([placed.request_id for placed in prefilled])
            finished = self._decoding.popleft()
            start_s = time.thread_time()
            self._events(prefilled, finished)
            elapsed_s += time.thread_time() - start_s
            lives += len(finished)
        self._measure_loads()
        return lives, elapsed_s

    def _events(self, prefilled: list[Placed], finished: list[RequestId]) -> None:
        scheduler = self.scheduler
        for request in prefilled:
            share = request.share
            if share.prefill_tokens:
                scheduler.read_progress(request.request_id, PREFILL_SIDE, share.prefill_tokens)
            if share.decode_tokens:
                scheduler.read_progress(request.request_id, DECODE_SIDE, share.decode_tokens)
            scheduler.prefilled(request.request_id)
        for request_id in finished:
            scheduler.finished(request_id)


def empty_call_ns(calls: int = 20_000) -> float:
    """Processor time of one call of a function that does nothing."""

    def nothing() -> None:
        pass

    start_s = time.thread_time()
    for _ in range(calls):
        nothing()
    return (time.thread_time() - start_s) / calls * 1e9


def measure(scale: Scale, load: Load, rounds: int) -> Measured:
    """The median over ``rounds`` rounds, after the pipeline has filled."""
    driver = Driver(scale, load)
    for _ in range(load.intervals_decoding + 3):
        driver.round()
    rates, calls = [], []
    for _ in range(rounds):
        lives, elapsed_s = driver.round()
        rates.append(lives / elapsed_s)
        calls.append(empty_call_ns())
    status = driver.scheduler.status()
    return Measured(
        prefill=scale.prefill,
        decode=scale.decode,
        group=scale.group,
        turns_per_fetch=load.turns_per_fetch,
        in_flight=status.placed,
        waiting=status.waiting,
        lives_per_s=statistics.median(rates),
        slowest_lives_per_s=min(rates),
        fastest_lives_per_s=max(rates),
        empty_call_ns=statistics.median(calls),
    )


def main() -> None:
    interval_s = SchedulingSettings().fetch_interval_s
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--lives-per-s", type=float, default=TARGET_LIVES_PER_S, help="the rate that is aimed at")
    parser.add_argument("--interval", type=float, default=interval_s, metavar="SECONDS", help="between a leader's fetches")
    parser.add_argument("--turns-per-fetch", type=int, help="instead of what rate and interval come to")
    parser.add_argument("--intervals-decoding", type=int, default=Load.intervals_decoding)
    parser.add_argument("--kv-blocks", type=int, default=Load.kv_blocks, help="of a decode engine")
    parser.add_argument(
        "--gc-threshold", type=int, help="allocations before the cyclic collector runs, instead of Python's 700"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of text")
    options = parser.parse_args()
    if options.gc_threshold:
        gc.set_threshold(options.gc_threshold)
    results = []
    for scale in Scale(16, 32), Scale(384, 768):
        rate = options.lives_per_s * scale.groups / Scale(384, 768).groups  # each engine has as much to do in both
        turns = options.turns_per_fetch or max(1, round(rate * options.interval / scale.groups))
        load = Load(turns, options.intervals_decoding, options.kv_blocks, options.seed)
        results.append(measure(scale, load, options.rounds))
    if options.json:
        print(json.dumps([asdict(result) for result in results]))
    for result in () if options.json else results:
        print(
            f"{result.prefill:4d} PE {result.decode:4d} DE in groups of {result.group}, {result.turns_per_fetch} turns a fetch:"
            f" {result.lives_per_s:,.0f} lives/s (rounds {result.slowest_lives_per_s:,.0f} to"
            f" {result.fastest_lives_per_s:,.0f}; {result.in_flight} in flight, {result.waiting} waiting;"
            f" empty call {result.empty_call_ns:.0f} ns)"
        )
    if results[-1].lives_per_s < TARGET_LIVES_PER_S:
        print(f"MISSED: at least {TARGET_LIVES_PER_S:,} lives/s", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
