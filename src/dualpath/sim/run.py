"""One system's simulation: agents in, the same result as a replay's out (paper section 7)."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from dualpath.scheduling.central import CentralScheduler
from dualpath.sim.agents import SimAgent, agents_of
from dualpath.sim.cluster import SimCluster
from dualpath.sim.kernel import Kernel
from dualpath.sim.links import Link
from dualpath.sim.nodes import DecodeEngine, PrefillEngine, SimNode
from dualpath.sim.request import SimRequest
from dualpath.sim.sampler import Counter, Sampler
from dualpath.sim.spec import ClusterSpec
from dualpath.workload.report import NodeCounters, SystemResult
from dualpath.workload.trajectory import Trajectory
from dualpath.workload.turn_table import TurnTable

SLICE_S = 20.0
"""Virtual seconds between two looks at the progress."""
SchedulerFactory = Callable[[ClusterSpec, Kernel], CentralScheduler]


@dataclass(frozen=True, slots=True)
class SimWorkload:
    """What agents do: a trajectory each, when they begin, and whether recorded pauses between turns are kept.

    ``arrivals_s`` are seconds from the start, one for each trajectory.
    """

    trajectories: Sequence[Trajectory]
    arrivals_s: Sequence[float]
    gaps: bool = False

    def __post_init__(self) -> None:
        if not self.trajectories or len(self.arrivals_s) != len(self.trajectories):
            raise ValueError(f"{len(self.trajectories)} trajectories with {len(self.arrivals_s)} arrivals")


@dataclass(slots=True)
class SimProgress:
    """How far a simulation is."""

    agents: int
    agents_done: int = 0
    turns_done: int = 0
    virtual_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Balance:
    """Attention of prefill steps: when each began, and its engines' largest and mean time (Fig. 14)."""

    begin_s: Sequence[float]
    most_s: Sequence[float]
    mean_s: Sequence[float]


@dataclass(frozen=True, slots=True)
class SimResult:
    """A simulation's outcome; ``result`` is what a replay gives too.

    Attributes:
        reasons: why turns were refused, and how many for each reason.
        preempted: turns that had to start again.
        attention: of every prefill group.
        decode_busy_s, prefill_busy_s: seconds in steps, the mean over groups.
    """

    result: SystemResult
    reasons: dict[str, int]
    preempted: int
    attention: list[Balance]
    prefill_busy_s: float
    decode_busy_s: float


@dataclass(slots=True)
class Simulation:
    """A run from its first arrival until every agent has ended.

    ``scheduler`` makes the scheduler, so that a caller can record what it decides or measure its time.
    """

    spec: ClusterSpec
    workload: SimWorkload
    on_progress: Callable[[SimProgress], None] | None = None
    scheduler: SchedulerFactory = field(default=lambda spec, kernel: CentralScheduler(spec.limits, kernel))
    stop: Callable[[SimProgress, TurnTable], bool] | None = None
    """Asked now and then; True ends the run early."""
    kernel: Kernel = field(init=False)
    cluster: SimCluster = field(init=False)
    turns: TurnTable = field(init=False)
    progress: SimProgress = field(init=False)
    reasons: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.kernel = Kernel()
        scheduler = self.scheduler(self.spec, self.kernel)
        self.cluster = SimCluster(self.kernel, self.spec, scheduler, self._done, self._refused)
        self.turns = TurnTable(trajectory.id for trajectory in self.workload.trajectories)
        self.progress = SimProgress(len(self.workload.trajectories))

    def run(self) -> SimResult:
        """Simulate to the end."""
        sampler = Sampler(self.kernel, _counters(self.cluster), self._goes_on)
        agents = agents_of(self.workload.trajectories, self.spec.geometry.block_tokens)
        for agent, arrival_s in zip(agents, self.workload.arrivals_s, strict=True):
            self._send_after(agent, arrival_s)
        until_s = 0.0
        while self.kernel.run(until_s):
            until_s += SLICE_S
            self.progress.virtual_s = self.kernel.now_s
            if self.on_progress is not None:
                self.on_progress(self.progress)
            if self.stop is not None and self.stop(self.progress, self.turns):
                break
        if self.on_progress is not None:
            self.on_progress(self.progress)
        return self._outcome(sampler)

    def _goes_on(self) -> bool:
        return self.progress.agents_done < self.progress.agents

    def _send_after(self, agent: SimAgent, delay_s: float) -> None:
        """The agent sends its next turn in ``delay_s``; it reaches the scheduler a little later."""
        if self.workload.gaps:
            delay_s += agent.sizes[agent.next_turn].gap_s
        self.kernel.after(delay_s + self.spec.latencies.turn_s, self._submit, agent)

    def _submit(self, agent: SimAgent) -> None:
        number = agent.next_turn
        size = agent.sizes[number]
        request = SimRequest(
            self.cluster.new_id(),
            agent,
            number,
            size.prompt_tokens,
            size.block_hit_tokens,
            size.output_tokens,
            self.kernel.now_s - self.spec.latencies.turn_s,
        )
        self.cluster.submit(request)

    def _done(self, request: SimRequest) -> None:
        """A turn's last token is there; its agent has it a little later."""
        agent = request.agent
        size = agent.sizes[request.turn]
        sent_s, first_s, placed_s = request.sent_s, request.first_s, request.placed_s
        last_s = self.kernel.now_s
        self.turns.append(
            agent.number,
            request.turn,
            sent_s,
            first_s,
            request.second_s,
            last_s,
            last_s + self.spec.latencies.finish_s,
            size.prompt_tokens,
            size.output_tokens,
            request.reused_tokens,
            size.hit_tokens,
            placed_s - sent_s,
            request.granted_s - placed_s,
            request.read_s - request.granted_s,
            first_s - request.read_s,
        )
        self.progress.turns_done += 1
        agent.next_turn += 1
        if agent.next_turn < len(agent.sizes):
            self._send_after(agent, self.spec.latencies.finish_s)
        else:
            self.progress.agents_done += 1

    def _refused(self, request: SimRequest, reason: str) -> None:
        """No engine could ever hold the turn: its agent gives up, as in a replay."""
        size = request.agent.sizes[request.turn]
        now_s = self.kernel.now_s
        self.turns.append_failed(request.agent.number, request.turn, request.sent_s, now_s, size.prompt_tokens, size.hit_tokens)
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        self.progress.agents_done += 1

    def _outcome(self, sampler: Sampler) -> SimResult:
        cluster, now_s = self.cluster, self.kernel.now_s
        result = SystemResult(
            system=self.spec.system,
            turns=self.turns,
            nodes=[_node_counters(cluster, node, now_s) for node in cluster.nodes],
            wall_s=now_s if self._goes_on() else max(self.turns.columns.finished_s),
            block_tokens=self.spec.geometry.block_tokens,
            transfers=self.spec.transfers,
            utilisation=sampler.utilisation(),
        )
        return SimResult(
            result,
            self.reasons,
            cluster.preempted,
            [Balance(one.steps_s, one.most_attention_s, one.mean_attention_s) for one in cluster.prefill_groups],
            sum(one.busy_s for one in cluster.prefill_groups) / len(cluster.prefill_groups),
            sum(one.busy_s for one in cluster.decode_groups) / len(cluster.decode_groups),
        )


