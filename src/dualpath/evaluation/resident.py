"""A question beyond the paper: prefill on the decode engine that still holds the context, which needs no reload
(paper section 7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from dualpath.costmodel.calibration import DEFAULT
from dualpath.evaluation.experiment import Experiment
from dualpath.evaluation.lab import Case, Lab
from dualpath.evaluation.outcome import Outcome
from dualpath.evaluation.section import Picture, Section, Series, Value


class System(NamedTuple):
    """What is compared: a policy, and whether prefill engines gather the context of a request in every layer, as calibrated."""

    name: str
    policy: str
    gathers: bool = True


DUALPATH = System("DualPath", "")
GATHERED = System("resident, gathered", "resident")
MIXED = System("resident, in place on decode engines only", "resident-in-place")
CONTROL = System("DualPath, in place", "", gathers=False)
IN_PLACE = System("resident, in place", "resident-in-place", gathers=False)
AGAINST = {GATHERED: DUALPATH, IN_PLACE: CONTROL, MIXED: DUALPATH}
"""What each resident system is held against; only the first two differ from theirs by the reload alone."""
ALIKE = (GATHERED, IN_PLACE)
SYSTEMS = (DUALPATH, GATHERED, CONTROL, IN_PLACE, MIXED)
TPOT_LIMIT_S = 0.050
"""The paper's objective."""
NO_DIFFERENCE = 0.02
"""Of the JCT: less is called even."""
_LARGE_POOL = replace(DEFAULT, decode_kv_bytes=19e9)
"""Stated for GPUs of 80 GB; one of 141 GB has 61 GB more, 80 GB in all."""


class Setting(NamedTuple):
    """What the policies are compared at."""

    dataset: str
    large_pool: bool
    agents: int

    @property
    def cluster(self) -> str:
        """For people."""
        return f"{self.dataset}, {'H200, 80' if self.large_pool else 'H800, 26'} GB of KV a GPU"

    @property
    def text(self) -> str:
        return f"{self.agents:,} agents, {self.cluster}"


SETTINGS = (
    *(Setting("64K", False, agents) for agents in (128, 512, 2048)),
    *(Setting("64K", True, agents) for agents in (128, 512, 2048)),
    *(Setting("32K", False, agents) for agents in (512, 2048)),
)


def _case(setting: Setting, system: System) -> Case:
    free = _LARGE_POOL if setting.large_pool else DEFAULT
    if not system.gathers:
        free = replace(free, request_context_s=0.0)
    hardware = "h200" if setting.large_pool else "h800"
    return Case(hardware=hardware, dataset=setting.dataset, agents=setting.agents, policy=system.policy, free=free)


def _cases() -> list[Case]:
    return [_case(setting, system) for setting in SETTINGS for system in SYSTEMS]


def _resident(lab: Lab) -> Section:
    outcomes = lab.outcomes(_cases())
    found = {(setting, system): outcomes[_case(setting, system)] for setting in SETTINGS for system in SYSTEMS}
    values: list[Value] = []
    for (setting, system), outcome in found.items():
        name = f"{system.name}, {setting.text}"
        values += [
            Value(f"JCT {name}", "s", outcome.jct_s),
            Value(f"TTFT mean {name}", "s", outcome.ttft_s.mean or 0.0),
            Value(f"TPOT mean {name}", "ms", 1e3 * _tpot_s(outcome)),
            Value(f"TPOT p99 {name}", "ms", 1e3 * (outcome.tpot_s.p99 or 0.0)),
        ]
        if system in AGAINST:
            values.append(Value(f"reads saved {name}", "%", 100 * reads_saved(found[setting, AGAINST[system]], outcome)))
    return Section(
        "resident",
        "Append-prefill on the decode engine that still holds the context",
        [
            "A decode engine keeps an ended turn's KV in the HBM that nobody needs (least recently used goes first); if the "
            "agent's next turn finds it there, the new tokens are computed on that engine, in chunks that ride along with the "
            "decode steps of its whole group, without a storage read or a prefill engine. Otherwise the turn goes DualPath's "
            "way. DS 660B, 2P4D, everyone at once, no tool latency (which is kind to residents: contexts come back at once).",
            "What attention of a chunk takes on a decode engine is not known, and much hangs on it: prefill engines have a "
            "calibrated least time that grows with a request's whole context. Two worlds bracket it: gathered, in which decode "
            "engines have it too, and in place, in which nobody has it, DualPath's prefill engines neither. Within each only "
            "the reload differs. A third, in which prefill engines have it and decode engines do not, changes two things at "
            "once: what it gains is not the reload's alone. Chunks are of the size, of "
            "64 to 1,024 tokens, that suited each best at 128 and 512 agents; DualPath was given no such choice.",
            *_verdicts(found),
        ],
        values,
        [_picture(found, cluster) for cluster in dict.fromkeys(setting.cluster for setting in SETTINGS)],
    )


