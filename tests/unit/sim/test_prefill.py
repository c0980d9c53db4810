"""Prefill groups by hand: steps in lockstep, transfers that compute hides or does not, chunks under the quota."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.support.sim_cases import plain_cluster

from dualpath.costmodel.timing import PrefillTime
from dualpath.dataflow.charges import per_token
from dualpath.sim.agents import SimAgent
from dualpath.sim.kernel import Kernel
from dualpath.sim.nodes import DecodeEngine, PrefillEngine, SimNode
from dualpath.sim.prefill import PrefillGroup
from dualpath.sim.request import SimRequest
from dualpath.sim.spec import ClusterSpec
from dualpath.sim.steps import overlapped
from dualpath.types import RequestId, Role


class Bench:
    """A group of prefill engines, and a decode engine that takes what they compute."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.kernel = Kernel()
        self.first_s: dict[str, float] = {}
        self.node = SimNode(Role.PREFILL, 0, spec.node, spec.prefill.buffer_tokens, lambda _: None)
        decode_node = SimNode(Role.DECODE, 0, spec.node, spec.decode.buffer_tokens, lambda _: None)
        self.engines = [engine for engine in self.node.engines if isinstance(engine, PrefillEngine)]
        (self.decode, *_) = (engine for engine in decode_node.engines if isinstance(engine, DecodeEngine))
        charges = per_token(spec.geometry, layerwise=spec.prefill.layerwise, transfers=spec.transfers)
        self.group = PrefillGroup(self.kernel, spec, self.engines, charges, self._prefilled)

    def _prefilled(self, request: SimRequest) -> None:
        self.first_s[request.request_id] = self.kernel.now_s

    def at(self, time_s: float, name: str, new: int, *, head: int = 0, tail: int = 0, engine: int = 0) -> None:
        """A request is ready at ``time_s``."""
        hit = head + tail
        request = SimRequest(RequestId(name), SimAgent(0, ()), 0, hit + new, hit, 1, 0.0)
        request.head, request.tail = head, tail
        request.prefill, request.decode = self.engines[engine], self.decode
        self.node.buffer.used += head
        self.kernel.at(time_s, self.group.ready, request)

    def run(self) -> dict[str, float]:
        """First tokens by request."""
        self.kernel.run()
        return self.first_s


def with_quota(spec: ClusterSpec, quota_s: float) -> ClusterSpec:
    return replace(spec, prefill=replace(spec.prefill, quota_s=quota_s))


def test_a_step_of_a_group_takes_as_long_as_its_slowest_engine() -> None:
    bench = Bench(plain_cluster(engines=2, transfers=False))
    bench.at(0.0, "short", 5, engine=0)
    bench.at(0.0, "long", 20, engine=1)  # comes while the other one's step runs
    bench.at(0.0, "short too", 10, engine=0)
    assert bench.run() == pytest.approx({"short": 0.5, "long": 2.5, "short too": 2.5})
    assert [engine.attention_s for engine in bench.engines] == pytest.approx([1.5, 2.0])
    assert list(bench.group.steps_s) == pytest.approx([0.0, 0.5])
    assert list(bench.group.most_attention_s) == pytest.approx([0.5, 2.0])
    assert list(bench.group.mean_attention_s) == pytest.approx([0.25, 1.5]), "the rest of 2 s is a bubble"


def test_what_becomes_ready_during_a_step_waits_for_the_next_one() -> None:
    bench = Bench(plain_cluster(transfers=False))
    bench.at(0.0, "a", 10)
    bench.at(0.1, "b", 5)
    bench.at(0.9, "c", 5)
    bench.at(5.0, "d", 1)
    assert bench.run() == pytest.approx({"a": 1.0, "b": 2.0, "c": 2.0, "d": 5.1})
    assert bench.group.busy_s == pytest.approx(2.1)
    assert bench.group.busy_seconds(9.0) == pytest.approx(2.1)


def test_seconds_in_steps_count_up_to_now() -> None:
    bench = Bench(plain_cluster(transfers=False))
    bench.at(1.0, "a", 10)
    bench.kernel.run(until_s=1.0)
    assert [bench.group.busy_seconds(at_s) for at_s in (1.0, 1.5, 2.0)] == pytest.approx([0.0, 0.5, 1.0])


def test_experts_work_for_the_mean_of_new_tokens() -> None:
    spec = plain_cluster(engines=2, transfers=False)
    time = PrefillTime(2, token_s=0.05, pair_s=0.0, mixture_s=0.5, mixture_token_s=0.01, step_s=0.25)
    bench = Bench(replace(spec, prefill=replace(spec.prefill, step_time=time)))
    bench.at(0.0, "a", 10)
    assert bench.run() == pytest.approx({"a": 0.25 + 1.0 + 2 * (0.5 + 0.01 * 5)})


