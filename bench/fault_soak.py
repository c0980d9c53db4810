"""A longer soak: agents talk to a cluster of real processes while its members, blocks and callers fail at random.

Every turn has to end in time, with transformers' tokens or a clear error; after every round the cluster has to serve
again with nothing in use; in the end nothing may be left. Run from the repository root::

    python bench/fault_soak.py --seconds 600 --seed 3
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.fault_agents import (
    BLOCK_TOKENS,
    Agents,
    check_ended,
    damage,
    fault_knobs,
    leaves_nothing,
    own_temporaries,
    stopped,
    stored_files,
    wait_serving,
)
from tests.support.turn_reference import TinyModel

from dualpath.cluster.launcher import QUICK_DEATH_WINDOW_S, QUICK_DEATHS
from dualpath.cluster.local import LocalCluster
from dualpath.settings import Dtype

HEARTBEAT_S = 1.5
STORE_BLOCKS = 400
LONGEST_PAUSE_S = 1.5
SERVING_AGAIN_S = QUICK_DEATH_WINDOW_S + 30.0


@dataclass
class Soak:
    """One run: its cluster, its dice, and what has happened so far."""

    model: TinyModel
    cluster: LocalCluster
    dice: random.Random
    faults: Counter[str] = field(default_factory=Counter)
    turns: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    deaths: dict[str, deque[float]] = field(default_factory=dict)

    def round(self, number: int) -> None:
        """Agents from their first to their last turn, with faults all the while; then everything has to be well."""
        patience_s = self.dice.uniform(0.2, 8.0)
        steady = Agents(self.cluster, count=6, turns=10, appended_tokens=40, seed=2 * number).begin()
        hasty = Agents(
            self.cluster, count=4, turns=12, seed=2 * number + 1, timeout_s=patience_s, cut_short=self._cut_short
        ).begin()
        with ThreadPoolExecutor() as accidents:  # several at a time
            happening = []
            while not (steady.over and hasty.over):
                time.sleep(self.dice.uniform(0.1, LONGEST_PAUSE_S))
                happening.append(accidents.submit(self.fault))
        for accident in happening:
            accident.result()
        self.checked(partial(self.count, "steady", steady))
        self.checked(partial(self.count, "hasty", hasty))
        self.checked(self._check_whole)

    def fault(self) -> None:
        """One thing that goes wrong."""
        fault = self.dice.choice((self._kill, self._kill, self._stop, self._pause, self._pause, self._damage, self._damage))
        if fault():
            self.faults[fault.__name__.lstrip("_")] += 1

    def checked(self, check: Callable[[], None]) -> None:
        """Note what a check finds wrong, and go on."""
        try:
            check()
        except (AssertionError, TimeoutError) as error:
            self.violations.append(f"{type(error).__name__}: {error}")
            print(f"VIOLATION {self.violations[-1]}", flush=True)

    def _cut_short(self) -> int | None:
        return self.dice.randrange(1, 24) if self.dice.random() < 0.5 else None

    def count(self, kind: str, agents: Agents) -> None:
        """Check how these agents' turns have ended."""
        right, failed = check_ended(self.model, agents)
        self.turns[f"{kind} right"] += right
        self.turns[f"{kind} given up or failed"] += failed

    def _check_whole(self) -> None:
        status = wait_serving(self.cluster, timeout_s=SERVING_AGAIN_S)
        files = len(stored_files(self.cluster))
        assert files <= status.stored_blocks <= STORE_BLOCKS, f"{files} files, {status.stored_blocks} blocks in the index"

    # --- faults -------------------------------------------------------------------------------------------------------

    def _victim(self, lethal: bool) -> int | None:
        """The process of a member that has not died too often of late to be restarted at once."""
        now = time.monotonic()
        names = list(self.cluster.launcher.pids().items())
        self.dice.shuffle(names)
        for name, pid in names:
            deaths = self.deaths.setdefault(name.partition(".")[0], deque(maxlen=QUICK_DEATHS - 1))
            if len(deaths) < QUICK_DEATHS - 1 or now - deaths[0] > QUICK_DEATH_WINDOW_S or not lethal:
                if lethal:
                    deaths.append(now)
                return pid
        return None

    def _kill(self) -> bool:
        if (pid := self._victim(lethal=True)) is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return True

    def _stop(self) -> bool:
        """Longer than the heartbeat timeout."""
        return self._stand_still(self._victim(lethal=True), HEARTBEAT_S + self.dice.uniform(0.0, 1.0))

    def _pause(self) -> bool:
        """Shorter than the heartbeat timeout."""
        return self._stand_still(self._victim(lethal=False), self.dice.uniform(0.05, 0.5 * HEARTBEAT_S))

    def _stand_still(self, pid: int | None, seconds: float) -> bool:
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError), stopped(pid):
            time.sleep(seconds)
        return True

    def _damage(self) -> bool:
        """Some block files."""
        files = stored_files(self.cluster)
        for path in self.dice.sample(files, min(5, len(files))):
            damage(path, self.dice)
        return True


def run(seconds: float, seed: int, prefill: int, decode: int) -> Soak:
    """Rounds until the time is up, and a close with turns running."""
    with own_temporaries() as directory:
        model = TinyModel.create(directory / "model", Dtype.FLOAT64)
        capacity = STORE_BLOCKS * model.geometry(BLOCK_TOKENS).full_block_bytes
        knobs = fault_knobs(model, heartbeat_timeout_s=HEARTBEAT_S, prefill=prefill, decode=decode, store_capacity=capacity)
        soak = Soak(model, LocalCluster(model.directory, system="dualpath-split", **knobs), random.Random(seed))
        soak.checked(partial(_live, soak, directory, time.monotonic() + seconds))
    return soak


def _live(soak: Soak, directory: Path, end: float) -> None:
    """One cluster's life, of which nothing may be left."""
    number = 0
    with leaves_nothing(directory):
        with soak.cluster:
            while time.monotonic() < end:
                soak.round(number)
                number += 1
                print(f"round {number}: {dict(soak.turns)} {dict(soak.faults)}", flush=True)
            closing = Agents(soak.cluster, count=8, turns=1, output_tokens=400, seed=2 * number).begin()
            soak.checked(partial(closing.wait_tokens, 20))
        soak.checked(partial(soak.count, "closing", closing))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--prefill", type=int, default=2)
    parser.add_argument("--decode", type=int, default=2)
    asked = parser.parse_args()
    started = time.monotonic()
    soak = run(asked.seconds, asked.seed, asked.prefill, asked.decode)
    print(f"{time.monotonic() - started:.0f} s: turns {dict(soak.turns)}")
    print(f"faults {dict(soak.faults)}")
    print(f"{len(soak.violations)} violations", *soak.violations, sep="\n  ")
    return 1 if soak.violations else 0


if __name__ == "__main__":
    sys.exit(main())
