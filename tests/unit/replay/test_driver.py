"""The replay driver against a scripted cluster, and what it adds up from status reports."""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from dualpath.clock import MonotonicClock
from dualpath.control.turns import ClusterStatus, EngineStatus, SamplingParams, TokenEvent, TurnEvent, TurnFinished
from dualpath.errors import DeadlineExceeded, RequestFailed
from dualpath.replay import driver as driver_module
from dualpath.replay.driver import NodeMeter, Progress, ReplayDriver, ReplayOptions
from dualpath.types import Role
from dualpath.workload.agent import Agent
from dualpath.workload.arrivals import arrivals
from dualpath.workload.trajectory import Trajectory, Turn


@pytest.fixture(autouse=True)
def quick_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "SAMPLE_INTERVAL_S", 0.01)


def engine(name: str, read: int = 0, **counters: Any) -> EngineStatus:
    role = name.split("-")[0]
    return EngineStatus(name=name, role=role, node=f"{role}-node", storage_read_bytes=read, **counters)


class ScriptedClient:
    """Answers every turn with the number of its prompt's tokens, again and again; some turns fail."""

    max_context_tokens = 1000

    def __init__(self, failing: frozenset[int] = frozenset(), delay_s: float = 0.0) -> None:
        self._failing = failing
        self._delay_s = delay_s
        self.turns: list[tuple[list[int], SamplingParams, float | None]] = []
        self.running = self.most_running = 0
        self.read_bytes = 0
        self.silent = False

    async def generate(
        self, prompt: Sequence[int], sampling: SamplingParams, *, timeout_s: float | None = None
    ) -> AsyncGenerator[TurnEvent, None]:
        number = len(self.turns)
        self.turns.append((list(prompt), sampling, timeout_s))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self._delay_s)
            for position in range(sampling.max_tokens):
                if number in self._failing and position == 1:
                    raise RequestFailed("gave up")
                yield TokenEvent(position, len(prompt) % 100)
            self.read_bytes += 1000
            yield TurnFinished(
                finish_reason="length",
                prompt_tokens=len(prompt),
                output_tokens=sampling.max_tokens,
                cached_tokens=number,
                scheduling_s=0.1,
                allocation_s=0.2,
                read_s=0.3,
                prefill_s=0.4,
            )
        finally:
            self.running -= 1

    async def status(self) -> ClusterStatus:
        if self.silent:
            raise DeadlineExceeded("no answer")
        return ClusterStatus(engines=(engine("prefill-0", 500 + self.read_bytes),))


def agents(count: int, *turns: Turn) -> list[Agent]:
    return [Agent(Trajectory(f"agent-{n}", turns), range(100), random.Random(n)) for n in range(count)]


def replay(
    client: ScriptedClient, all_agents: list[Agent], options: ReplayOptions | None = None, seen: list[Progress] | None = None
) -> tuple[ReplayDriver, NodeMeter]:
    driver = ReplayDriver(client, MonotonicClock(), options or ReplayOptions(), None if seen is None else seen.append)
    return driver, asyncio.run(driver.run(all_agents, random.Random(0)))


def test_every_turn_sends_its_context_and_is_recorded() -> None:
    client = ScriptedClient()
    driver, meter = replay(client, agents(1, Turn(10, 3), Turn(5, 2)))
    (first, sampling, _), (second, _, _) = client.turns
    assert (len(first), sampling.max_tokens, sampling.ignore_eos) == (10, 3, True)
    assert second == [*first, 10, 10, 10, *second[13:]]
    assert len(second) == 18
    assert [(turn.id.agent, turn.id.turn, turn.prompt_tokens, turn.output_tokens) for turn in driver.turns] == [
        ("agent-0", 0, 10, 3),
        ("agent-0", 1, 18, 2),
    ]
    assert [turn.cached_tokens for turn in driver.turns] == [0, 1]
    assert driver.turns[1].hit_tokens == 12  # the last generated token has no KV
    assert driver.turns[0].stages.read_s == 0.3
    assert all(turn.completed and turn.ttft_s is not None for turn in driver.turns)
    assert meter.nodes(None)[0].storage_read_bytes == 2000


