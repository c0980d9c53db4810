"""An engine's membership in the cluster: joining, load reports as heartbeats, messages in and out (paper section 6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol

import zmq

from dualpath.control.channel import Outbox, Port, inbox, scheduler_port, socket_address
from dualpath.control.messages import Assign, Decoder, Fetch, Join, Message, PeerFenced, RegionInfo, Rejoin, ToEngine
from dualpath.control.spec import EngineSpec
from dualpath.control.turns import EngineStatus
from dualpath.traffic.manager import TrafficManager

logger = logging.getLogger(__name__)


class Engine(Protocol):
    """What a role adds to a member."""

    @property
    def region(self) -> RegionInfo | None:
        """The DRAM buffer that peers reach, if the role has one."""
        ...

    @property
    def capacity(self) -> tuple[int, int]:
        """Blocks of device KV that placement may count on, and of DRAM buffer."""
        ...

    def handle(self, message: Message) -> None:
        """Act on a message from the scheduler or a peer; must not block."""
        ...

    def forget_all(self, reason: str) -> None:
        """Let go of every turn: the scheduler does not know them any more."""
        ...

    def load(self) -> tuple[int, int | None, EngineStatus]:
        """Unread hit tokens, free device KV blocks (None: not scheduled), and the status for the record."""
        ...

    async def close(self) -> None:
        """Stop all work."""
        ...


def traffic_counters(traffic: TrafficManager) -> dict[str, Any]:
    """The traffic's part of an engine's status."""
    reads = traffic.reads
    return {
        "storage_read_bytes": reads.bytes_read,
        "storage_write_bytes": traffic.writes.bytes_written,
        "read_queue_tokens": reads.unread_tokens,
        "transfer_bytes": {kind.value: moved for kind, moved in traffic.bytes_moved.items()},
        "bad_blocks": reads.bad_blocks,
        "transfer_s": traffic.transfer_s,
        "exposed_s": traffic.exposed_s,
    }


class Member:
    """One engine's place in the cluster. Lives on one asyncio loop; ``start`` and ``close`` bracket its life."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.name = spec.name
        run_directory = Path(spec.cluster.run_directory)
        self.address = socket_address(run_directory, spec.name)
        self._scheduler_address = socket_address(run_directory, "scheduler")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._outbox = Outbox(self._context)
        self._ports: list[Port] = []
        self._seen = 0
        self._epoch = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self.failed = asyncio.Event()

    def start(self, engine: Engine) -> None:
        """Connect, join, and report from now on."""
        self._engine = engine
        decoder = Decoder(ToEngine)
        self._inbox = inbox(self._context, self.address, decoder, self._receive)
        self._scheduler = scheduler_port(self._context, self._scheduler_address, self.name, decoder, self._receive)
        self._ports = [self._scheduler, self._inbox]
        self._join()
        self.spawn(self._report())

    def to_scheduler(self, message: Message) -> None:
        self._scheduler.send(message)

    def to_peer(self, address: str, message: Message) -> None:
        """To another engine's or a client's inbox."""
        self._outbox.send(address, message)

    def report_soon(self) -> None:
        """Report at the next opportunity instead of at the end of the interval."""
        self._wake.set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine that ends by itself or with the member; what it raises is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._reap)
        return task

    def spawn_essential(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine without which the engine is of no use: if it fails, so does the engine."""
        self.spawn(work).add_done_callback(self._note_failure)

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.failed.set()

    def _reap(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s: %s", self.name, error, exc_info=error)

    def _receive(self, message: Message) -> None:
        if isinstance(message, Rejoin):
            if message.epoch == self._epoch:  # several reports crossed with one answer
                return
            self._epoch = message.epoch
            logger.info("%s joins scheduler %s", self.name, message.epoch)
            self._engine.forget_all("the scheduler restarted")
            self._seen = 0
            self._join()
            return
        if isinstance(message, Assign):
            self._seen = max(self._seen, message.sequence)
        self._engine.handle(message)
        if isinstance(message, PeerFenced):
            self._outbox.forget(socket_address(Path(self.spec.cluster.run_directory), message.name))

    def _join(self) -> None:
        kv_blocks, buffer_blocks = self._engine.capacity
        self.to_scheduler(
            Join(
                name=self.name,
                role=self.spec.role,
                group=self.spec.group,
                node=self.spec.node,
                kv_blocks=kv_blocks,
                buffer_blocks=buffer_blocks,
                address=self.address,
                region=self._engine.region,
            )
        )

    async def _report(self) -> None:
        interval_s = self.spec.cluster.settings.scheduling.fetch_interval_s
        while True:
            unread, free, status = self._engine.load()
            self.to_scheduler(Fetch(name=self.name, seen=self._seen, unread_tokens=unread, free_kv_blocks=free, status=status))
            self._wake.clear()
            try:
                async with asyncio.timeout(interval_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def close(self) -> None:
        """Let queued messages out, then disconnect. A member that never started has only its context to end."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for port in self._ports:
            port.close(linger_s=0.5)
        self._outbox.close(linger_s=0.5)
        self._context.term()
