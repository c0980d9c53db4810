"""Prefill engines that run in step: quota batches, layerwise overlap, chunks (paper sections 2 and 6)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from dualpath.dataflow.charges import PerToken, Stage
from dualpath.scheduling.batching import Batching, Chunk
from dualpath.sim.kernel import Kernel
from dualpath.sim.nodes import PrefillEngine
from dualpath.sim.request import SimRequest
from dualpath.sim.spec import ClusterSpec
from dualpath.sim.steps import overlapped

Part = tuple[PrefillEngine, SimRequest, Chunk]


class PrefillGroup:
    """Engines whose layers end together; a step begins when the last one has ended and someone has work.

    Attributes:
        busy_s: seconds in steps.
        transfer_s, exposed_s: seconds of the steps' transfers, and those that compute did not hide.
        most_kv_rows: tokens of KV, hits included, of the largest batch of one engine.
        steps_s, most_attention_s, mean_attention_s: of every step its begin, and its engines' attention (Fig. 14).
    """

    def __init__(
        self,
        kernel: Kernel,
        spec: ClusterSpec,
        engines: Sequence[PrefillEngine],
        charges: dict[Stage, PerToken],
        prefilled: Callable[[SimRequest], None],
    ) -> None:
        self.engines = engines
        self.busy_s = 0.0
        self.busy_until_s = 0.0
        self.transfer_s = self.exposed_s = 0.0
        self.most_kv_rows = 0
        self.steps_s, self.most_attention_s, self.mean_attention_s = array("d"), array("f"), array("f")
        self._kernel = kernel
        self._prefilled = prefilled
        self._attention_time = spec.prefill.compute_time or spec.prefill.attention_time
        self._step = spec.prefill.step_time.step
        self._layers = spec.geometry.layers
        self._layerwise = spec.prefill.layerwise
        self._collective_bytes = spec.prefill.collective_bytes
        self._load, self._store = charges[Stage.LOAD], charges[Stage.STORE]
        self._forward = self._load.plus(self._store)
        self._moves = spec.transfers
        self._batching = Batching(
            spec.prefill.attention_time,
            quota_s=spec.prefill.quota_s,
            max_batch_tokens=spec.prefill.max_batch_tokens,
            kv_rows=spec.prefill_kv_rows,
            block_tokens=spec.geometry.block_tokens,
        )
        self._running = False
        self._parts: list[Part] = []
        self._compute_s = 0.0

    def fits(self, prompt_tokens: int) -> bool:
        """Whether a prompt could ever be computed here."""
        return self._batching.fits_alone(prompt_tokens)

    def ready(self, request: SimRequest) -> None:
        """The hit of a request of one of these engines is in buffers."""
        assert request.prefill is not None
        request.prefill.ready.append(request)
        if not self._running:
            self._begin()

    def busy_seconds(self, now_s: float) -> float:
        """Seconds in steps so far."""
        return self.busy_s - max(0.0, self.busy_until_s - now_s)

    def _begin(self) -> None:
        """Pack a batch on every engine and start the step; idle if there is nothing."""
        parts, most_s, total_s, new_tokens = self._pack()
        self._parts = parts
        self._running = bool(parts)
        now_s = self._kernel.now_s
        count = len(self.engines)
        if not parts:
            if self._collective_bytes:
                self._share_links(0.0)
            return
        self.steps_s.append(now_s)
        self.most_attention_s.append(most_s)
        self.mean_attention_s.append(total_s / count)
        self._compute_s = compute_s = self._step(most_s, new_tokens / count)
        if self._collective_bytes:
            self._share_links(new_tokens / count * self._collective_bytes / compute_s)
        if self._layerwise:
            transfer_s = self._carry(self._forward) - now_s if self._moves else 0.0
            step_s = overlapped(compute_s, transfer_s, self._layers)
            self._count(transfer_s, step_s - compute_s)
            self._end_at(now_s + step_s)
        elif self._moves:
            loaded_s = self._carry(self._load)
            self._count(loaded_s - now_s, loaded_s - now_s)
            self._kernel.at(loaded_s + compute_s, self._computed)
            self._busy(loaded_s + compute_s)
        else:
            self._end_at(now_s + compute_s)

    def _computed(self, _: None) -> None:
        """Not layerwise: the whole batch's KV is stored only now."""
        stored_s = self._carry(self._store)
        self._count(stored_s - self._kernel.now_s, stored_s - self._kernel.now_s)
        self._end_at(stored_s)

    def _count(self, transfer_s: float, exposed_s: float) -> None:
        self.transfer_s += transfer_s
        self.exposed_s += exposed_s

    def _end_at(self, time_s: float) -> None:
        self._busy(time_s)
        self._kernel.at(time_s, self._end)

    def _busy(self, until_s: float) -> None:
        self.busy_s += until_s - self._kernel.now_s
        self.busy_until_s = until_s

    def _pack(self) -> tuple[list[Part], float, float, int]:
        """What every engine computes next; the slowest one's and all attention seconds, and all new tokens."""
        parts: list[Part] = []
        most_s = total_s = 0.0
        new_tokens = 0
        attention_time, pack = self._attention_time, self._batching.pack
        for engine in self.engines:
            ready = engine.ready
            if ready:
                engine_s = 0.0
                rows = 0
                for request, chunk in zip(ready, pack(ready), strict=False):
                    engine_s += attention_time(chunk.cached, chunk.new)
                    new_tokens += chunk.new
                    rows += chunk.cached + chunk.new
                    parts.append((engine, request, chunk))
                engine.attention_s += engine_s
                if rows > self.most_kv_rows:
                    self.most_kv_rows = rows
                total_s += engine_s
                if engine_s > most_s:
                    most_s = engine_s
        return parts, most_s, total_s, new_tokens

    def _carry(self, charges: PerToken) -> float:
        """Post the batch's moves; when the last link is through."""
        now_s = self._kernel.now_s
        latest_s = now_s
        head_charge, tail_charge, new_charge = charges
        per_engine: dict[PrefillEngine, list[int]] = {}
        for engine, request, chunk in self._parts:
            new, cached, decode = chunk.new, chunk.cached, request.decode
            assert decode is not None
            head = request.head if cached == request.hit_tokens else 0
            tail = cached - head
            tokens = per_engine.get(engine)
            if tokens is None:
                per_engine[engine] = [head, tail, new]
            else:
                tokens[0] += head
                tokens[1] += tail
                tokens[2] += new
            size = head * head_charge.de_cnic_read + tail * tail_charge.de_cnic_read + new * new_charge.de_cnic_read
            if size:
                latest_s = max(latest_s, decode.cnic.read.carry(now_s, size))
            size = head * head_charge.de_cnic_write + tail * tail_charge.de_cnic_write + new * new_charge.de_cnic_write
            if size:
                latest_s = max(latest_s, decode.cnic.write.carry(now_s, size))
            size = head * head_charge.de_dram + tail * tail_charge.de_dram + new * new_charge.de_dram
            latest_s = max(latest_s, decode.node.dram.carry(now_s, size))
        for engine, (head, tail, new) in per_engine.items():
            size = head * head_charge.pe_cnic_read + tail * tail_charge.pe_cnic_read + new * new_charge.pe_cnic_read
            read_s = engine.cnic.read.carry(now_s, size)
            size = head * head_charge.pe_cnic_write + tail * tail_charge.pe_cnic_write + new * new_charge.pe_cnic_write
            write_s = engine.cnic.write.carry(now_s, size)
            size = head * head_charge.pe_dram + tail * tail_charge.pe_dram + new * new_charge.pe_dram
            latest_s = max(latest_s, read_s, write_s, engine.node.dram.carry(now_s, size))
        return latest_s

    def _end(self, _: None) -> None:
        """Every chunk is computed and its KV is in the decode engines' buffers."""
        parts, self._parts = self._parts, []
        for engine, request, chunk in parts:
            if chunk.cached == request.hit_tokens and request.head:
                engine.node.buffer.give_back(request.head)
            request.cached += chunk.new
            request.new -= chunk.new
            if chunk.last:
                engine.ready.popleft()
                self._prefilled(request)
        self._begin()

    def _share_links(self, bytes_per_s: float) -> None:
        """Tell the compute NICs what the all-to-all of a new step takes of them."""
        now_s = self._kernel.now_s
        for engine in self.engines:
            engine.cnic.read.set_collective_rate(now_s, bytes_per_s)
            engine.cnic.write.set_collective_rate(now_s, bytes_per_s)
