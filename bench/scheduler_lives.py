"""Request lives a second that one core's scheduler gets through: submit, both placements, reads, prefilled, finished.

A round submits a batch of turns (49k tokens on average, 98 % hit), lets every group's leader fetch once with a report
for each engine, then reports each placed request's read, prefill and end. Fetches and reports are part of the time.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import deque
from dataclasses import asdict, dataclass

from dualpath.clock import MonotonicClock
from dualpath.scheduling.central import CentralScheduler
from dualpath.scheduling.decisions import Decision, EngineDescription, EngineLoad, Placed, RequestDescription
from dualpath.scheduling.limits import SchedulerLimits
from dualpath.types import EngineName, GroupName, NodeName, RequestId, Role, Side

BLOCK_TOKENS = 64


@dataclass(frozen=True)
class Scale:
    """A cluster, and how many requests a round submits: seven for each group that fetches."""

    prefill: int
    decode: int
    group: int = 8

    @property
    def requests(self) -> int:
        return 7 * (self.prefill + self.decode) // self.group


@dataclass(frozen=True)
class Measured:
    """One cluster's result."""

    prefill: int
    decode: int
    group: int
    requests_per_round: int
    in_flight: int
    lives_per_s: float
    slowest_round_lives_per_s: float


class Driver:
    """Engines and clients that do what the scheduler says, a fixed number of rounds behind."""

    def __init__(self, scale: Scale, rounds_in_flight: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._scale = scale
        limits = SchedulerLimits(BLOCK_TOKENS, storage_tokens_per_s=600_000, prefill_tokens_per_s=400_000)
        self.scheduler = CentralScheduler(limits, MonotonicClock())
        self._groups = {Role.PREFILL: self._join(Role.PREFILL), Role.DECODE: self._join(Role.DECODE)}
        self._prefilling: deque[list[Placed]] = deque([[] for _ in range(1)])
        self._decoding: deque[list[Placed]] = deque([[] for _ in range(rounds_in_flight)])
        self._submitted = 0
        self._seen = 0

    def _join(self, role: Role) -> dict[GroupName, list[EngineName]]:
        groups: dict[GroupName, list[EngineName]] = {}
        count = self._scale.prefill if role is Role.PREFILL else self._scale.decode
        for index in range(count):
            node = f"{role}-{index // self._scale.group}"
            name = EngineName(f"{role}-{index}")
            self.scheduler.engine_joined(EngineDescription(name, role, GroupName(node), NodeName(node), 16_384, 1 << 20))
            groups.setdefault(GroupName(node), []).append(name)
        return groups

    def turns(self) -> list[RequestDescription]:
        """The next round's requests; made outside the measured time."""
        made = []
        for _ in range(self._scale.requests):
            self._submitted += 1
            blocks = self._random.randrange(64, 1024)
            hit = blocks * BLOCK_TOKENS
            made.append(RequestDescription(RequestId(f"turn-{self._submitted}"), hit + 429, hit, 176))
        return made

    def loads(self) -> list[tuple[bool, GroupName, list[EngineLoad]]]:
        """Each group's report, as leaders would have sent it; made outside the measured time."""
        return [
            (role is Role.PREFILL, group, [EngineLoad(name, self._seen, 1 << 40, None) for name in names])
            for role, groups in self._groups.items()
            for group, names in groups.items()
        ]

    def round(self, turns: list[RequestDescription], loads: list[tuple[bool, GroupName, list[EngineLoad]]]) -> int:
        """One round; returns how many lives ended."""
        scheduler = self.scheduler
        for turn in turns:
            scheduler.submit(turn)
        decisions: list[Decision] = []
        for prefill, group, reports in loads:
            decisions += (scheduler.fetch_prefill if prefill else scheduler.fetch_decode)(group, reports)
        placed = [decision for decision in decisions if isinstance(decision, Placed)]
        self._prefilling.append(placed)
        ending = self._prefilling.popleft()
        for request in ending:
            if request.share.prefill_tokens:
                scheduler.read_progress(request.request_id, Side.PREFILL, request.share.prefill_tokens)
            if request.share.decode_tokens:
                scheduler.read_progress(request.request_id, Side.DECODE, request.share.decode_tokens)
            scheduler.prefilled(request.request_id)
        self._decoding.append(ending)
        done = self._decoding.popleft()
        for request in done:
            scheduler.finished(request.request_id)
        if placed:
            self._seen = placed[-1].sequence
        return len(done)


def measure(scale: Scale, rounds: int, rounds_in_flight: int, seed: int) -> Measured:
    """The median over ``rounds`` rounds, after the pipeline has filled."""
    driver = Driver(scale, rounds_in_flight, seed)
    rates = []
    for index in range(rounds_in_flight + 3 + rounds):
        turns, loads = driver.turns(), driver.loads()
        start_s = time.perf_counter()
        lives = driver.round(turns, loads)
        elapsed_s = time.perf_counter() - start_s
        if index >= rounds_in_flight + 3:
            rates.append(lives / elapsed_s)
    in_flight = driver.scheduler.status().placed
    return Measured(scale.prefill, scale.decode, scale.group, scale.requests, in_flight, statistics.median(rates), min(rates))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--rounds-in-flight", type=int, default=10, help="rounds that a request decodes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = [
        measure(scale, options.rounds, options.rounds_in_flight, options.seed) for scale in (Scale(16, 32), Scale(384, 768))
    ]
    if options.json:
        print(json.dumps([asdict(result) for result in results]))
        return
    for result in results:
        print(
            f"{result.prefill:4d} PE {result.decode:4d} DE in groups of {result.group}: {result.lives_per_s:9,.0f} lives/s"
            f" (slowest round {result.slowest_round_lives_per_s:,.0f}; {result.requests_per_round} a round,"
            f" {result.in_flight} in flight)"
        )


if __name__ == "__main__":
    main()
