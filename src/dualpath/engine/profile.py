"""Measuring one engine: forward times for the compute quota, prefill and storage rates for α and β, and decode steps and
copies for a simulation of it (paper section 6)."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from dualpath.clock import Clock
from dualpath.control.turns import SamplingParams
from dualpath.costmodel.attention import AttentionTime
from dualpath.costmodel.fit import AttentionSample, DecodeSample, fit, fit_decode
from dualpath.costmodel.hardware import EngineProfile, EngineTimes
from dualpath.engine.decode_compute import DecodeCompute, DecodeRow
from dualpath.engine.device_pool import DevicePool
from dualpath.kvcache.chain import CacheNamespace, block_keys
from dualpath.kvcache.layout import BlockGeometry
from dualpath.models.base import CausalModel, PrefillSegment
from dualpath.storage.base import BlockRead, BlockWrite, Storage
from dualpath.storage.files import FileStorage
from dualpath.traffic.copies import handoff_batch
from dualpath.traffic.slices import PagePool
from dualpath.transport.shm import ShmTransport
from dualpath.types import BlockKey

GRID_CACHED = (0, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768)
GRID_NEW = (1, 16, 64, 256, 512, 1024, 2048)
ROUNDS = 3
LONGEST_S = 2.0
"""Shapes beyond the first that takes longer are left out: the fit extrapolates."""
STORAGE_BYTES = 64 * 2**20
DECODE_REQUESTS = (1, 2, 4, 8, 16)
DECODE_CONTEXT = (64, 512, 2048)
BATCH_REQUESTS, BATCH_NEW = 4, 16
COPY_BYTES = 4 * 2**20
COPY_TIMEOUT_S = 60.0


def measure_attention(
    model: CausalModel,
    device: torch.device,
    max_tokens: int,
    clock: Clock,
    on_sample: Callable[[AttentionSample], None] = lambda sample: None,
) -> list[AttentionSample]:
    """Forward times of single requests of ``(cached, new)`` tokens over all layers, the median of a few rounds each."""
    samples = []
    for cached in (one for one in GRID_CACHED if one < max_tokens):
        for new in (one for one in GRID_NEW if cached + one <= max_tokens):
            seconds = _forward_s(model, device, [PrefillSegment(0, cached, new)], clock)
            samples.append(AttentionSample(cached, new, seconds))
            on_sample(samples[-1])
            if seconds > LONGEST_S:
                break
    return samples


def _forward_s(model: CausalModel, device: torch.device, segments: Sequence[PrefillSegment], clock: Clock) -> float:
    shape = model.shape
    rows = sum(segment.cached + segment.new for segment in segments)
    kv = torch.zeros(rows, shape.token_layer_bytes, dtype=torch.uint8, device=device)
    tokens = torch.zeros(sum(segment.new for segment in segments), dtype=torch.int64, device=device)

    def forward() -> None:
        hidden = model.embed(tokens)
        model.begin_prefill(segments)
        for layer in range(shape.layers):
            hidden = model.prefill_layer(layer, hidden, kv)
        model.logits(hidden[-len(segments) :]).argmax(dim=-1).tolist()  # waits for the device

    with torch.inference_mode():
        return _median_s(forward, clock)


def _median_s(work: Callable[[], object], clock: Clock) -> float:
    """The median over a few rounds, after one that does not count."""
    times = []
    for _ in range(ROUNDS + 1):
        started = clock.now()
        work()
        times.append(clock.now() - started)
    return statistics.median(times[1:])


def measure_forward(model: CausalModel, device: torch.device, max_tokens: int, clock: Clock) -> float:
    """The seconds of a forward that a batch of several requests pays only once: layers' launches, what it shares."""
    cached = min(512, max(0, max_tokens - BATCH_NEW))
    length = cached + BATCH_NEW
    segments = [PrefillSegment(number * length, cached, BATCH_NEW) for number in range(BATCH_REQUESTS)]
    alone_s = _forward_s(model, device, segments[:1], clock)
    own_s = (_forward_s(model, device, segments, clock) - alone_s) / (BATCH_REQUESTS - 1)
    return max(0.0, alone_s - own_s)


