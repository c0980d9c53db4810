"""One engine, put together from its spec and run until it is told to stop, as a process or a thread."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from pathlib import Path

import torch

from dualpath.clock import MonotonicClock
from dualpath.control.messages import RegionInfo
from dualpath.control.process import die_with_parent, exit_now, log_to_stderr, run_to_end
from dualpath.control.spec import EngineSpec, read_engine_spec
from dualpath.costmodel.attention import AttentionTime
from dualpath.engine.chain_writer import DecodeMemory
from dualpath.engine.decode import DecodeEngine
from dualpath.engine.decode_compute import DecodeCompute
from dualpath.engine.device_pool import DevicePool
from dualpath.engine.forward import PrefillCompute
from dualpath.engine.layer_loop import FrameMemory
from dualpath.engine.member import Member
from dualpath.engine.prefill import PrefillEngine
from dualpath.errors import ClusterError, DeadlineExceeded
from dualpath.models.registry import load_model, resolve_device
from dualpath.scheduling.batching import Batching
from dualpath.storage.base import Storage
from dualpath.storage.limited import LimitedStorage
from dualpath.storage.limiter import SharedSnicLimiter
from dualpath.storage.registry import open_storage
from dualpath.traffic.manager import TrafficManager
from dualpath.traffic.slices import PagePool
from dualpath.transport.base import Transport
from dualpath.transport.registry import create_transport
from dualpath.types import Role

logger = logging.getLogger(__name__)

STOP_POLL_S = 0.05
CLOSE_TIMEOUT_S = 5.0


def run_engine(spec: EngineSpec, stop: threading.Event) -> None:
    """Serve until ``stop`` is set.

    Raises:
        ModelError, StorageError: the engine cannot start.
        ClusterError: it can serve no longer.
    """
    torch.set_num_threads(1)
    asyncio.run(_run(spec, stop))


async def _run(spec: EngineSpec, stop: threading.Event) -> None:
    storage = _open_storage(spec)
    transport = create_transport("shm", spec.name)
    traffic = TrafficManager(storage, transport, spec.cluster.geometry, spec.cluster.settings.deadlines)
    member = Member(spec)
    try:
        engine = (_prefill if spec.role == Role.PREFILL else _decode)(member, traffic, transport)
        member.start(engine)
        engine.start()
        logger.info("%s serves", spec.name)
        while not stop.is_set() and not member.failed.is_set():
            await asyncio.sleep(STOP_POLL_S)
        await engine.close()
        await _close_traffic(traffic)
    finally:
        await member.close()
        transport.close()
        storage.close()
    if member.failed.is_set():
        raise ClusterError(f"{spec.name} can serve no longer; see its log")


async def _close_traffic(traffic: TrafficManager) -> None:
    try:
        await traffic.close(CLOSE_TIMEOUT_S)
    except DeadlineExceeded as error:
        logger.warning("closing all the same: %s", error)


def _open_storage(spec: EngineSpec) -> Storage:
    """The store behind this node's NIC."""
    storage = open_storage(spec.cluster.storage)
    bandwidth = spec.cluster.settings.storage.snic_bandwidth
    path = Path(spec.cluster.run_directory) / f"{spec.node}.snic"
    return LimitedStorage(storage, SharedSnicLimiter(path, float("inf") if bandwidth is None else float(bandwidth)))


def _prefill(member: Member, traffic: TrafficManager, transport: Transport) -> PrefillEngine:
    cluster = member.spec.cluster
    settings = cluster.settings.prefill
    device = resolve_device(cluster.settings.model.device)
    model = load_model(cluster.model_directory, cluster.settings.model.dtype, cluster.settings.model.device)
    buffer = traffic.add_pool(f"{member.name}/buffer", settings.prefill_buffer)
    frames = FrameMemory.allocate(
        f"{member.name}/kv", cluster.geometry, cluster.prefill_frames, cluster.prefill_kv_rows, device
    )
    transport.register(frames.region, frames.memory)
    batching = Batching(
        AttentionTime.from_dict(cluster.attention),
        quota_s=settings.quota_s,
        max_batch_tokens=settings.max_batch_tokens,
        kv_rows=cluster.prefill_kv_rows,
        block_tokens=cluster.geometry.block_tokens,
    )
    compute = PrefillCompute(model, frames, traffic, buffer.name, device, cluster.settings.deadlines.transfer_timeout_s)
    return PrefillEngine(member, traffic, transport, buffer, compute, batching, MonotonicClock())


def _decode(member: Member, traffic: TrafficManager, transport: Transport) -> DecodeEngine:
    cluster = member.spec.cluster
    settings = cluster.settings.decode
    device = resolve_device(cluster.settings.model.device)
    model = load_model(cluster.model_directory, cluster.settings.model.dtype, cluster.settings.model.device)
    buffer = traffic.add_pool(f"{member.name}/buffer", settings.decode_buffer)
    staging = traffic.add_pool(f"{member.name}/staging", settings.write_back_buffer)
    pool = DevicePool(cluster.geometry, cluster.decode_kv_blocks, device)
    pages = PagePool(f"{member.name}/kv", pool.capacity)
    transport.register(pages.region, pool.memory)
    found = transport.descriptor(buffer.name)
    region = RegionInfo(found.transport, found.region, found.bytes, found.locator)
    compute = DecodeCompute(model, pool, device)
    return DecodeEngine(member, traffic, DecodeMemory(buffer, staging, pages), compute, region, MonotonicClock())


def main() -> None:
    """``python -m dualpath.engine.main SPEC PARENT_PID``"""
    die_with_parent(int(sys.argv[2]))
    spec = read_engine_spec(Path(sys.argv[1]))
    log_to_stderr(spec.name)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run_to_end(lambda: run_engine(spec, stop))
    exit_now()


if __name__ == "__main__":
    main()
