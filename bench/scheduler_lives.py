"""Request lives a second that one core's scheduler gets through: submit, both placements, reads, prefilled, finished.

Turns of 33k tokens on average with a 98 % hit arrive between the fetches of the groups' leaders, seven to a fetch; every
fetch brings a report for each engine; a placed request is read and prefilled a round of all groups later and finished
some rounds after that. Everything but the making of descriptions and reports counts, in processor time of the thread;
the time of an empty function call tells how fast the machine was meanwhile.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass

from dualpath.clock import MonotonicClock
from dualpath.scheduling.central import CentralScheduler
from dualpath.scheduling.decisions import Decision, EngineDescription, EngineLoad, Placed, RequestDescription
from dualpath.scheduling.limits import SchedulerLimits
from dualpath.types import EngineName, GroupName, NodeName, RequestId, Role, Side

BLOCK_TOKENS = 64
TURNS_PER_FETCH = 7
PREFILL_SIDE, DECODE_SIDE = Side.PREFILL, Side.DECODE

Fetch = Callable[[GroupName, list[EngineLoad]], list[Decision]]


@dataclass(frozen=True)
class Scale:
    """A cluster's engines, in groups of ``group``, each group a node."""

    prefill: int
    decode: int
    group: int = 8


@dataclass(frozen=True)
class Measured:
    """One cluster's result, over rounds in which every group fetches once."""

    prefill: int
    decode: int
    group: int
    lives_per_round: int
    in_flight: int
    lives_per_s: float
    slowest_lives_per_s: float
    fastest_lives_per_s: float
    empty_call_ns: float


class Driver:
    """Clients and engines that do what the scheduler says."""

    def __init__(self, scale: Scale, rounds_in_flight: int, seed: int) -> None:
        self._random = random.Random(seed)
        limits = SchedulerLimits(BLOCK_TOKENS, storage_tokens_per_s=600_000, prefill_tokens_per_s=400_000)
        self.scheduler = CentralScheduler(limits, MonotonicClock())
        self._groups: list[tuple[Fetch, GroupName, list[EngineName]]] = []
        self._join(Role.DECODE, scale.decode, scale.group, self.scheduler.fetch_decode)
        self._join(Role.PREFILL, scale.prefill, scale.group, self.scheduler.fetch_prefill)
        self._random.shuffle(self._groups)
        self._prefilling: deque[list[Placed]] = deque([] for _ in self._groups)
        self._decoding: deque[list[Placed]] = deque([] for _ in range(rounds_in_flight * len(self._groups)))
        self._submitted = 0
        self._seen = 0

    def _join(self, role: Role, engines: int, group_size: int, fetch: Fetch) -> None:
        for first in range(0, engines, group_size):
            node = f"{role}-{first // group_size}"
            names = [EngineName(f"{node}.{index}") for index in range(min(group_size, engines - first))]
            for name in names:
                self.scheduler.engine_joined(EngineDescription(name, role, GroupName(node), NodeName(node), 16_384, 1 << 20))
            self._groups.append((fetch, GroupName(node), names))

    def _turn(self) -> RequestDescription:
        self._submitted += 1
        hit = self._random.randrange(64, 1024) * BLOCK_TOKENS
        return RequestDescription(RequestId(f"turn-{self._submitted}"), hit + 429, hit, 176)

    def round(self) -> tuple[int, float]:
        """Every group fetches once; lives that ended, and the thread's seconds for it."""
        lives, elapsed_s = 0, 0.0
        for fetch, group, names in self._groups:
            reports = [EngineLoad(name, self._seen, 1 << 40) for name in names]
            turns = [self._turn() for _ in range(TURNS_PER_FETCH)]
            start_s = time.thread_time()
            for turn in turns:
                self.scheduler.submit(turn)
            placed = [decision for decision in fetch(group, reports) if isinstance(decision, Placed)]
            lives += self._events(placed)
            elapsed_s += time.thread_time() - start_s
        self._seen = max((p.sequence for placed in self._prefilling for p in placed), default=0)
        return lives, elapsed_s

    def _events(self, placed: list[Placed]) -> int:
        scheduler = self.scheduler
        self._prefilling.append(placed)
        prefilled = self._prefilling.popleft()
        for request in prefilled:
            share = request.share
            if share.prefill_tokens:
                scheduler.read_progress(request.request_id, PREFILL_SIDE, share.prefill_tokens)
            if share.decode_tokens:
                scheduler.read_progress(request.request_id, DECODE_SIDE, share.decode_tokens)
            scheduler.prefilled(request.request_id)
        self._decoding.append(prefilled)
        finished = self._decoding.popleft()
        for request in finished:
            scheduler.finished(request.request_id)
        return len(finished)


def empty_call_ns(calls: int = 20_000) -> float:
    """Processor time of one call of a function that does nothing."""

    def nothing() -> None:
        pass

    start_s = time.thread_time()
    for _ in range(calls):
        nothing()
    return (time.thread_time() - start_s) / calls * 1e9


def measure(scale: Scale, rounds: int, rounds_in_flight: int, seed: int) -> Measured:
    """The median over ``rounds`` rounds, after the pipeline has filled."""
    driver = Driver(scale, rounds_in_flight, seed)
    for _ in range(rounds_in_flight + 3):
        driver.round()
    rates, counts, calls = [], [], []
    for _ in range(rounds):
        lives, elapsed_s = driver.round()
        rates.append(lives / elapsed_s)
        counts.append(lives)
        calls.append(empty_call_ns())
    return Measured(
        prefill=scale.prefill,
        decode=scale.decode,
        group=scale.group,
        lives_per_round=round(statistics.mean(counts)),
        in_flight=driver.scheduler.status().placed,
        lives_per_s=statistics.median(rates),
        slowest_lives_per_s=min(rates),
        fastest_lives_per_s=max(rates),
        empty_call_ns=statistics.median(calls),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--rounds-in-flight", type=int, default=10, help="rounds that a request decodes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of text")
    options = parser.parse_args()
    scales = Scale(16, 32), Scale(384, 768)
    results = [measure(scale, options.rounds, options.rounds_in_flight, options.seed) for scale in scales]
    if options.json:
        print(json.dumps([asdict(result) for result in results]))
        return
    for result in results:
        print(
            f"{result.prefill:4d} PE {result.decode:4d} DE in groups of {result.group}: {result.lives_per_s:8,.0f} lives/s"
            f" (rounds {result.slowest_lives_per_s:,.0f} to {result.fastest_lives_per_s:,.0f};"
            f" {result.lives_per_round} a round, {result.in_flight} in flight; empty call {result.empty_call_ns:.0f} ns)"
        )


if __name__ == "__main__":
    main()
