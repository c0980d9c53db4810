"""Small random clusters and workloads for the simulator, and runs of them that are recorded and watched."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast
from unittest import mock

from hypothesis import strategies as st

from dualpath.costmodel.timing import DecodeTime, PrefillTime
from dualpath.kvcache.layout import BlockGeometry
from dualpath.scheduling.batching import Batching, Chunk, Ready
from dualpath.scheduling.central import CentralScheduler
from dualpath.scheduling.limits import SchedulerLimits
from dualpath.scheduling.log import Call, RecordingScheduler, decode
from dualpath.settings import Placement, ReadSidePolicy
from dualpath.sim.kernel import Kernel
from dualpath.sim.links import Link
from dualpath.sim.nodes import DecodeEngine, PrefillEngine
from dualpath.sim.request import SimRequest
from dualpath.sim.run import SimProgress, SimResult, Simulation, SimWorkload
from dualpath.sim.spec import ClusterSpec, DecodeSpec, Latencies, NodeSpec, PrefillSpec
from dualpath.types import RequestId
from dualpath.workload.arrivals import arrivals
from dualpath.workload.trajectory import Trajectory, Turn
from dualpath.workload.turn_table import TurnTable

UNLIMITED = 1 << 30
LONGEST_RUN_S = 20_000.0
"""No case takes so long unless it is stuck."""
WATCH_INTERVAL_S = 0.171
ROUNDING = 1e-9
FEW = st.sampled_from([1, 1, 2, 3])


@dataclass(frozen=True)
class Case:
    """A cluster and what it has to do."""

    spec: ClusterSpec
    workload: SimWorkload


@st.composite
def trajectories(draw: st.DrawFn, block: int) -> Trajectory:
    """Up to five turns: contexts that grow or are cut, whole blocks and odd ends, outputs of no or one token, reasoning."""
    turns: list[Turn] = []
    history = 0
    for _ in range(draw(st.integers(1, 5))):
        kept = draw(st.one_of(st.none(), st.integers(0, history), st.just(history // block * block)))
        start = history if kept is None else kept
        whole = st.integers(1, 4).map(lambda blocks: blocks * block)
        appended = draw(st.one_of(st.integers(0 if start else 1, 3 * block), whole))
        output = draw(st.one_of(st.sampled_from([0, 1, 2]), st.integers(1, 6 * block), whole))
        reasoning = draw(st.one_of(st.just(0), st.integers(0, output)))
        turns.append(Turn(appended, output, draw(st.sampled_from([0.0, 0.0, 0.3, 2.0])), reasoning, kept))
        history = start + appended + output - reasoning
    return Trajectory(f"t{len(turns)}", tuple(turns))


@st.composite
def workloads(draw: st.DrawFn, block: int, crowded: bool) -> SimWorkload:
    """Up to twelve agents, some alike, all at once or arriving at random."""
    found = draw(st.lists(trajectories(block), min_size=1, max_size=1 if crowded else 6))
    found += draw(st.lists(st.sampled_from(found), min_size=4 if crowded else 0, max_size=6))
    rate = None if crowded else draw(st.sampled_from([None, 0.5, 5.0]))
    times = arrivals(len(found), rate, random.Random(draw(st.integers(0, 99))))
    return SimWorkload([one.named(f"a{number}") for number, one in enumerate(found)], times, draw(st.booleans()))


@st.composite
def cases(draw: st.DrawFn, *, may_refuse: bool = False, crowded: bool = False, transfers: bool | None = None) -> Case:
    """A workload on a cluster that holds each of its turns alone, unless it ``may_refuse`` some.

    ``crowded``: agents that do the same meet on one decode engine whose pool is just large enough for one of them.
    """
    block = draw(st.sampled_from([1, 2, 4, 8]))
    geometry = BlockGeometry(draw(st.integers(1, 4)), block, draw(st.integers(1, 50)))
    workload = draw(workloads(block, crowded))
    longest = geometry.blocks(max(map(longest_context, workload.trajectories))) * block
    least = 1 if may_refuse else longest
    read_side = draw(st.sampled_from(ReadSidePolicy))
    any_side = read_side is not ReadSidePolicy.PREFILL
    spec = ClusterSpec(
        system="random",
        geometry=geometry,
        node=draw(nodes(geometry.token_bytes, st.just(1) if crowded else FEW)),
        prefill=draw(prefills(geometry, least, longest, st.integers(0 if any_side else least, 3 * longest))),
        decode=draw(decodes(geometry, least, longest, crowded)),
        limits=draw(limits(block, read_side)),
        latencies=draw(st.sampled_from([Latencies(), Latencies(0.01, 0.002, 0.003, 0.02)])),
        transfers=draw(st.booleans()) if transfers is None else transfers,
        fetch_interval_s=draw(st.sampled_from([0.02, 0.05, 0.3])),
        write_batch_tokens=draw(st.sampled_from([UNLIMITED, block, 3 * block])),
    )
    return Case(spec, workload)


def longest_context(trajectory: Trajectory) -> int:
    """Most tokens of any turn, the last one of which has no KV."""
    return max(step.prompt_tokens + step.turn.requested_tokens for step in trajectory.steps())


@st.composite
def nodes(draw: st.DrawFn, token_bytes: int, engines: st.SearchStrategy[int]) -> NodeSpec:
    """Links that carry from hundreds (storage) to many thousands of tokens a second."""
    storage = st.sampled_from([300.0, 3e3, 1e5]).map(lambda tokens: tokens * token_bytes)
    copies = st.sampled_from([3e3, 1e4, 1e5]).map(lambda tokens: tokens * token_bytes)
    return NodeSpec(draw(engines), draw(storage), draw(storage), draw(copies), draw(copies))


@st.composite
def prefills(
    draw: st.DrawFn, geometry: BlockGeometry, least: int, longest: int, buffers: st.SearchStrategy[int]
) -> PrefillSpec:
    """Chunked by quota, by tokens, by rows or not at all."""
    layerwise = draw(st.booleans())
    row_bytes = geometry.token_layer_bytes if layerwise else geometry.token_bytes
    rows = draw(st.integers(least, 3 * longest))
    time = PrefillTime(geometry.layers, 1e-4, 1e-6, floor_s=draw(st.sampled_from([0.0, 1e-3])), step_s=1e-3)
    return PrefillSpec(
        nodes=draw(FEW),
        step_nodes=draw(FEW),
        attention_time=time,
        step_time=time,
        layerwise=layerwise,
        quota_s=draw(st.sampled_from([1e9, 1e-3, 1e-2])),
        max_batch_tokens=draw(st.one_of(st.just(UNLIMITED), st.integers(1, longest))),
        kv_bytes=float(rows * row_bytes),
        buffer_tokens=draw(buffers),
        collective_bytes=draw(st.sampled_from([0.0, 100.0, 1e5])),
    )


@st.composite
def decodes(draw: st.DrawFn, geometry: BlockGeometry, least: int, longest: int, crowded: bool) -> DecodeSpec:
    """Pools so small that requests have to leave for others' growth."""
    blocks = geometry.blocks(least) * 11 // 10 + 2
    return DecodeSpec(
        nodes=1 if crowded else draw(FEW),
        step_nodes=draw(FEW),
        time=DecodeTime(geometry.layers, 1e-3, 1e-4, 1e-5, 1e-4, draw(st.sampled_from([0.0, 5e-3]))),
        kv_blocks=blocks + (0 if crowded else draw(st.sampled_from([0, 1, geometry.blocks(longest)]))),
        buffer_tokens=draw(st.integers(least, 3 * longest)),
        max_batch=draw(st.sampled_from([UNLIMITED, UNLIMITED if crowded else 1, 3])),
        collective_bytes=draw(st.sampled_from([0.0, 100.0, 1e5])),
    )


