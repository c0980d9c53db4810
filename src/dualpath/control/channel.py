"""Sockets of the control plane: Unix-domain ZeroMQ on an asyncio loop, MessagePack frames, no pickle anywhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import zmq

from dualpath.control.messages import Decoder, Message, encode
from dualpath.errors import ClusterError, ProtocolError

logger = logging.getLogger(__name__)

LONGEST_SOCKET_PATH = 100
"""Bytes that the kernel allows in a Unix socket's path, less a margin."""

QUEUED_MESSAGES = 100_000
TRANSMISSIONS_A_TURN_OF_THE_LOOP = 256


def socket_address(directory: Path, name: str) -> str:
    """The address of ``name``'s socket in a cluster's run directory.

    Raises:
        ClusterError: the path would be longer than the kernel allows.
    """
    path = str(directory / f"{name}.sock")
    if len(path.encode()) > LONGEST_SOCKET_PATH:
        raise ClusterError(f"socket path {path!r} is longer than {LONGEST_SOCKET_PATH} bytes; set TMPDIR to a shorter path")
    return f"ipc://{path}"


class Port:
    """A socket whose messages arrive as callbacks on the running loop; sending never blocks.

    What one turn of the loop sends goes out together, a frame a message: each transmission wakes ZeroMQ's I/O thread here
    and a process there, which costs far more than a frame. Messages to a peer that is gone, or hopelessly behind, are
    dropped: every remote wait has a deadline of its own.
    """

    def __init__(
        self, socket: zmq.Socket[bytes], decoder: Decoder | None, on_message: Callable[[Message], None] | None
    ) -> None:
        self._socket = socket
        self._decoder = decoder
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._outgoing: list[bytes] = []
        if on_message is not None:
            self._loop.add_reader(int(socket.getsockopt(zmq.FD)), self._drain)
            self._loop.call_soon(self._drain)

    def send(self, message: Message) -> None:
        """Queue a message."""
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(encode(message))

    def _flush(self) -> None:
        frames, self._outgoing = self._outgoing, []
        if not frames or self._closed:
            return
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            logger.warning("peer takes no messages; dropping %d", len(frames))
        if self._on_message is not None:
            # ZeroMQ's descriptor is edge-triggered and shared by both directions: a send may swallow the edge of a receive.
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        for _ in range(TRANSMISSIONS_A_TURN_OF_THE_LOOP):
            if self._closed:
                return
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            for frame in frames:
                self._deliver(frame)
        self._loop.call_soon(self._drain)

    def _deliver(self, frame: bytes) -> None:
        assert self._decoder is not None
        assert self._on_message is not None
        try:
            message = self._decoder.decode(frame)
        except ProtocolError as error:
            logger.error("%s", error)
            return
        self._on_message(message)

    def close(self, linger_s: float = 0.0) -> None:
        """Close, leaving queued messages ``linger_s`` to get out. Idempotent."""
        if self._closed:
            return
        self._flush()
        self._closed = True
        if self._on_message is not None:
            self._loop.remove_reader(int(self._socket.getsockopt(zmq.FD)))
        self._socket.close(linger=int(linger_s * 1000))


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.linger = 0
    socket.sndhwm = QUEUED_MESSAGES
    socket.rcvhwm = QUEUED_MESSAGES
    return socket


def scheduler_port(
    context: zmq.Context[zmq.Socket[bytes]], address: str, name: str, decoder: Decoder, on_message: Callable[[Message], None]
) -> Port:
    """The connection of a named member to the scheduler; it outlives the scheduler's restarts."""
    socket = _socket(context, zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, name.encode())
    socket.reconnect_ivl = 20
    socket.connect(address)
    return Port(socket, decoder, on_message)


def inbox(
    context: zmq.Context[zmq.Socket[bytes]], address: str, decoder: Decoder, on_message: Callable[[Message], None]
) -> Port:
    """Where a member takes one-way messages from its peers."""
    socket = _socket(context, zmq.PULL)
    socket.bind(address)
    return Port(socket, decoder, on_message)


class Outbox:
    """One-way connections to peers by address, opened when first used."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._context = context
        self._ports: dict[str, Port] = {}

    def send(self, address: str, message: Message) -> None:
        """Queue a message to the peer at ``address``."""
        port = self._ports.get(address)
        if port is None:
            socket = _socket(self._context, zmq.PUSH)
            socket.reconnect_ivl, socket.reconnect_ivl_max = 20, 1000  # a client may have gone for good
            socket.connect(address)
            port = self._ports[address] = Port(socket, None, None)
        port.send(message)

    def forget(self, address: str) -> None:
        """Close the connection to a peer that has ended."""
        port = self._ports.pop(address, None)
        if port is not None:
            port.close()

    def close(self, linger_s: float = 0.0) -> None:
        """Close all connections."""
        for port in self._ports.values():
            port.close(linger_s)
        self._ports.clear()
