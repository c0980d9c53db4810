"""The scheduler's process (or thread): one socket, one service, one loop."""

from __future__ import annotations

import gc
import logging
import secrets
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import zmq

from dualpath.clock import MonotonicClock
from dualpath.control.block_index import BlockIndex
from dualpath.control.channel import QUEUED_MESSAGES, socket_address
from dualpath.control.decision_log import open_scheduler
from dualpath.control.messages import Decoder, Message, ToScheduler, encode
from dualpath.control.process import die_with_parent, log_to_stderr, run_to_end
from dualpath.control.scheduler_service import SchedulerService
from dualpath.control.spec import ClusterSpec, read_cluster_spec
from dualpath.errors import ProtocolError
from dualpath.storage.base import Storage
from dualpath.storage.files import IndexLease
from dualpath.storage.registry import open_storage

logger = logging.getLogger(__name__)

TICK_S = 0.05
TRANSMISSIONS_A_ROUND = 256
GC_THRESHOLD = 100_000
"""Turns and blocks are freed by reference counts; looking for cycles among millions of index nodes only costs time."""


def serve_store(spec: ClusterSpec, stop: threading.Event) -> None:
    """``serve`` with the cluster's store, under the lease of its index.

    Raises:
        StoreInUse: another process owns the store's index.
        StorageError, SettingsError: the store, or the decision log, cannot be used.
    """
    with IndexLease(Path(spec.store_directory)):
        storage = open_storage(spec.storage)
        try:
            serve(spec, storage, stop)
        finally:
            storage.close()


def serve(spec: ClusterSpec, storage: Storage, stop: threading.Event) -> None:
    """Own the cluster's scheduling and block index until ``stop`` is set.

    Raises:
        SettingsError: the decision log cannot be written.
    """
    clock = MonotonicClock()
    blocks = BlockIndex(storage, spec.store_capacity_blocks, spec.geometry)
    blocks.rebuild()
    with open_scheduler(spec, clock) as central:
        service = SchedulerService(spec, central, blocks, clock, secrets.token_hex(8))
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = context.socket(zmq.ROUTER)
        socket.linger = 0
        socket.sndhwm = socket.rcvhwm = QUEUED_MESSAGES
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.bind(socket_address(Path(spec.run_directory), "scheduler"))
        try:
            _loop(service, socket, stop)
        finally:
            socket.close()
            context.term()


def _loop(service: SchedulerService, socket: zmq.Socket[bytes], stop: threading.Event) -> None:
    clock, decoder = MonotonicClock(), Decoder(ToScheduler)
    next_tick = clock.now()
    while not stop.is_set():
        if socket.poll(max(0, int(1000 * (next_tick - clock.now())))):
            _receive_all(service, socket, decoder)
        if clock.now() >= next_tick:
            service.tick()
            next_tick = clock.now() + TICK_S
        for identity, frames in by_receiver(encoded(service.take_outbox())):
            socket.send_multipart([identity, *frames], zmq.NOBLOCK)


def encoded(outbox: Iterable[tuple[bytes, Message]]) -> Iterator[tuple[bytes, bytes]]:
    """The messages as frames; an assignment, which carries a whole prompt, goes to two engines but is encoded once."""
    last: Message | None = None
    frame = b""
    for identity, message in outbox:
        if message is not last:
            last, frame = message, encode(message)
        yield identity, frame


def by_receiver(outgoing: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[bytes, list[bytes]]]:
    """What each member gets, in order, as one transmission."""
    frames: defaultdict[bytes, list[bytes]] = defaultdict(list)
    for identity, frame in outgoing:
        frames[identity].append(frame)
    return frames.items()


def _receive_all(service: SchedulerService, socket: zmq.Socket[bytes], decoder: Decoder) -> None:
    """Handle what has arrived, up to a bound: answers have to go out, and time has to pass, under any load."""
    for _ in range(TRANSMISSIONS_A_ROUND):
        try:
            sender, *frames = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        for frame in frames:
            try:
                service.handle(sender, decoder.decode(frame))
            except ProtocolError as error:
                logger.error("%s: %s", sender.decode(errors="replace"), error)


def spare_the_index() -> None:
    """Have the cyclic collector run rarely, and never over everything: it takes a second for two million blocks."""
    gc.set_threshold(GC_THRESHOLD, 10, 1_000_000)


def main() -> None:
    """``python -m dualpath.control.scheduler_main SPEC PARENT_PID``"""
    die_with_parent(int(sys.argv[2]))
    spec = read_cluster_spec(Path(sys.argv[1]))
    log_to_stderr("scheduler")
    spare_the_index()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run_to_end(lambda: serve_store(spec, stop))


if __name__ == "__main__":
    main()
