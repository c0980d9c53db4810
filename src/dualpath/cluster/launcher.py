"""The launcher: starts the scheduler and the engines, fences the silent, restarts the dead (rule 10)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from pathlib import Path

import zmq

from dualpath.clock import Clock
from dualpath.cluster.build import engine_spec
from dualpath.cluster.workers import Worker, spec_name, start_worker
from dualpath.control.channel import scheduler_port, socket_address
from dualpath.control.messages import (
    Decoder,
    EngineExited,
    Fence,
    LauncherHello,
    Message,
    StatusQuery,
    StatusReply,
    ToLauncher,
    Welcome,
)
from dualpath.control.spec import ClusterSpec, EngineSpec
from dualpath.errors import ClusterError
from dualpath.types import Role

logger = logging.getLogger(__name__)

HELLO_INTERVAL_S = 0.25
QUICK_DEATHS = 5
QUICK_DEATH_WINDOW_S = 60.0
"""An engine that dies so often within so long is given up for the window's rest: restarting would only burn the machine."""
REMEMBERED_EXITS = 64
"""So many of the last exits are told to every new scheduler."""


class Launcher:
    """Keeps one cluster's members alive. Lives on one asyncio loop, between ``start`` and ``close``."""

    def __init__(self, spec: ClusterSpec, clock: Clock, *, processes: bool = True) -> None:
        self.spec = spec
        self.restarts = 0
        self._clock = clock
        self._processes = processes
        self._run_directory = Path(spec.run_directory)
        self._workers: dict[str, Worker] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._exits: deque[str] = deque(maxlen=REMEMBERED_EXITS)
        self._epoch = ""
        self._started = False
        self._closing = False
        self._joined: frozenset[str] = frozenset()
        self._first_death: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    async def start(self, timeout_s: float = 120.0) -> None:
        """Start everything; returns when all engines have joined.

        Raises:
            ClusterError: one of them ended, or did not join within ``timeout_s``; nothing is left running.
        """
        address = socket_address(self._run_directory, "scheduler")
        decoder = Decoder(ToLauncher | StatusReply)
        self._port = scheduler_port(self._context, address, "launcher", decoder, self._on_message)
        cluster = self.spec.settings.cluster
        self._keep(None, 0)
        for role, count in ((Role.PREFILL, cluster.prefill), (Role.DECODE, cluster.decode)):
            for index in range(count):
                self._keep(role, index)
        self._keepers.append(asyncio.create_task(self._greet()))
        try:
            await self._all_joined(cluster.prefill + cluster.decode, timeout_s)
        except BaseException:
            await self.close()
            raise
        self._started = True

    async def _all_joined(self, expected: int, timeout_s: float) -> None:
        end = self._clock.now() + timeout_s
        while len(self._joined) < expected:
            if self._first_death.done():
                raise ClusterError(self._first_death.result())
            if self._clock.now() > end:
                raise ClusterError(f"only {len(self._joined)} of {expected} engines joined within {timeout_s:g} s")
            await asyncio.sleep(0.02)

    def pids(self) -> dict[str, int]:
        """Processes by name; may be called from any thread."""
        return {worker.name: worker.pid for worker in list(self._workers.values()) if worker.pid is not None}

    async def close(self, timeout_s: float = 10.0) -> None:
        """Stop engines, then the scheduler; kill what does not stop in time. Idempotent."""
        if self._closing:
            return
        self._closing = True
        workers = list(self._workers.values())
        for worker in workers:
            if worker.name != "scheduler":
                worker.stop()
        await self._wait([worker for worker in workers if worker.name != "scheduler"], timeout_s)
        for worker in workers:
            worker.stop()
        await self._wait(workers, timeout_s)
        for task in self._keepers:
            task.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._port.close()
        self._context.term()

    async def _wait(self, workers: list[Worker], timeout_s: float) -> None:
        waits = [asyncio.ensure_future(worker.wait()) for worker in workers]
        if not waits:
            return
        _, late = await asyncio.wait(waits, timeout=timeout_s)
        for worker, wait in zip(workers, waits, strict=True):
            if wait in late:
                logger.warning("%s does not stop; killing it", worker.name)
                worker.kill()
        if late:
            await asyncio.wait(late, timeout=timeout_s)

    # --- keeping members alive ----------------------------------------------------------------------------------------

    def _keep(self, role: Role | None, index: int) -> None:
        self._keepers.append(asyncio.create_task(self._keep_alive(role, index)))

    async def _keep_alive(self, role: Role | None, index: int) -> None:
        """Start a member, and start it again whenever it ends, until the cluster closes."""
        deaths: deque[float] = deque(maxlen=QUICK_DEATHS)
        incarnation = 0
        while not self._closing:
            spec: ClusterSpec | EngineSpec = self.spec if role is None else engine_spec(self.spec, role, index, incarnation)
            outcome = await self._live_once(spec)
            if self._closing:
                return
            name = spec_name(spec)
            if not self._started:  # another one would end the same way
                if not self._first_death.done():
                    self._first_death.set_result(f"{name} did not start: {outcome}")
                return
            self._note_death(name, outcome)
            incarnation += 1
            deaths.append(self._clock.now())
            if len(deaths) == QUICK_DEATHS and deaths[-1] - deaths[0] < QUICK_DEATH_WINDOW_S:
                pause_s = QUICK_DEATH_WINDOW_S - (deaths[-1] - deaths[0])
                logger.error("%s died %d times in a row; waiting %.0f s", name, QUICK_DEATHS, pause_s)
                await asyncio.sleep(pause_s)

    async def _live_once(self, spec: ClusterSpec | EngineSpec) -> str:
        """One life of a member, from its start to its end; why it ended, or did not even start."""
        try:
            worker = await start_worker(spec, self._run_directory, self._processes)
        except ClusterError as error:
            return str(error)
        if self._closing:  # began meanwhile, and has not seen it
            worker.kill()
        self._workers[worker.name] = worker
        outcome = await worker.wait()
        del self._workers[worker.name]
        return outcome

    def _note_death(self, name: str, outcome: str) -> None:
        logger.warning("%s ended (%s); restarting it", name, outcome)
        self.restarts += 1
        if name != "scheduler":
            self._exits.append(name)
            self._port.send(EngineExited(name))

    async def _greet(self) -> None:
        """Tell the scheduler, and each of its successors, that we are here."""
        queries = 0
        while True:
            self._port.send(LauncherHello(self.restarts))
            queries += 1
            self._port.send(StatusQuery(queries))
            await asyncio.sleep(HELLO_INTERVAL_S if queries > 40 else HELLO_INTERVAL_S / 5)

    def _on_message(self, message: Message) -> None:
        if isinstance(message, Fence):
            worker = self._workers.get(message.name)
            if worker is not None:
                logger.warning("fencing %s", message.name)
                worker.kill()
            else:
                self._port.send(EngineExited(message.name))
        elif isinstance(message, Welcome):
            self._on_welcome(message)
        elif isinstance(message, StatusReply):
            self._joined = frozenset(engine.name for engine in message.status.engines)

    def _on_welcome(self, message: Welcome) -> None:
        """A new scheduler has to hear who ended before its time."""
        if message.epoch != self._epoch:
            self._epoch = message.epoch
            for name in self._exits:
                self._port.send(EngineExited(name))
