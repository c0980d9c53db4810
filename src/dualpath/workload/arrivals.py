"""When agents begin: all at once, or as a Poisson process (paper section 7)."""

from __future__ import annotations

import math

from dualpath.workload.randomness import Random


def arrivals(agents: int, rate: float | None, random: Random) -> list[float]:
    """Seconds from the start at which each agent sends its first turn; ``rate`` in agents a second, None: all at 0."""
    if rate is None:
        return [0.0] * agents
    times, now_s = [], 0.0
    for _ in range(agents):
        times.append(now_s)
        now_s -= math.log(1.0 - random.uniform(0.0, 1.0)) / rate
    return times
