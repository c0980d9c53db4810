"""Simulated cases with their outcomes, each run once however many experiments ask for it, on several processes."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import lru_cache
from multiprocessing import get_context

from dualpath.costmodel.calibration import DEFAULT, Calibration
from dualpath.costmodel.catalogue import MODELS, SIZES, node_named
from dualpath.costmodel.serving import Placement, ServedModel, served
from dualpath.errors import SettingsError
from dualpath.evaluation.outcome import Outcome, Window, outcome_of
from dualpath.evaluation.timed_scheduler import SchedulerTimer
from dualpath.evaluation.trace_files import FILE, trace
from dualpath.knobs import with_knobs
from dualpath.scheduling.baselines import apply_system
from dualpath.settings import Settings
from dualpath.sim.presets import Sheet, cluster_of, mean_turn
from dualpath.sim.run import Simulation, SimWorkload, without_collector
from dualpath.sim.spec import ClusterSpec
from dualpath.workload.agent import assigned
from dualpath.workload.arrivals import arrivals
from dualpath.workload.synthesis import synthesise
from dualpath.workload.trajectory import Trajectory, Turn

TRAJECTORIES = 500
NEW_WEIGHT = 25.0
"""Of the policy ``new-weight``: about what the attention of a new token takes against that of a cached one, times a half."""
POLICIES = ("", "resident", "resident-in-place", "new-weight")
"""Beyond the paper. ``resident``: decode engines prefill what follows the contexts they still hold, with attention as on
prefill engines; ``resident-in-place``: without what gathering the context takes there; ``new-weight``: prefill engines are
chosen by weighted tokens."""
GATHERED_CHUNK_TOKENS, IN_PLACE_CHUNK_TOKENS = 1024, 64
"""What suits resident turns best (of 64 to 1,024): a chunk gathers its whole context, so few large ones do; or nothing is
gathered, and small ones are even."""
LEAST_AGENTS = 8


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation.

    Attributes:
        model, hardware: names of the catalogue.
        prefill, decode: nodes.
        dataset: a set of Table 2, or ``file:`` and the path of a trace.
        agents: how many; ``rate`` agents a second (None: all at once).
        system: name of a system, the ladder's included.
        append_scale, output_scale: factors on the tokens that turns append and generate; cut at the set's longest context.
        gap_s: mean pause of an agent before each turn but the first (exponential), 0: none.
        until_s: virtual seconds after which to stop (None: when all agents have ended).
        window: virtual seconds in which turns have to end to count for latencies (None: all).
        quota_s, alpha_s, beta_s, buffer_bytes: as in ``dualpath simulate``.
        policy: a scheduling or engine policy beyond the paper's, see ``experiments``.
        dram_tier_bytes: sizes of a DRAM tier, of the whole cluster, to replay the turns through afterwards.
        time_scheduler: whether to measure the scheduler's own processor time.
    """

    model: str = "ds-660b"
    hardware: str = "h800"
    prefill: int = 2
    decode: int = 4
    dataset: str = "64K"
    agents: int = 2048
    rate: float | None = None
    system: str = "dualpath"
    append_scale: float = 1.0
    output_scale: float = 1.0
    gap_s: float = 0.0
    until_s: float | None = None
    window: Window | None = None
    quota_s: float = 0.3
    alpha_s: float = 3.0
    beta_s: float = 5.0
    buffer_bytes: float = 80e9
    snic_bandwidth: float | None = None
    policy: str = ""
    seed: int = 0
    free: Calibration = DEFAULT
    dram_tier_bytes: tuple[float, ...] = ()
    time_scheduler: bool = False


@dataclass(slots=True)
class Lab:
    """Runs cases, each once.

    Attributes:
        jobs: processes.
        effort: share of the agents of every case that are simulated; below 1 the results are no comparison with the paper.
        tell: is called with a line for people when a case has run.
    """

    jobs: int = 1
    effort: float = 1.0
    tell: Callable[[str], None] = lambda line: None
    _done: dict[Case, Outcome] = field(default_factory=dict)

    def outcome(self, case: Case) -> Outcome:
        """Of one case."""
        return self.outcomes([case])[case]

    def outcomes(self, cases: Iterable[Case]) -> dict[Case, Outcome]:
        """Of all of these; those not yet run are."""
        wanted = list(dict.fromkeys(cases))
        missing = sorted((case for case in wanted if case not in self._done), key=lambda case: -case.agents)
        if self.jobs > 1 and len(missing) > 1:
            with ProcessPoolExecutor(min(self.jobs, len(missing)), mp_context=get_context("spawn")) as pool:
                running = {pool.submit(run_case, self._scaled(case)): case for case in missing}
                for future in as_completed(running):
                    self._keep(running[future], future.result())
        else:
            for case in missing:
                self._keep(case, run_case(self._scaled(case)))
        return {case: self._done[case] for case in wanted}

    def _scaled(self, case: Case) -> Case:
        """The share of the case that is simulated: of its agents, and, with arrivals, of its time."""
        if self.effort == 1.0:
            return case
        return replace(
            case,
            agents=max(LEAST_AGENTS, round(case.agents * self.effort)),
            until_s=None if case.until_s is None else case.until_s * self.effort,
            window=None if case.window is None else Window(*(time_s * self.effort for time_s in case.window)),
        )

    def _keep(self, case: Case, outcome: Outcome) -> None:
        self._done[case] = outcome
        when = "all at once" if case.rate is None else f"{case.rate:g}/s"
        self.tell(
            f"{case.model} {case.prefill}P{case.decode}D {case.dataset} {case.agents} agents {when} {case.system}"
            f"{' ' + case.policy if case.policy else ''}: {outcome.turns:,} turns in {outcome.wall_s:.0f} s"
        )