def measure_decode(
    model: CausalModel, device: torch.device, max_tokens: int, block_tokens: int, clock: Clock
) -> list[DecodeSample]:
    """Times of decode steps by sequences and their context, the median of a few rounds each."""
    shape = model.shape
    geometry = BlockGeometry(shape.layers, block_tokens, shape.token_layer_bytes)
    samples = []
    for context in [one for one in DECODE_CONTEXT if one < max_tokens] or [max_tokens - 1]:
        pages = geometry.blocks(context + 1)
        compute = DecodeCompute(model, DevicePool(geometry, pages * DECODE_REQUESTS[-1], device), device)
        for requests in DECODE_REQUESTS:
            rows = [_decode_row(range(one * pages, (one + 1) * pages), context) for one in range(requests)]
            seconds = _median_s(lambda compute=compute, rows=rows: compute.step(rows), clock)  # type: ignore[misc]
            samples.append(DecodeSample(requests, requests * context, seconds))
    return samples


def _decode_row(pages: range, context: int) -> DecodeRow:
    return DecodeRow(pages, context, 0, SamplingParams(max_tokens=2, ignore_eos=True), 1)


def measure_copies(geometry: BlockGeometry, device: torch.device, clock: Clock) -> float:
    """Bytes a second of copies from a DRAM buffer to the device's pages, as a hand-off makes them."""
    blocks = max(2, COPY_BYTES // geometry.full_block_bytes)
    transport = ShmTransport("profile-", clock)
    try:
        pool = DevicePool(geometry, blocks, device)
        transport.register("pages", pool.memory)
        transport.allocate("buffer", blocks * geometry.slot_bytes)
        tokens = blocks * geometry.block_tokens
        batch = handoff_batch(geometry, PagePool("pages", blocks), range(blocks), "buffer", range(blocks), tokens)
        seconds = _median_s(lambda: transport.post([batch]).result(COPY_TIMEOUT_S), clock)
    finally:
        transport.close()
    return tokens * geometry.token_bytes / seconds


def prefill_rate(attention: AttentionTime, prompt_tokens: int, hit_rate: float) -> float:
    """Prompt tokens a second, hits included as the scheduler counts them, for turns of this size and hit rate."""
    new = max(1.0, prompt_tokens * (1.0 - hit_rate))
    return prompt_tokens / attention(prompt_tokens - new, new)


def measure_storage(geometry: BlockGeometry, directory: Path | None, threads: int, clock: Clock) -> float:
    """Tokens of KV that one engine reads from the store's file system a second, freshly written ones (page cache)."""
    namespace = CacheNamespace("profile", "opaque", geometry.block_tokens, geometry.full_block_bytes)
    count = max(4, min(4096, STORAGE_BYTES // geometry.full_block_bytes))
    keys = block_keys(namespace.digest, range(count * geometry.block_tokens), geometry.block_tokens)
    with tempfile.TemporaryDirectory(prefix="dualpath-profile-", dir=directory) as root:
        storage = FileStorage(root, namespace, threads=threads)
        try:
            seconds = _read_s(storage, keys, geometry, clock)
        finally:
            storage.close()
    return count * geometry.block_tokens / seconds


def _read_s(storage: Storage, keys: Sequence[BlockKey], geometry: BlockGeometry, clock: Clock) -> float:
    memory = memoryview(bytearray(8 * geometry.full_block_bytes))
    views = [memory[at : at + geometry.full_block_bytes] for at in range(0, len(memory), geometry.full_block_bytes)]
    parents = [None, *keys[:-1]]
    blocks = [BlockWrite(key, parent, depth, views[0]) for depth, (key, parent) in enumerate(zip(keys, parents, strict=True))]
    storage.write(blocks).result()

    def read() -> None:
        for batch in _batches(keys, len(views)):
            _finish(storage.read([BlockRead(key, view) for key, view in zip(batch, views, strict=False)]))

    return _median_s(read, clock)


def _batches(keys: Sequence[BlockKey], size: int) -> Iterator[Sequence[BlockKey]]:
    return (keys[at : at + size] for at in range(0, len(keys), size))


def _finish(future: Future[Any]) -> None:
    future.result()


def engine_times(decode: Sequence[DecodeSample], forward_s: float, copy_bytes_per_s: float) -> EngineTimes:
    """The engine's own times that the measurements amount to; what a turn costs besides has its defaults."""
    step, request, context = fit_decode(decode)
    return EngineTimes(forward_s, step, request, context, copy_bytes_per_s)


def engine_profile(
    attention: Sequence[AttentionSample],
    storage_tokens_per_s: float,
    prompt: int,
    hit_rate: float,
    times: EngineTimes | None = None,
) -> EngineProfile:
    """The profile that the measurements amount to."""
    fitted = fit(attention)
    return EngineProfile(fitted, prefill_rate(fitted, prompt, hit_rate), storage_tokens_per_s, times or EngineTimes())