@contextmanager
def without_collector() -> Iterator[None]:
    """Turn the cyclic garbage collector off: a simulation makes no cycles, and looking for them takes half of its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def simulate(spec: ClusterSpec, workload: SimWorkload, on_progress: Callable[[SimProgress], None] | None = None) -> SimResult:
    """Run one system's simulation to its end."""
    with without_collector():
        return Simulation(spec, workload, on_progress).run()


def _counters(cluster: SimCluster) -> dict[str, Counter]:
    """Every resource's seconds at full capacity, by name."""
    counters: dict[str, Counter] = {}
    for node in cluster.nodes:
        for link in (node.snic_read, node.snic_write, node.dram, *_compute_links(node)):
            counters[link.name] = _link_seconds(link)
    for number, prefill in enumerate(cluster.prefill_groups):
        counters[f"prefill-group-{number} GPUs"] = prefill.busy_seconds
    for number, decode in enumerate(cluster.decode_groups):
        counters[f"decode-group-{number} GPUs"] = decode.busy_seconds
    return counters


def _compute_links(node: SimNode) -> list[Link]:
    return [link for engine in node.engines for link in (engine.cnic.read, engine.cnic.write)]


def _link_seconds(link: Link) -> Counter:
    return lambda now_s: link.carried_bytes(now_s) / link.rate


def _node_counters(cluster: SimCluster, node: SimNode, now_s: float) -> NodeCounters:
    """A node's counters; transfers are its engines' shares of their groups', peak KV the largest of the groups'."""
    prefill = [engine for engine in node.engines if isinstance(engine, PrefillEngine)]
    decode = [engine for engine in node.engines if isinstance(engine, DecodeEngine)]
    decode_s = sum(cluster.decode_groups[engine.group].busy_s for engine in decode)
    groups = [cluster.prefill_groups[engine.group] for engine in prefill]
    return NodeCounters(
        name=node.name,
        role=node.role,
        storage_read_bytes=round(node.snic_read.kv_bytes(now_s)),
        storage_write_bytes=round(node.snic_write.kv_bytes(now_s)),
        storage_bytes_per_s=node.snic_read.rate,
        attention_s=sum(engine.attention_s for engine in prefill) + decode_s,
        transfer_s=sum(group.transfer_s / len(group.engines) for group in groups),
        exposed_s=sum(group.exposed_s / len(group.engines) for group in groups),
        peak_kv_bytes=max((group.most_kv_rows for group in groups), default=0) * cluster.spec.prefill_row_bytes,
        cnic_read_bytes=round(sum(engine.cnic.read.kv_bytes(now_s) for engine in node.engines)),
        cnic_write_bytes=round(sum(engine.cnic.write.kv_bytes(now_s) for engine in node.engines)),
        dram_bytes=round(node.dram.kv_bytes(now_s)),
    )