def default_jobs() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def run_case(case: Case) -> Outcome:
    """Simulate one case."""
    started = time.perf_counter()
    timer = SchedulerTimer(case.time_scheduler)
    simulation = Simulation(spec_of(case), workload_of(case), scheduler=timer.scheduler, stop=_stop_at(case.until_s))
    with without_collector():
        result = simulation.run()
        wall_s = time.perf_counter() - started
        outcome = outcome_of(result, simulation.workload, case.window, simulation.spec, wall_s, case.dram_tier_bytes)
    return replace(outcome, scheduler_cpu_s=timer.cpu_s)


def _stop_at(until_s: float | None) -> Callable[..., bool] | None:
    return None if until_s is None else lambda progress, turns: bool(progress.virtual_s >= until_s)


def spec_of(case: Case) -> ClusterSpec:
    """The simulated cluster of a case."""
    node = node_named(case.hardware)
    if case.snic_bandwidth is not None:
        node = replace(node, snic_bandwidth=case.snic_bandwidth)
    placement = Placement(case.hardware, node, case.prefill, case.decode)
    model = served(case.model, MODELS[case.model], SIZES[case.model], placement, case.free)
    turn = mean_turn(_trajectories(case.dataset, case.append_scale, case.output_scale))
    sheet = Sheet(model, node, case.prefill, case.decode, turn, case.buffer_bytes, case.free)
    knobs = {"alpha_s": case.alpha_s, "beta_s": case.beta_s, "quota_s": case.quota_s}
    if case.policy == "new-weight":
        knobs["prefill_new_weight"] = NEW_WEIGHT
    settings = apply_system(with_knobs(Settings(), knobs), case.system)
    return _with_policy(cluster_of(sheet, settings), case.policy, model)


def _with_policy(spec: ClusterSpec, policy: str, model: ServedModel) -> ClusterSpec:
    if policy not in POLICIES:
        raise SettingsError(f"policy: {policy!r} is none of {', '.join(POLICIES)}")
    if not policy.startswith("resident"):
        return spec
    if policy == "resident":
        return replace(spec, resident=True, resident_chunk_tokens=GATHERED_CHUNK_TOKENS)
    in_place = replace(model.prefill, request_context_s=0.0)
    return replace(spec, resident=True, resident_chunk_tokens=IN_PLACE_CHUNK_TOKENS, resident_attention=in_place)


def workload_of(case: Case) -> SimWorkload:
    """The agents of a case."""
    trajectories = _trajectories(case.dataset, case.append_scale, case.output_scale)
    chosen = assigned(trajectories, case.agents, random.Random(case.seed))
    if case.gap_s:
        chosen = _with_gaps(chosen, case.gap_s, random.Random(case.seed + 2))
    return SimWorkload(chosen, arrivals(case.agents, case.rate, random.Random(case.seed + 1)), gaps=bool(case.gap_s))


@lru_cache(maxsize=8)
def _trajectories(dataset: str, append_scale: float, output_scale: float) -> list[Trajectory]:
    """A set of Table 2, or a trace file; scaled ones end before the first turn beyond the set's longest context."""
    if dataset.startswith(FILE):
        return trace(dataset).trajectories
    found = synthesise(dataset, TRAJECTORIES, random.Random(0))
    if append_scale == output_scale == 1.0:
        return found
    longest = int(dataset.removesuffix("K")) * 1024
    return [_scaled(one, append_scale, output_scale, longest) for one in found]


def _scaled(trajectory: Trajectory, append: float, output: float, longest: int) -> Trajectory:
    turns: list[Turn] = []
    context = 0
    for turn in trajectory.turns:
        scaled = Turn(max(1, round(turn.appended_tokens * append)), max(1, round(turn.output_tokens * output)))
        context += scaled.appended_tokens + scaled.output_tokens
        if turns and context > longest:
            break
        turns.append(scaled)
    return Trajectory(trajectory.id, tuple(turns))


def _with_gaps(trajectories: Sequence[Trajectory], mean_s: float, source: random.Random) -> list[Trajectory]:
    """Each with pauses of its own."""
    return [
        Trajectory(
            one.id,
            (one.turns[0], *(replace(turn, gap_s=source.expovariate(1 / mean_s)) for turn in one.turns[1:])),
        )
        for one in trajectories
    ]
