"""Questions that the paper leaves open, as experiments on the simulator; the first: reads split over both sides
(paper section 7)."""

from __future__ import annotations

from collections.abc import Sequence

from dualpath.evaluation.elastic import ELASTIC
from dualpath.evaluation.experiment import Experiment
from dualpath.evaluation.lab import Case, Lab
from dualpath.evaluation.outcome import Outcome, Window
from dualpath.evaluation.resident import RESIDENT
from dualpath.evaluation.section import Picture, Section, Series, Value
from dualpath.evaluation.ttft_tail import TTFT_TAIL

ONE_PATH, SPLIT = "dualpath", "dualpath-split"
SLOW_NIC = 10e9
"""Bytes a second of each node's storage NIC where storage is to be the bottleneck; the usual one has 50e9."""
AGENTS = (512, 2048)
RATES: Sequence[tuple[float | None, float]] = ((None, 0.2), (None, 0.4), (SLOW_NIC, 0.1))
"""Storage NIC (None: the usual one), and agents a second."""
ONLINE_S = 3000.0
WINDOW = Window(1500.0, ONLINE_S)
NO_DIFFERENCE = 0.02
"""Of a time: less is called none."""


def _offline(system: str, nic: float | None, agents: int) -> Case:
    return Case(system=system, agents=agents, snic_bandwidth=nic)


def _online(system: str, nic: float | None, rate: float) -> Case:
    agents = int(1.1 * rate * ONLINE_S) + 20
    return Case(system=system, agents=agents, rate=rate, snic_bandwidth=nic, until_s=ONLINE_S, window=WINDOW)


def _cases() -> list[Case]:
    offline = [_offline(system, nic, n) for system in (ONE_PATH, SPLIT) for nic in (None, SLOW_NIC) for n in AGENTS]
    return offline + [_online(system, *at) for system in (ONE_PATH, SPLIT) for at in RATES]


def _nic(bandwidth: float | None) -> str:
    return "" if bandwidth is None else f", NICs of {bandwidth / 1e9:g} GB/s"


def _split(lab: Lab) -> Section:
    outcomes = lab.outcomes(_cases())
    values: list[Value] = []
    saved: dict[str, float] = {}
    pictures = []
    for nic in (None, SLOW_NIC):
        series = []
        for system in (ONE_PATH, SPLIT):
            jct = {n: outcomes[_offline(system, nic, n)].jct_s for n in AGENTS}
            series.append(Series(system, [(f"{n:,}", jct_s) for n, jct_s in jct.items()]))
            values += [Value(f"JCT {system}, {n:,} agents{_nic(nic)}", "s", jct_s) for n, jct_s in jct.items()]
        pictures.append(Picture(f"JCT by agents{_nic(nic)}", "agents", "JCT (s)", series))
        for n in AGENTS:
            before, after = (outcomes[_offline(system, nic, n)].jct_s for system in (ONE_PATH, SPLIT))
            saved[f"JCT of {n:,} agents{_nic(nic)}"] = 1 - after / before
    for nic, rate in RATES:
        for name, of in (("mean", _mean), ("p99", _p99), ("read part of the mean", _read)):
            before, after = (of(outcomes[_online(system, nic, rate)]) for system in (ONE_PATH, SPLIT))
            values += [
                Value(f"TTFT {name} {system}, {rate:g} agents/s{_nic(nic)}", "s", value)
                for system, value in ((ONE_PATH, before), (SPLIT, after))
            ]
            saved[f"TTFT {name} at {rate:g} agents/s{_nic(nic)}"] = 1 - after / before if before else 0.0
    return Section(
        "split",
        "Split reads: one hit through both storage NICs at once",
        [
            "DualPath reads a hit through the side with the shorter queue. Here each side reads a part, cut where both are "
            "done at the same time. DS 660B, 2P4D, 64K; offline, and online over the second half of a run. The same with "
            f"storage NICs of {SLOW_NIC / 1e9:g} GB/s, where storage is what everything waits for.",
            _verdict(saved),
        ],
        values,
        pictures,
    )


def _mean(outcome: Outcome) -> float:
    return outcome.ttft_s.mean or 0.0


def _p99(outcome: Outcome) -> float:
    return outcome.ttft_s.p99 or 0.0


def _read(outcome: Outcome) -> float:
    return outcome.stages.read_s


def _verdict(saved: dict[str, float]) -> str:
    """What is saved where, and whether splitting should be the default."""
    whole = {name: share for name, share in saved.items() if "read part" not in name}
    better = {name: share for name, share in whole.items() if share > NO_DIFFERENCE}
    worse = {name: share for name, share in whole.items() if share < -NO_DIFFERENCE}
    parts = []
    if better:
        parts.append("Splitting saves " + ", ".join(f"{share:.1%} of the {name}" for name, share in better.items()) + ".")
    if worse:
        parts.append("It costs " + ", ".join(f"{-share:.1%} of the {name}" for name, share in worse.items()) + ".")
    same = [share for share in whole.values() if abs(share) <= NO_DIFFERENCE]
    if same:
        parts.append(
            f"In {len(same)} of {len(whole)} comparisons the difference is at most {NO_DIFFERENCE:.0%} "
            f"(the change is {-max(same):+.1%} to {-min(same):+.1%}; one seed each)."
        )
    reads = [share for name, share in saved.items() if "read part" in name]
    if reads:
        parts.append(f"The read part of TTFT changes by {-max(reads):+.0%} to {-min(reads):+.0%}.")
    if better and not worse:
        parts.append(f"It is better somewhere, and nowhere worse by more than {NO_DIFFERENCE:.0%}.")
    elif not better:
        parts.append("It is not worth its complication here: reads are a small part of TTFT, and queues are even already.")
    return " ".join(parts)


BEYOND: Sequence[Experiment] = (
    Experiment("split", "Split reads against one path", _cases, _split),
    *(RESIDENT, TTFT_TAIL, ELASTIC),
)
"""Questions beyond the paper."""