def test_a_layerwise_step_hides_transfers_but_for_one_layer() -> None:
    assert overlapped(compute_s=3.0, transfer_s=2.0, layers=4) == 3.5
    assert overlapped(compute_s=1.0, transfer_s=2.0, layers=4) == 2.5
    bench = Bench(plain_cluster())
    bench.at(0.0, "a", 5, head=8)  # its engine's NIC reads 8 + 8 + 5 tokens, at 100 a second
    assert bench.run() == pytest.approx({"a": 0.5 + 0.21 / 2})
    assert (bench.group.transfer_s, bench.group.exposed_s) == pytest.approx((0.21, 0.105))


def test_transfers_longer_than_compute_show() -> None:
    bench = Bench(plain_cluster())
    bench.at(0.0, "a", 1, head=80)
    assert bench.run() == pytest.approx({"a": 1.61 + 1.61 / 2})
    assert bench.group.exposed_s == pytest.approx(1.61 * 1.5 - 0.1)


def test_without_layers_loads_compute_and_stores_follow_each_other() -> None:
    bench = Bench(plain_cluster(layerwise=False))
    bench.at(0.0, "a", 5, head=8)
    assert bench.run() == pytest.approx({"a": 0.08 + 0.5 + 0.13})
    assert (bench.group.transfer_s, bench.group.exposed_s) == pytest.approx((0.21, 0.21))
    assert bench.group.busy_s == pytest.approx(0.71)


def test_what_the_decode_side_has_read_comes_from_its_buffer_and_does_not_go_back() -> None:
    bench = Bench(plain_cluster())
    bench.at(0.0, "a", 5, tail=8)
    assert bench.run() == pytest.approx({"a": 0.5 + 0.08 / 2})
    (engine,) = bench.engines
    links = (engine.cnic.read, engine.cnic.write, bench.decode.cnic.read, bench.decode.cnic.write)
    assert [link.kv_bytes(9.0) for link in links] == pytest.approx([50.0, 80.0, 80.0, 50.0])


def test_a_prompt_is_cut_at_block_edges_under_the_quota() -> None:
    bench = Bench(with_quota(plain_cluster(transfers=False), 0.9))
    bench.at(0.0, "long", 21)  # 8, 8 and 5 tokens
    bench.at(0.0, "short", 2)  # beside the last of them
    assert bench.run() == pytest.approx({"long": 2.3, "short": 2.3})
    assert list(bench.group.most_attention_s) == pytest.approx([0.8, 0.8, 0.7])


def test_later_chunks_load_earlier_ones_from_the_decode_buffer() -> None:
    bench = Bench(with_quota(plain_cluster(), 0.8))
    bench.at(0.0, "a", 20, head=4)
    chunk_s = [
        0.8 + 0.16 / 2,  # 4 in; 4 + 8 out
        0.8 + 0.12 / 2,  # 12 in; 8 out
        0.4 + 0.20 / 2,  # 20 in; 4 out
    ]
    assert bench.run() == pytest.approx({"a": sum(chunk_s)})
    assert bench.decode.cnic.read.kv_bytes(9.0) == pytest.approx((12 + 20) * 10)
    assert bench.engines[0].cnic.write.kv_bytes(9.0) == pytest.approx((4 + 12 + 20) * 10)


def test_the_buffer_is_free_after_the_first_chunk() -> None:
    bench = Bench(with_quota(plain_cluster(), 0.8))
    bench.at(0.0, "a", 20, head=4)
    bench.kernel.run(until_s=0.87)
    assert bench.node.buffer.used == 4
    bench.kernel.run(until_s=0.89)
    assert bench.node.buffer.used == 0


def test_batches_are_packed_by_the_prediction_and_take_what_they_take() -> None:
    spec = with_quota(plain_cluster(transfers=False), 0.8)
    bench = Bench(replace(spec, prefill=replace(spec.prefill, compute_time=lambda _cached, new: 1.0 * new)))
    bench.at(0.0, "a", 10)
    assert bench.run() == pytest.approx({"a": 10.0})
    assert list(bench.group.most_attention_s) == pytest.approx([8.0, 2.0])


def test_the_all_to_all_slows_kv_traffic_down_while_steps_run() -> None:
    spec = plain_cluster()
    # 10 new tokens in 1 s at 50 bytes each: half of the NIC's 1000 bytes a second.
    bench = Bench(replace(spec, prefill=replace(spec.prefill, collective_bytes=50.0)))
    bench.at(0.0, "a", 10)
    assert bench.run() == pytest.approx({"a": 1.0 + 0.2 / 2})
    nic = bench.engines[0].cnic.read
    assert nic.carried_bytes(1.1) == pytest.approx(100.0 + 1.1 * 500.0)
    assert nic.carried_bytes(9.0) == pytest.approx(nic.carried_bytes(1.1)), "an idle group takes nothing"


def kv_rows(bench: Bench, tokens: Sequence[tuple[int, int]]) -> int:
    for number, (head, new) in enumerate(tokens):
        bench.at(0.0 if number == 0 else 0.1, str(number), new, head=head)
    bench.run()
    return bench.group.most_kv_rows


def test_rows_of_the_largest_batch_count_hits() -> None:
    assert kv_rows(Bench(plain_cluster()), [(40, 10), (20, 5), (12, 3)]) == 50
    assert kv_rows(Bench(plain_cluster()), [(4, 10), (20, 5), (12, 3)]) == 40