def test_agents_run_side_by_side_and_a_failed_turn_ends_its_agent_only() -> None:
    client = ScriptedClient(failing=frozenset({1}), delay_s=0.02)
    seen: list[Progress] = []
    driver, _ = replay(client, agents(3, Turn(10, 3), Turn(5, 2)), seen=seen)
    assert client.most_running == 3
    failed = [turn for turn in driver.turns if not turn.completed]
    assert [(turn.id.agent, turn.error, turn.output_tokens) for turn in failed] == [("agent-1", "gave up", 1)]
    assert len(driver.turns) == 5
    last = seen[-1]
    assert (last.agents, last.agents_done, last.turns_done, last.turns_failed) == (3, 3, 4, 1)
    assert last.elapsed_s >= driver.wall_s > 0.04


def test_turns_get_the_timeout_that_was_asked_for() -> None:
    client = ScriptedClient()
    replay(client, agents(1, Turn(4, 1)), ReplayOptions(turn_timeout_s=7.5))
    assert client.turns[0][2] == 7.5


def test_recorded_gaps_are_kept_only_if_asked_for() -> None:
    turns = (Turn(4, 1), Turn(4, 1, gap_s=0.2))
    with_gaps, _ = replay(ScriptedClient(), agents(1, *turns), ReplayOptions(gaps=True))
    assert with_gaps.turns[1].submitted_s - with_gaps.turns[0].finished_s >= 0.2
    without, _ = replay(ScriptedClient(), agents(1, *turns))
    assert without.turns[1].submitted_s - without.turns[0].finished_s < 0.2


def test_agents_arrive_when_the_workload_says() -> None:
    arrived, _ = replay(ScriptedClient(), agents(5, Turn(4, 1)), ReplayOptions(arrival_rate=50.0))
    starts = sorted(turn.submitted_s for turn in arrived.turns)
    assert starts[-1] - starts[0] >= arrivals(5, 50.0, random.Random(0))[-1] - 1e-3


def test_a_scheduler_that_does_not_answer_for_a_while_is_no_failure() -> None:
    client = ScriptedClient(delay_s=0.1)
    driver = ReplayDriver(client, MonotonicClock(), ReplayOptions())

    async def run() -> NodeMeter:
        running = asyncio.create_task(driver.run(agents(1, Turn(4, 1), Turn(4, 1)), random.Random(0)))
        await asyncio.sleep(0.02)
        client.silent = True
        await asyncio.sleep(0.1)
        client.silent = False
        return await running

    meter = asyncio.run(run())
    assert meter.nodes(None)[0].storage_read_bytes == 2000
    assert all(turn.completed for turn in driver.turns)


# --- NodeMeter --------------------------------------------------------------------------------------------------------


def test_nodes_count_from_the_baseline_over_all_incarnations_of_their_engines() -> None:
    meter = NodeMeter(ClusterStatus(engines=(engine("prefill-0.0", 100, storage_write_bytes=10, attention_s=1.0),)))
    meter.update(ClusterStatus(engines=(engine("prefill-0.0", 150, storage_write_bytes=30, attention_s=1.5),)))
    # It died; its successor counts from nothing, and a second engine joins the node.
    meter.update(ClusterStatus(engines=(engine("prefill-0.1", 7, attention_s=0.25), engine("prefill-1.0", 1000))))
    (node,) = meter.nodes(64.0)
    assert (node.name, node.role, node.storage_bytes_per_s) == ("prefill-node", Role.PREFILL, 64.0)
    assert (node.storage_read_bytes, node.storage_write_bytes) == (50 + 7 + 1000, 20)
    assert node.attention_s == pytest.approx(0.75)


def test_samples_are_totals_of_each_node_by_time() -> None:
    meter = NodeMeter(ClusterStatus(engines=(engine("prefill-0", 100), engine("decode-0", 0))))
    assert meter.sample(0.0) == {"decode-node": 0, "prefill-node": 0}
    meter.update(ClusterStatus(engines=(engine("prefill-0", 160), engine("decode-0", 30))))
    assert meter.sample(0.5) == {"decode-node": 30, "prefill-node": 60}
    assert meter.samples == {"decode-node": [(0.0, 0), (0.5, 30)], "prefill-node": [(0.0, 0), (0.5, 60)]}
