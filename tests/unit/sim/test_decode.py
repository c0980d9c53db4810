"""Decode groups by hand: who joins, grows, leaves and ends at which step, and when that is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.sim_cases import plain_cluster

from dualpath.costmodel.timing import DecodeTime
from dualpath.sim.agents import SimAgent
from dualpath.sim.decode import DecodeGroup
from dualpath.sim.kernel import Kernel
from dualpath.sim.nodes import DecodeEngine, SimNode
from dualpath.sim.request import SimRequest
from dualpath.sim.spec import ClusterSpec
from dualpath.types import RequestId, Role


class Bench:
    """A decode group whose requests come with their blocks taken; a step takes 0.1 s and 0.1 s a request."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.kernel = Kernel()
        self.ended: dict[str, float] = {}
        self.preempted: list[tuple[str, int]] = []
        self.preempted_s: list[float] = []
        self.requests: dict[str, SimRequest] = {}
        node = SimNode(Role.DECODE, 0, spec.node, spec.decode.buffer_tokens, lambda _: None)
        self.engines = [engine for engine in node.engines if isinstance(engine, DecodeEngine)]
        self.group = DecodeGroup(self.kernel, spec, self.engines, self._finished, self._preempted)

    def _finished(self, request: SimRequest) -> None:
        self.ended[request.request_id] = self.kernel.now_s

    def _preempted(self, request: SimRequest, generated: int) -> None:
        self.preempted.append((request.request_id, generated))
        self.preempted_s.append(self.kernel.now_s)

    def at(self, time_s: float, name: str, prompt: int, output: int, engine: int = 0) -> None:
        """A request is in HBM at ``time_s``, its first token generated."""
        request = SimRequest(RequestId(name), SimAgent(0, ()), 0, prompt, 0, output, 0.0)
        request.decode = self.engines[engine]
        self.requests[name] = request
        self.kernel.at(time_s, self._join, request)

    def _join(self, request: SimRequest) -> None:
        assert request.decode is not None
        request.kv_blocks = 1 + -(-request.prompt_tokens // 4)
        request.decode.take_blocks(request.kv_blocks)
        self.group.join(request)

    def run(self) -> dict[str, float]:
        """When each request has ended."""
        self.kernel.run()
        return self.ended


def test_a_lone_request_takes_a_step_for_every_token_but_the_first() -> None:
    bench = Bench(plain_cluster())
    bench.at(1.0, "a", 4, 6)
    assert bench.run() == pytest.approx({"a": 1.0 + 5 * 0.2})
    assert bench.requests["a"].second_s == pytest.approx(1.2)
    assert (bench.group.steps, bench.group.tokens) == (5, 5)
    assert bench.group.busy_s == pytest.approx(1.0)


def test_requests_join_and_end_at_step_boundaries() -> None:
    bench = Bench(plain_cluster())
    bench.at(0.0, "a", 4, 5)  # two steps alone
    bench.at(0.3, "b", 4, 4)  # from 0.4 on, two steps of 0.3 s together; then one alone
    assert bench.run() == pytest.approx({"a": 0.4 + 2 * 0.3, "b": 0.4 + 2 * 0.3 + 0.2})
    assert bench.requests["b"].second_s == pytest.approx(0.7)
    assert (bench.group.steps, bench.group.tokens) == (5, 7)
    assert bench.group.busy_s == pytest.approx(1.2)


def test_who_comes_just_as_a_step_begins_is_in_the_one_after_it() -> None:
    bench = Bench(plain_cluster())
    bench.at(0.0, "a", 4, 4)
    bench.at(0.2, "b", 4, 2)
    assert bench.run() == pytest.approx({"a": 0.4 + 0.3, "b": 0.4 + 0.3})


def test_rounding_never_puts_the_next_step_into_the_past() -> None:
    assert 0.61 + 3 * 0.39 < 1.78
    assert (1.78 - 0.61) / 0.39 < 3
    spec = plain_cluster()
    bench = Bench(replace(spec, decode=replace(spec.decode, time=DecodeTime(2, 0.0, 0.0, step_s=0.39))))
    bench.at(0.61, "a", 1, 7)
    bench.at(1.78, "b", 1, 2)
    assert bench.run() == pytest.approx({"a": 0.61 + 6 * 0.39, "b": 0.61 + 4 * 0.39})


def test_several_join_together_even_an_idle_group() -> None:
    bench = Bench(plain_cluster())
    for name in "abc":
        bench.at(2.0, name, 4, 2)
    assert bench.run() == pytest.approx(dict.fromkeys("abc", 2.4))
    assert bench.group.busy_s == pytest.approx(0.4)


def test_engines_of_a_group_wait_for_the_busiest() -> None:
    bench = Bench(plain_cluster(engines=2))
    for name, engine in (("a", 0), ("b", 0), ("c", 1)):
        bench.at(0.0, name, 4, 3, engine)
    assert bench.run() == pytest.approx(dict.fromkeys("abc", 2 * 0.3))


def test_context_is_counted_as_of_the_last_change() -> None:
    spec = plain_cluster()
    time = replace(spec.decode.time, request_s=0.0, context_s=0.05)  # 0.1 s and 0.1 s for each token of context
    bench = Bench(replace(spec, decode=replace(spec.decode, time=time)))
    bench.at(0.0, "a", 1, 3)  # two steps of 0.2 s, as its context was when it joined
    bench.at(0.3, "b", 2, 2)
    assert bench.run() == pytest.approx({"a": 0.4, "b": 0.4 + 0.3})
    assert bench.engines[0].context_tokens == 0


def test_seconds_in_steps_count_up_to_now() -> None:
    bench = Bench(plain_cluster())
    bench.at(1.0, "a", 4, 6)
    bench.kernel.run(until_s=1.0)
    assert [bench.group.busy_seconds(at_s) for at_s in (1.0, 1.5)] == pytest.approx([0.0, 0.5])


def test_a_request_takes_a_block_whenever_its_blocks_are_full() -> None:
    bench = Bench(plain_cluster())
    bench.at(0.0, "a", 4, 10)  # 2 blocks hold the KV of 8 tokens: of the prompt and of 4 generated ones
    used = []
    for steps in range(1, 9):
        bench.kernel.run(until_s=steps * 0.2 + 0.01)
        used.append(bench.engines[0].used_blocks)
    assert used == [2, 2, 2, 3, 3, 3, 3, 4]
    assert bench.run() == pytest.approx({"a": 9 * 0.2})
    assert (bench.engines[0].used_blocks, bench.engines[0].most_used_blocks) == (0, 4)


def test_no_block_is_taken_for_the_last_token_which_has_no_kv() -> None:
    bench = Bench(plain_cluster())
    bench.at(0.0, "a", 4, 5)  # prompt and 4 generated tokens with KV: just 2 blocks
    bench.run()
    assert bench.engines[0].most_used_blocks == 2


def test_the_youngest_leaves_when_an_older_one_needs_a_block() -> None:
    bench = Bench(plain_cluster(kv_blocks=4))
    bench.at(0.0, "old", 4, 8)
    bench.at(0.0, "young", 4, 8)
    ended = bench.run()
    assert bench.preempted == [("young", 5)], "its first token and four steps'"
    assert bench.preempted_s == pytest.approx([4 * 0.3])
    assert ended == pytest.approx({"old": 4 * 0.3 + 3 * 0.2})
    assert (bench.engines[0].used_blocks, bench.engines[0].most_used_blocks) == (0, 4)
    assert bench.group.tokens == 8 + 3


def test_the_youngest_leaves_even_if_it_is_the_one_that_needs_a_block() -> None:
    bench = Bench(plain_cluster(kv_blocks=4))
    bench.at(0.0, "old", 1, 7)  # its 2 blocks last to the end
    bench.at(0.1, "young", 4, 7)  # from 0.2 on; its 2 blocks last for 4 steps
    assert bench.run() == pytest.approx({"old": 0.2 + 4 * 0.3 + 0.2})
    assert bench.preempted == [("young", 5)]
    assert bench.preempted_s == pytest.approx([0.2 + 4 * 0.3])


def test_nobody_leaves_another_engines_pool() -> None:
    bench = Bench(plain_cluster(engines=2, kv_blocks=3))
    bench.at(0.0, "a", 4, 8, engine=0)
    bench.at(0.0, "b", 4, 8, engine=1)
    assert bench.run() == pytest.approx({"a": 1.4, "b": 1.4})
    assert bench.preempted == []


def test_the_all_to_all_takes_its_part_of_the_nic_while_requests_run() -> None:
    spec = plain_cluster()
    bench = Bench(replace(spec, decode=replace(spec.decode, collective_bytes=60.0)))
    bench.at(0.0, "a", 4, 5)
    bench.at(0.35, "b", 4, 5)
    bench.run()
    steps_s, nic = (0.4, 0.6, 0.4), bench.engines[0].cnic.read  # alone, both, alone
    rates = (60.0 / 0.2, 2 * 60.0 / 0.3, 60.0 / 0.2)
    assert nic.carried_bytes(9.0) == pytest.approx(sum(s * rate for s, rate in zip(steps_s, rates, strict=True)))
