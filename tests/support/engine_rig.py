"""Engines without sockets, processes and a model: what they send is recorded, and I/O and compute end when a test says so."""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

from dualpath.control.messages import Assign, Message, RegionInfo, Stages, Submit
from dualpath.control.spec import ClusterSpec, EngineSpec
from dualpath.control.turns import SamplingParams
from dualpath.knobs import with_knobs
from dualpath.kvcache.chain import CacheNamespace, block_keys
from dualpath.kvcache.layout import BlockGeometry
from dualpath.settings import Settings
from dualpath.storage.base import BlockRead, BlockWrite, ReadOutcome, StoredBlock, WriteOutcome
from dualpath.transport.base import Completion, CopyBatch, RegionDescriptor
from dualpath.types import BlockKey

GEOMETRY = BlockGeometry(layers=2, block_tokens=4, token_layer_bytes=8)
NAMESPACE = CacheNamespace("model", "float32", GEOMETRY.block_tokens, GEOMETRY.full_block_bytes)
NO_STAGES = Stages()
REGION = RegionInfo("held", "decode/buffer", 1 << 20, "here")
MessageType = TypeVar("MessageType", bound=Message)


def cluster_spec(settings: Settings | None = None) -> ClusterSpec:
    """A cluster of which nothing exists."""
    return ClusterSpec(
        run_directory="/nowhere",
        model_directory="/nowhere/model",
        model_fingerprint="model",
        store_directory="/nowhere/store",
        namespace=NAMESPACE,
        geometry=GEOMETRY,
        max_context_tokens=1000,
        settings=settings or with_knobs(Settings(), {"block_tokens": GEOMETRY.block_tokens}),
        storage_tokens_per_s=1e6,
        prefill_tokens_per_s=1e4,
        attention={},
    )


class RecordingMember:
    """Stands in for ``engine.member.Member``: keeps what is sent, as (receiver, message)."""

    def __init__(self, role: str, settings: Settings | None = None) -> None:
        self.name = f"{role}-0.0"
        self.address = f"at {self.name}"
        self.spec = EngineSpec(cluster=cluster_spec(settings), name=self.name, role=role, node="node", group="group")
        self.sent: list[tuple[str, Message]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def to_scheduler(self, message: Message) -> None:
        self.sent.append(("scheduler", message))

    def to_peer(self, address: str, message: Message) -> None:
        self.sent.append((address, message))

    def report_soon(self) -> None:
        pass

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        return self.tasks[-1]

    spawn_essential = spawn

    def messages(self, kind: type[MessageType]) -> list[MessageType]:
        """What has been sent of this kind, in order."""
        return [message for _, message in self.sent if isinstance(message, kind)]

    async def close(self) -> None:
        """End all tasks; raises what one of them died of."""
        for task in self.tasks:
            task.cancel()
        for result in await asyncio.gather(*self.tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


class HeldTransport:
    """A transport whose posts end when the test says so, or at once while ``held`` is False."""

    def __init__(self) -> None:
        self.held = False
        self.posts: list[Completion] = []
        self.attached: set[str] = set()
        self.name = "held"

    def allocate(self, region: str, length: int) -> memoryview:
        return memoryview(bytearray(length))

    def register(self, region: str, memory: torch.Tensor) -> RegionDescriptor:
        return RegionDescriptor(self.name, region, memory.numel(), "")

    def descriptor(self, region: str) -> RegionDescriptor:
        return RegionDescriptor(self.name, region, 0, "here")

    def attach(self, descriptor: RegionDescriptor) -> None:
        self.attached.add(descriptor.region)

    def detach(self, region: str) -> None:
        self.attached.discard(region)

    def post(self, batches: Sequence[CopyBatch]) -> Completion:
        completion = Completion()
        self.posts.append(completion)
        if not self.held:
            completion.set_result(None)
        return completion

    def end(self) -> None:
        """Let everything that is held end well."""
        for post in self.posts:
            if not post.done():
                post.set_result(None)

    def close(self) -> None:
        pass


class HeldStorage:
    """A storage whose reads and writes end when the test says so, or at once while ``held`` is False."""

    def __init__(self) -> None:
        self.held = False
        self.reads: list[tuple[Sequence[BlockRead], Future[list[ReadOutcome]]]] = []
        self.writes: list[tuple[Sequence[BlockWrite], Future[list[WriteOutcome]]]] = []

    def read(self, blocks: Sequence[BlockRead]) -> Future[list[ReadOutcome]]:
        future: Future[list[ReadOutcome]] = Future()
        self.reads.append((blocks, future))
        if not self.held:
            future.set_result([ReadOutcome.OK] * len(blocks))
        return future

    def write(self, blocks: Sequence[BlockWrite]) -> Future[list[WriteOutcome]]:
        future: Future[list[WriteOutcome]] = Future()
        self.writes.append((blocks, future))
        if not self.held:
            future.set_result([WriteOutcome.OK] * len(blocks))
        return future

    def delete(self, keys: Sequence[BlockKey]) -> int:
        return 0

    def scan(self) -> Iterator[StoredBlock]:
        return iter(())

    def close(self) -> None:
        pass

    def end(self) -> None:
        """Let everything that is held end well."""
        for reads, reading in self.reads:
            if not reading.done():
                reading.set_result([ReadOutcome.OK] * len(reads))
        for writes, writing in self.writes:
            if not writing.done():
                writing.set_result([WriteOutcome.OK] * len(writes))


class Gate:
    """A call on another thread that waits in ``passing`` until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._open = threading.Semaphore(0)
        self._always = threading.Event()
        self._always.set()

    def shut(self) -> None:
        """Hold calls from now on."""
        self._always.clear()

    def open_once(self) -> None:
        self.entered.clear()
        self._open.release()

    def open(self) -> None:
        """Hold no calls any more."""
        self._always.set()
        self._open.release()

    def passing(self) -> None:
        if not self._always.is_set():
            self.entered.set()
            assert self._open.acquire(timeout=10)

    async def wait_entered(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 10)


async def settled() -> None:
    """Let everything that can go on do so, other threads' results included."""
    for turn_of_the_loop in range(60):
        await asyncio.sleep(0.001 if turn_of_the_loop % 6 == 0 else 0)


def assignment(
    request_id: str,
    prompt_tokens: int,
    *,
    read_prefill: int = 0,
    read_decode: int = 0,
    max_tokens: int = 8,
    timeout_s: float = 30,
) -> Assign:
    """A placed turn whose prompt is 0, 1, 2, …"""
    prompt = array("I", range(prompt_tokens)).tobytes()
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    keys = b"".join(block_keys(NAMESPACE.digest, prompt, GEOMETRY.block_tokens))
    return Assign(
        sequence=1,
        submit=Submit(request_id, memoryview(prompt), keys, sampling, 0, "client", timeout_s),
        prefill="prefill-0.0",
        decode="decode-0.0",
        prefill_address="at prefill-0.0",
        decode_address="at decode-0.0",
        decode_region=REGION,
        read_prefill_tokens=read_prefill,
        read_decode_tokens=read_decode,
        scheduling_s=0.0,
    )
