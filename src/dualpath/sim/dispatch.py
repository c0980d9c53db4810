"""When leaders fetch work: in turn while something waits, at once when something comes to an idle scheduler
(paper section 6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dualpath.errors import ClusterError
from dualpath.scheduling.central import CentralScheduler
from dualpath.scheduling.decisions import Decision, EngineLoad
from dualpath.sim.kernel import Kernel
from dualpath.sim.nodes import DecodeEngine, SimNode
from dualpath.types import Role

REPORT_INTERVAL_S = 1.0
"""How often a decode node reports its free HBM; between reports the scheduler's ledger has the reservations."""
_PREFILL, _DECODE = Role.PREFILL, Role.DECODE
_HOPELESS_ROUNDS = 3
"""Rounds of fetches without a placement, while nothing runs, after which nothing will ever change."""


class Dispatcher:
    """Every node is a group whose leader fetches once an interval while requests wait, one group after another."""

    def __init__(
        self,
        kernel: Kernel,
        scheduler: CentralScheduler,
        nodes: Sequence[SimNode],
        kv_blocks: int,
        interval_s: float,
        decided: Callable[[list[Decision]], None],
        in_flight: Callable[[], int],
    ) -> None:
        self._kernel = kernel
        self._scheduler = scheduler
        self._decided = decided
        self._in_flight = in_flight
        self._fruitless = 0
        self._kv_blocks = kv_blocks
        self._nodes = list(nodes)
        self._by_role = {role: [node for node in nodes if node.role is role] for role in Role}
        self._by_group = {node.group: node for node in nodes}
        self._next = dict.fromkeys(Role, 0)
        self._spacing_s = interval_s / len(self._nodes)
        self._turn = 0
        self._ticking = False
        self._last_report_s = {node.name: -REPORT_INTERVAL_S for node in nodes}
        self.sequence = 0

    def submitted(self) -> None:
        """A request waits: unless leaders are fetching anyway, those that can place it do so now.

        One group of each role fetches, and the one to which the first phase has given the request.
        """
        if self._ticking:
            return
        for role, nodes in self._by_role.items():
            self._fetch(nodes[self._next[role] % len(nodes)])
            self._next[role] += 1
        for group in self._scheduler.backlogged():
            self._fetch(self._by_group[group])
        if self._scheduler.has_waiting:
            self._ticking = True
            self._kernel.after(self._spacing_s, self._tick)

    def _tick(self, _: None) -> None:
        if not self._scheduler.has_waiting:
            self._ticking = False
            return
        self._turn = (self._turn + 1) % len(self._nodes)
        node = self._nodes[self._turn]
        if node.role is _DECODE or self._scheduler.waiting_for(_PREFILL):
            self._fetch(node)
        self._fruitless = 0 if self._in_flight() else self._fruitless + 1
        if self._fruitless > _HOPELESS_ROUNDS * len(self._nodes):
            raise ClusterError("requests wait, nothing is running, and no engine takes them: the cluster is stuck")
        self._kernel.after(self._spacing_s, self._tick)

    def _fetch(self, node: SimNode) -> None:
        if node.role is _PREFILL:
            decisions = self._scheduler.fetch_prefill(node.group, ())
        else:
            decisions = self._scheduler.fetch_decode(node.group, self._loads(node))
        if decisions:
            self._fruitless = 0
            self._decided(decisions)

    def _loads(self, node: SimNode) -> list[EngineLoad]:
        now_s = self._kernel.now_s
        if now_s - self._last_report_s[node.name] < REPORT_INTERVAL_S:
            return []
        self._last_report_s[node.name] = now_s
        return [self._load(engine) for engine in node.engines if isinstance(engine, DecodeEngine)]

    def _load(self, engine: DecodeEngine) -> EngineLoad:
        free_blocks = self._kv_blocks - engine.used_blocks - engine.promised_blocks
        return EngineLoad(engine.name, self.sequence, engine.unread_tokens, free_blocks)