@st.composite
def limits(draw: st.DrawFn, block: int, read_side: ReadSidePolicy) -> SchedulerLimits:
    """Any placement, with α and β that matter."""
    return SchedulerLimits(
        block_tokens=block,
        storage_tokens_per_s=draw(st.sampled_from([30.0, 3e3])),
        prefill_tokens_per_s=draw(st.sampled_from([30.0, 3e3])),
        read_side=read_side,
        placement=draw(st.sampled_from(Placement)),
        alpha_s=draw(st.sampled_from([0.0, 0.1, 3.0])),
        beta_s=draw(st.sampled_from([0.0, 0.1, 5.0])),
        decode_free_watermark=draw(st.sampled_from([0.0, 0.05])),
        recompute_when_faster=draw(st.sampled_from([False, False, True])),
    )


def plain_cluster(
    *,
    engines: int = 1,
    prefill_nodes: int = 1,
    decode_nodes: int = 1,
    layerwise: bool = True,
    transfers: bool = True,
    kv_blocks: int = 100,
    prefill_buffer: int = 1000,
    decode_buffer: int = 1000,
    latencies: Latencies | None = None,
    **scheduling: Any,
) -> ClusterSpec:
    """A cluster to compute by hand: 10 bytes a token in 2 layers, blocks of 4 tokens, no limits on batches.

    A new token takes 0.1 s of attention, and nothing else takes time; a decode step takes 0.1 s and 0.1 s for each request of
    the busiest engine. Storage reads 10 tokens a second and is written with 20, a compute NIC carries 100 each way.
    """
    geometry = BlockGeometry(layers=2, block_tokens=4, token_layer_bytes=5)
    prefill_time = PrefillTime(2, token_s=0.05, pair_s=0.0)
    return ClusterSpec(
        system="plain",
        geometry=geometry,
        node=NodeSpec(engines, snic_read=100.0, snic_write=200.0, cnic=1000.0, dram=1e12),
        prefill=PrefillSpec(
            nodes=prefill_nodes,
            step_nodes=prefill_nodes,
            attention_time=prefill_time,
            step_time=prefill_time,
            layerwise=layerwise,
            quota_s=1e9,
            max_batch_tokens=UNLIMITED,
            kv_bytes=1e9,
            buffer_tokens=prefill_buffer,
        ),
        decode=DecodeSpec(decode_nodes, decode_nodes, DecodeTime(2, 0.05, 0.05), kv_blocks, decode_buffer),
        limits=SchedulerLimits(4, 10.0, 10.0, **{"decode_free_watermark": 0.0, "beta_s": 1e6, **scheduling}),
        latencies=latencies or Latencies(),
        transfers=transfers,
    )


