"""Agents replayed through a cluster: offline (all at once) or online (Poisson arrivals), stamped turn by turn (paper A.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dualpath.clock import Clock
from dualpath.control.turns import ClusterStatus, EngineStatus, SamplingParams, TurnClient, TurnFinished
from dualpath.errors import DualPathError
from dualpath.types import Role
from dualpath.workload.agent import Agent, PromptSpec
from dualpath.workload.arrivals import arrivals
from dualpath.workload.randomness import Random
from dualpath.workload.report import NodeCounters
from dualpath.workload.timeline import StageDurations, TurnId, TurnRecorder, TurnTimeline

SAMPLE_INTERVAL_S = 0.25


@dataclass(slots=True)
class Progress:
    """How far a replay is, for whoever shows it. ``snic_bytes_per_s`` is each node's reading over the last sample."""

    agents: int
    agents_done: int = 0
    turns_done: int = 0
    turns_failed: int = 0
    elapsed_s: float = 0.0
    snic_bytes_per_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """``arrival_rate`` in agents a second (None: all at once); ``gaps`` keeps the recorded pauses between turns."""

    arrival_rate: float | None = None
    gaps: bool = False
    turn_timeout_s: float | None = None


class NodeMeter:
    """Adds up what nodes did, over all incarnations of their engines, from status reports."""

    def __init__(self, baseline: ClusterStatus) -> None:
        self._roles: dict[str, Role] = {}
        self._first: dict[str, EngineStatus] = {}
        self._last: dict[str, EngineStatus] = {}
        self.samples: dict[str, list[tuple[float, int]]] = {}
        self.update(baseline)
        self._first = dict(self._last)

    def update(self, status: ClusterStatus) -> None:
        """Take a report in."""
        for engine in status.engines:
            self._roles[engine.node] = Role(engine.role)
            self._last[engine.name] = engine

    def sample(self, now_s: float) -> dict[str, int]:
        """Note the bytes that each node has read so far."""
        read = {node: counters.storage_read_bytes for node, counters in self._by_node(None).items()}
        for node, total in read.items():
            self.samples.setdefault(node, []).append((now_s, total))
        return read

    def nodes(self, bandwidth: float | None) -> list[NodeCounters]:
        """What each node did since the baseline."""
        return list(self._by_node(bandwidth).values())

    def _by_node(self, bandwidth: float | None) -> dict[str, NodeCounters]:
        engines: dict[str, list[str]] = {node: [] for node in sorted(self._roles)}
        for name, engine in self._last.items():
            engines[engine.node].append(name)
        return {node: self._counters(node, names, bandwidth) for node, names in engines.items()}

    def _counters(self, node: str, names: Sequence[str], bandwidth: float | None) -> NodeCounters:
        def since_baseline(counter: str) -> Any:
            before = (getattr(self._first[name], counter) for name in names if name in self._first)
            return sum(getattr(self._last[name], counter) for name in names) - sum(before)

        return NodeCounters(
            node,
            self._roles[node],
            since_baseline("storage_read_bytes"),
            since_baseline("storage_write_bytes"),
            bandwidth,
            since_baseline("attention_s"),
            since_baseline("transfer_s"),
            since_baseline("exposed_s"),
            max((self._last[name].peak_kv_bytes for name in names), default=0),
        )


class ReplayDriver:
    """Drives agents through one cluster and records every turn."""

    def __init__(
        self,
        client: TurnClient,
        clock: Clock,
        options: ReplayOptions,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._options = options
        self._on_progress = on_progress
        self.turns: list[TurnTimeline] = []
        self.wall_s = 0.0

    async def run(self, agents: Sequence[Agent], random: Random) -> NodeMeter:
        """Replay all agents to their ends; what the nodes did meanwhile."""
        self.meter = NodeMeter(await self._client.status())
        self._progress = Progress(len(agents))
        self._started_s = self._clock.now()
        watcher = asyncio.create_task(self._watch())
        delays = arrivals(len(agents), self._options.arrival_rate, random)
        try:
            await asyncio.gather(*(self._run_agent(agent, delay) for agent, delay in zip(agents, delays, strict=True)))
        finally:
            self.wall_s = self._clock.now() - self._started_s
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
        await asyncio.sleep(2 * SAMPLE_INTERVAL_S)  # engines report a little late
        await self._sample()
        return self.meter

    async def _run_agent(self, agent: Agent, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        while (spec := agent.next_turn()) is not None:
            if self._options.gaps and spec.gap_s:
                await asyncio.sleep(spec.gap_s)
            output = await self._run_turn(agent, spec)
            if output is None:
                break
            agent.completed(output)
        self._progress.agents_done += 1

    async def _run_turn(self, agent: Agent, spec: PromptSpec) -> list[int] | None:
        """One turn's output; None if it failed."""
        now = self._clock.now
        recorder = TurnRecorder(TurnId(agent.trajectory.id, spec.turn), len(spec.tokens), spec.hit_tokens, now())
        sampling = SamplingParams(max_tokens=spec.output_tokens, ignore_eos=True)
        try:
            async for event in self._client.generate(spec.tokens, sampling, timeout_s=self._options.turn_timeout_s):
                if isinstance(event, TurnFinished):
                    self.turns.append(recorder.finished(now(), event.cached_tokens, _stages(event)))
                else:
                    recorder.token(event.token, now())
        except DualPathError as error:
            self.turns.append(recorder.failed(now(), str(error)))
            self._progress.turns_failed += 1
            return None
        self._progress.turns_done += 1
        return recorder.tokens

    async def _watch(self) -> None:
        while True:
            await self._sample()
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    async def _sample(self) -> None:
        try:
            self.meter.update(await self._client.status())
        except DualPathError:  # the scheduler is just restarting
            return
        self._progress.elapsed_s = self._clock.now() - self._started_s
        self.meter.sample(self._progress.elapsed_s)
        for node, samples in self.meter.samples.items():
            if len(samples) > 1:
                (t0, b0), (t1, b1) = samples[-2:]
                self._progress.snic_bytes_per_s[node] = (b1 - b0) / max(t1 - t0, 1e-6)
        if self._on_progress is not None:
            self._on_progress(self._progress)


def _stages(event: TurnFinished) -> StageDurations:
    return StageDurations(event.scheduling_s, event.allocation_s, event.read_s, event.prefill_s)
