"""Utilisation over time of links and groups, in a bounded number of samples however long a run is (paper Figs. 13 and 14)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from itertools import pairwise

from dualpath.sim.kernel import Kernel
from dualpath.workload.report import Utilisation

MOST_SAMPLES = 256
FIRST_INTERVAL_S = 0.25

Counter = Callable[[float], float]
"""What a resource has done up to a time, as seconds at its full capacity."""


class Sampler:
    """Reads every counter once an interval; when there are too many samples, every second is dropped and the interval
    doubles."""

    def __init__(self, kernel: Kernel, counters: Mapping[str, Counter], goes_on: Callable[[], bool]) -> None:
        self.interval_s = FIRST_INTERVAL_S
        self._kernel = kernel
        self._counters = list(counters.values())
        self._names = list(counters)
        self._goes_on = goes_on
        self._samples = [array("d", [0.0]) for _ in self._counters]
        kernel.after(self.interval_s, self._sample)

    def _sample(self, _: None) -> None:
        if not self._goes_on():
            return
        now_s = self._kernel.now_s
        for samples, counter in zip(self._samples, self._counters, strict=True):
            samples.append(counter(now_s))
        if len(self._samples[0]) > MOST_SAMPLES:
            self._samples = [samples[::2] for samples in self._samples]
            self.interval_s *= 2
        self._kernel.after(self.interval_s, self._sample)

    def utilisation(self) -> Utilisation:
        """The share of each resource used in every full interval."""
        return Utilisation(self.interval_s, {name: self._shares(at) for at, name in enumerate(self._names)})

    def _shares(self, at: int) -> list[float]:
        return [(after - before) / self.interval_s for before, after in pairwise(self._samples[at])]
