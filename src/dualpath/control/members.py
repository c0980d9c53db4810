"""Who is in the cluster: engines, clients and the launcher, as the scheduler service last heard of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dualpath.control.messages import Fence, Fetch, Join, Message
from dualpath.control.turns import EngineStatus
from dualpath.scheduling.decisions import EngineDescription, EngineLoad
from dualpath.types import EngineName, GroupName, NodeName, Role

REMEMBERED_LOSSES = 1024
REMEMBERED_ENDS = 64


@dataclass(slots=True)
class ClientRecord:
    """A client by its socket identity."""

    identity: bytes
    seen_s: float


@dataclass(slots=True)
class EngineRecord:
    """An engine as it joined, and its last report."""

    join: Join
    identity: bytes
    seen_s: float
    fetch: Fetch | None = None
    status: EngineStatus = field(init=False)

    def __post_init__(self) -> None:
        self.status = EngineStatus(name=self.join.name, role=self.join.role, node=self.join.node)

    @property
    def name(self) -> str:
        return self.join.name

    @property
    def role(self) -> Role:
        return Role(self.join.role)

    def saw(self, fetch: Fetch, now: float) -> None:
        self.seen_s, self.fetch, self.status = now, fetch, fetch.status

    def description(self) -> EngineDescription:
        """The engine as the scheduler wants it."""
        join = self.join
        return EngineDescription(
            EngineName(join.name), self.role, GroupName(join.group), NodeName(join.node), join.kv_blocks, join.buffer_blocks
        )

    def load(self) -> EngineLoad:
        """The last report as the scheduler wants it."""
        assert self.fetch is not None
        return EngineLoad(EngineName(self.name), self.fetch.seen, self.fetch.unread_tokens, self.fetch.free_kv_blocks)


class Members:
    """The cluster's membership; an engine is live, lost (silent or failed, perhaps still running) or gone."""

    def __init__(self) -> None:
        self._live: dict[str, EngineRecord] = {}
        self._lost: dict[str, EngineRecord] = {}
        self._ever_lost: deque[str] = deque(maxlen=REMEMBERED_LOSSES)
        self._groups: dict[Role, dict[GroupName, int]] = {Role.PREFILL: {}, Role.DECODE: {}}
        self._clients: dict[bytes, ClientRecord] = {}
        self._launcher: bytes | None = None
        self.ended: deque[str] = deque(maxlen=REMEMBERED_ENDS)
        self.restarts = 0

    def add_engine(self, engine: EngineRecord) -> bool:
        """Make an engine live; False if it was lost before: a fenced engine never comes back under its name."""
        if self.was_lost(engine.name):
            return False
        self._live[engine.name] = engine
        groups = self._groups[engine.role]
        groups[GroupName(engine.join.group)] = groups.get(GroupName(engine.join.group), 0) + 1
        return True

    def mark_lost(self, engine: EngineRecord) -> bool:
        """Live to lost; False if it is not live."""
        if self._live.pop(engine.name, None) is None:
            return False
        self._lost[engine.name] = engine
        self._ever_lost.append(engine.name)
        groups = self._groups[engine.role]
        group = GroupName(engine.join.group)
        groups[group] -= 1
        if not groups[group]:
            del groups[group]
        return True

    def remove_engine(self, engine: EngineRecord) -> None:
        """Lost to gone: its process has ended."""
        self._lost.pop(engine.name, None)

    def note_end(self, name: str) -> bool:
        """Remember whose memory is safe, for those that join later; False if that was known."""
        if name in self.ended:
            return False
        self.ended.append(name)
        return True

    def was_lost(self, name: str) -> bool:
        return name in self._ever_lost

    def engine(self, name: str) -> EngineRecord:
        """A live engine."""
        return self._live[name]

    def find_engine(self, name: str | None) -> EngineRecord | None:
        """A live engine, if there is one of that name."""
        return None if name is None else self._live.get(name)

    def lost_or_live(self, name: str) -> EngineRecord | None:
        return self._live.get(name) or self._lost.get(name)

    def engines(self) -> Iterator[EngineRecord]:
        """All live engines, by name."""
        return iter(sorted(self._live.values(), key=lambda engine: engine.name))

    def lost(self) -> list[EngineRecord]:
        """Engines that were given up and may still run."""
        return list(self._lost.values())

    def groups(self, role: Role) -> list[GroupName]:
        """The groups that have a live engine."""
        return list(self._groups[role])

    @property
    def complete(self) -> bool:
        """Whether both roles are there."""
        return all(self._groups.values())

    def silent_engines(self, now: float, timeout_s: float) -> list[EngineRecord]:
        """Live engines not heard of for ``timeout_s``."""
        return [engine for engine in self._live.values() if now - engine.seen_s > timeout_s]

    def excuse(self, seconds: float) -> None:
        """Hold the last ``seconds`` of silence against nobody."""
        for engine in self._live.values():
            engine.seen_s += seconds
        for client in self._clients.values():
            client.seen_s += seconds

    def saw_client(self, client: ClientRecord) -> None:
        self._clients[client.identity] = client

    def silent_clients(self, now: float, timeout_s: float) -> list[ClientRecord]:
        """Clients not heard of for ``timeout_s``; they are forgotten."""
        silent = [client for client in self._clients.values() if now - client.seen_s > timeout_s]
        for client in silent:
            del self._clients[client.identity]
        return silent

    def saw_launcher(self, identity: bytes, restarts: int) -> bool:
        """Note the launcher; whether it is a new one."""
        new = self._launcher != identity
        self._launcher, self.restarts = identity, restarts
        return new

    def ask_launcher_to_fence(self, engine: EngineRecord, send: Callable[[bytes, Message], None]) -> None:
        """Have a lost engine's process ended; without a launcher the slots it was granted stay reserved until there is one."""
        if self._launcher is not None:
            send(self._launcher, Fence(engine.name))