@dataclass
class Run:
    """A finished run: what came out, what the scheduler was told and decided, and every chunk that was computed.

    ``restarted`` are the attempts that had to leave, by their ids, with the tokens that each had generated.
    """

    case: Case
    simulation: Simulation
    result: SimResult
    lines: list[str]
    chunks: list[Chunk]
    restarted: dict[RequestId, int]
    calls: list[Call] = field(init=False)

    def __post_init__(self) -> None:
        self.calls = [decode(line) for line in self.lines]

    def links(self) -> list[Link]:
        return links_of(self.simulation)

    def prefill_engines(self) -> list[PrefillEngine]:
        return [engine for group in self.simulation.cluster.prefill_groups for engine in group.engines]

    def decode_engines(self) -> list[DecodeEngine]:
        return [engine for group in self.simulation.cluster.decode_groups for engine in group.engines]


def links_of(simulation: Simulation) -> list[Link]:
    """Every link and memory of the cluster."""
    cluster = simulation.cluster
    found = [link for node in cluster.nodes for link in (node.snic_read, node.snic_write, node.dram)]
    nics = [engine.cnic for node in cluster.nodes for engine in node.engines]
    return found + [link for nic in nics for link in (nic.read, nic.write)]


def posted_bytes(link: Link) -> float:
    """All KV bytes that were ever given to ``link``."""
    return link.kv_bytes(math.inf)


class Watch:
    """Looks at a running simulation now and then: no time goes back, no link and no memory is ever over its capacity."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._links = links_of(simulation)
        self._before = [(0.0, 0.0)] * len(self._links)
        self._look(None)

    def _look(self, _: None) -> None:
        simulation, now_s = self._simulation, self._simulation.kernel.now_s
        for number, link in enumerate(self._links):
            before_s, before = self._before[number]
            carried = link.carried_bytes(now_s)
            most = link.rate * (now_s - before_s)
            assert -ROUNDING * link.rate <= carried - before <= most + ROUNDING * (link.rate + carried), link.name
            self._before[number] = now_s, carried
        for node in simulation.cluster.nodes:
            assert 0 <= node.buffer.used <= node.buffer.capacity
        for group in simulation.cluster.decode_groups:
            for engine in group.engines:
                assert 0 <= engine.used_blocks <= simulation.spec.decode.kv_blocks
                assert len(engine.running) <= engine.admitted <= simulation.spec.decode.max_batch
                assert engine.promised_blocks >= 0
                assert engine.unread_tokens >= 0
        if simulation.progress.agents_done < simulation.progress.agents:
            simulation.kernel.after(WATCH_INTERVAL_S, self._look)


def run(case: Case, *, watched: bool = False) -> Run:
    """Run a case to its end, or give it up when it takes so long that it must be stuck."""
    lines: list[str] = []
    chunks: list[Chunk] = []
    restarted: dict[RequestId, int] = {}

    def recording(spec: ClusterSpec, kernel: Kernel) -> CentralScheduler:
        return cast(CentralScheduler, RecordingScheduler(spec.limits, kernel, lines.append))

    def too_long(progress: SimProgress, _: TurnTable) -> bool:
        return progress.virtual_s > LONGEST_RUN_S

    pack, restart = Batching.pack, SimRequest.restart

    def packed(batching: Batching, ready: Iterable[Ready]) -> list[Chunk]:
        found = pack(batching, ready)
        chunks.extend(found)
        return found

    def restarting(request: SimRequest, request_id: RequestId, generated: int, block_tokens: int) -> None:
        restarted[request.request_id] = generated
        restart(request, request_id, generated, block_tokens)

    simulation = Simulation(case.spec, case.workload, scheduler=recording, stop=too_long)
    if watched:
        Watch(simulation)
    with mock.patch.object(Batching, "pack", packed), mock.patch.object(SimRequest, "restart", restarting):
        result = simulation.run()
    return Run(case, simulation, result, lines, chunks, restarted)