Found = Mapping[tuple[Setting, System], Outcome]


def _tpot_s(outcome: Outcome) -> float:
    return outcome.tpot_s.mean or 0.0


def reads_saved(reloading: Outcome, resident: Outcome) -> float:
    """Share of the bytes that are read from storage without residents and not with them."""
    before, after = (sum(node.storage_read_bytes for node in one.nodes) for one in (reloading, resident))
    return 1 - after / before if before else 0.0


def _change(found: Found, setting: Setting, system: System) -> float:
    """Of the JCT, against the system that it is held against."""
    return found[setting, system].jct_s / found[setting, AGAINST[system]].jct_s - 1


def _verdicts(found: Found) -> list[str]:
    """Who wins where, what it does to TPOT, and what the hardware does meanwhile; all from the outcomes."""
    texts = []
    for system, other in AGAINST.items():
        parts: dict[str, list[str]] = {"wins": [], "loses": [], "is even": []}
        for setting in SETTINGS:
            change = _change(found, setting, system)
            key = "is even" if abs(change) <= NO_DIFFERENCE else ("wins" if change < 0 else "loses")
            tpot_ms = 1e3 * _tpot_s(found[setting, system])
            saved = reads_saved(found[setting, other], found[setting, system])
            parts[key].append(f"{setting.text} (JCT {change:+.0%}, TPOT {tpot_ms:.0f} ms, {saved:.0%} of reads saved)")
        sentences = [f"{key} at {'; '.join(where)}" for key, where in parts.items() if where]
        name = system.name[0].upper() + system.name[1:]
        texts.append(f"{name}, against {other.name}: {'. It '.join(sentences)}.")
    return [*texts, _control(found), _objective(found), _idle(found)]


def _control(found: Found) -> str:
    """How much of the third comparison is cheaper attention."""
    parts = [
        f"{found[setting, CONTROL].jct_s / found[setting, DUALPATH].jct_s - 1:+.0%} ({setting.text})" for setting in SETTINGS
    ]
    return f"The control: without the least time DualPath alone, reloads and all, has a JCT of {', '.join(parts)}."


def _objective(found: Found) -> str:
    broken = {system: [s for s in SETTINGS if _tpot_s(found[s, system]) > TPOT_LIMIT_S] for system in SYSTEMS}
    counts = "; ".join(f"{system.name}: {len(where)}" for system, where in broken.items())
    good = [
        f"{setting.text} ({system.name})"
        for setting in SETTINGS
        for system in ALIKE
        if _change(found, setting, system) < -NO_DIFFERENCE and _tpot_s(found[setting, system]) <= TPOT_LIMIT_S
    ]
    clean = f"Faster within it by sparing the reload: {'; '.join(good)}." if good else "Nowhere is one faster within it."
    return f"Mean TPOT passes {TPOT_LIMIT_S * 1e3:.0f} ms in so many of {len(SETTINGS)} settings: {counts}. {clean}"


def _idle(found: Found) -> str:
    idle = [f"{1 - found[setting, IN_PLACE].prefill_busy:.0%} ({setting.text})" for setting in SETTINGS]
    return (
        f"While contexts stay, the prefill nodes do nothing: idle, in place, {', '.join(idle)} of the time. A cluster "
        "built for resident turns would have fewer of them, which this comparison at equal roles does not credit."
    )


def _picture(found: Found, cluster: str) -> Picture:
    settings = [setting for setting in SETTINGS if setting.cluster == cluster]
    series = [
        Series(system.name, [(f"{setting.agents:,}", found[setting, system].jct_s) for setting in settings])
        for system in SYSTEMS
    ]
    return Picture(f"JCT, {cluster}", "agents", "JCT (s)", series)


RESIDENT = Experiment("resident", "Prefill on the decode engine that holds the context", _cases, _resident)
