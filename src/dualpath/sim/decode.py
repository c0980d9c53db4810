"""Decode engines that run in step: continuous batching, HBM admission, preemption (paper sections 2 and 6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from dualpath.sim.kernel import Kernel
from dualpath.sim.nodes import DecodeEngine
from dualpath.sim.request import SimRequest
from dualpath.sim.spec import ClusterSpec
from dualpath.types import RequestId

NEGLIGIBLE = 0.01
"""Of a compute NIC: smaller changes of what collectives take are not followed."""


class DecodeGroup:
    """Engines that generate a token for every request of all of them in each step.

    Nothing changes between two steps at which a request joins, ends or needs another block: the steps between are one
    event.

    Attributes:
        busy_s: seconds in steps.
        steps, tokens: steps taken, and tokens generated in them.
    """

    def __init__(
        self,
        kernel: Kernel,
        spec: ClusterSpec,
        engines: Sequence[DecodeEngine],
        finished: Callable[[SimRequest], None],
        preempted: Callable[[SimRequest, int], None],
    ) -> None:
        self.engines = engines
        self.busy_s = 0.0
        self.steps = self.tokens = 0
        self._kernel = kernel
        self._finished = finished
        self._preempted = preempted
        self._time = spec.decode.time
        self._kv_blocks = spec.decode.kv_blocks
        self._block_tokens = spec.geometry.block_tokens
        self._collective_bytes = spec.decode.collective_bytes
        self._engine_s = [0.0] * len(engines)
        self._requests = 0
        self._busy = False
        self._due: list[tuple[int, int, SimRequest, RequestId]] = []
        self._sequence = 0
        self._joining: list[SimRequest] = []
        self._step = 0
        self._boundary_s = 0.0
        self._step_s = 0.0
        self._wake_s = float("inf")
        self._wake_step = 0
        self._wake_number = 0
        self._changed: set[DecodeEngine] = set()
        for place, engine in enumerate(engines):
            engine.place = place

    def join(self, request: SimRequest) -> None:
        """The request's KV is in HBM: it decodes from the next step on."""
        self._joining.append(request)
        self._comes()

    def _comes(self) -> None:
        """Someone waits for the next step: there is one at once, or as soon as the running one has ended."""
        now_s = self._kernel.now_s
        if not self._busy:
            if self._wake_s > now_s:
                self._boundary_s, self._wake_step = now_s, self._step
                self._wake_at(now_s)
            return
        steps = int((now_s - self._boundary_s) / self._step_s) + 1
        time_s = max(now_s, self._boundary_s + steps * self._step_s)  # rounding may put a boundary of just now into the past
        if time_s < self._wake_s:
            self._wake_step = self._step + steps
            self._wake_at(time_s)

    def busy_seconds(self, now_s: float) -> float:
        """Seconds in steps so far."""
        return self.busy_s + (now_s - self._boundary_s if self._busy else 0.0)

    def _wake_at(self, time_s: float) -> None:
        self._wake_number += 1
        self._wake_s = time_s
        self._kernel.at(time_s, self._wake, self._wake_number)

    def _wake(self, number: int) -> None:
        """Steps up to this one are done: let requests end, grow and join, and find out when something changes next."""
        if number != self._wake_number:
            return
        steps = self._wake_step - self._step
        self.steps += steps
        self.tokens += steps * self._requests
        if self._busy:
            self.busy_s += self._kernel.now_s - self._boundary_s
        self._step, self._boundary_s, self._wake_s = self._wake_step, self._kernel.now_s, float("inf")
        joined = self._advance()
        self._busy = self._has_work()
        if not self._busy:
            self._share_links()
            return
        self._step_s = step_s = self._step_seconds()
        second_s = self._boundary_s + step_s
        for request in joined:
            if request.second_s != request.second_s:
                request.second_s = second_s
        if self._collective_bytes:
            self._share_links()
        self._wake_step = self._next_change()
        steps_ahead_s = (self._wake_step - self._step) * step_s
        self._wake_at(self._boundary_s + steps_ahead_s)

    def _has_work(self) -> bool:
        return self._requests > 0

    def _step_seconds(self) -> float:
        """Of the steps from now on."""
        return self._time.step(max(self._engine_s), self._requests / len(self.engines))

    def _next_change(self) -> int:
        """The step at which somebody ends or needs a block, if nobody comes before."""
        return max(self._due[0][0], self._step + 1)

    def _advance(self) -> list[SimRequest]:
        """End and grow what is due at this step, then let in who waits."""
        due, step = self._due, self._step
        while due and due[0][0] <= step:
            _, _, request, request_id = heappop(due)
            if request.request_id is request_id and request.joined_step >= 0:
                if step - request.joined_step >= request.output_tokens - 1:
                    self._leave(request)
                    self._finished(request)
                else:
                    self._grow(request)
        joined, self._joining = self._joining, []
        for request in joined:
            self._enter(request)
        return joined

    def _enter(self, request: SimRequest) -> None:
        engine = request.decode
        assert engine is not None
        request.joined_step = self._step
        engine.running[request] = None
        self._requests += 1
        engine.context_tokens += request.prompt_tokens - self._step
        self._changed_at(engine)
        self._schedule(request)

    def _schedule(self, request: SimRequest) -> None:
        """When it will end, or, if sooner, when its blocks will be full."""
        last_step = request.joined_step + request.output_tokens - 1
        full_step = request.joined_step + request.kv_blocks * self._block_tokens - request.prompt_tokens
        self._sequence += 1
        heappush(self._due, (min(last_step, full_step), self._sequence, request, request.request_id))

    def _grow(self, request: SimRequest) -> None:
        """Another block; if there is none, the youngest of its engine has to leave, perhaps itself."""
        engine = request.decode
        assert engine is not None
        while engine.used_blocks >= self._kv_blocks:
            youngest = next(reversed(engine.running))
            generated = 1 + self._step - youngest.joined_step
            self._leave(youngest)
            self._preempted(youngest, generated)
            if youngest is request:
                return
        engine.take_blocks(1)
        request.kv_blocks += 1
        self._schedule(request)

    def _leave(self, request: SimRequest) -> None:
        engine = request.decode
        assert engine is not None
        del engine.running[request]
        self._requests -= 1
        engine.used_blocks -= request.kv_blocks
        engine.context_tokens -= request.prompt_tokens - request.joined_step
        request.kv_blocks = 0
        request.joined_step = -1
        self._changed_at(engine)

    def _changed_at(self, engine: DecodeEngine) -> None:
        requests = len(engine.running)
        # A request's context is its prompt and the steps since it joined.
        context = engine.context_tokens + requests * self._step
        self._engine_s[engine.place] = self._time.engine_s(requests, context)
        if self._collective_bytes:
            self._changed.add(engine)

    def _share_links(self) -> None:
        """Tell the compute NICs of engines whose batch has changed what their all-to-all takes."""
        now_s, step_s = self._kernel.now_s, self._step_s
        for engine in self._changed:
            rate = len(engine.running) * self._collective_bytes / step_s if step_s else 0.0
            if abs(rate - engine.collective_rate) > NEGLIGIBLE * engine.cnic.read.rate or not rate:
                engine.collective_rate = rate
                engine.cnic.read.set_collective_rate(now_s, rate)
                engine.cnic.write.set_collective_rate(now_s, rate)
        self._changed.clear()
