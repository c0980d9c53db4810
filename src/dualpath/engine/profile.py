"""Measuring one engine: forward times for the compute quota, prefill and storage rates for α and β (paper section 6)."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from dualpath.clock import Clock
from dualpath.costmodel.attention import AttentionTime
from dualpath.costmodel.fit import AttentionSample, fit
from dualpath.costmodel.hardware import EngineProfile
from dualpath.kvcache.chain import CacheNamespace, block_keys
from dualpath.kvcache.layout import BlockGeometry
from dualpath.models.base import CausalModel, PrefillSegment
from dualpath.storage.base import BlockRead, BlockWrite, Storage
from dualpath.storage.files import FileStorage
from dualpath.types import BlockKey

GRID_CACHED = (0, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768)
GRID_NEW = (1, 16, 64, 256, 512, 1024, 2048)
ROUNDS = 3
LONGEST_S = 2.0
"""Shapes beyond the first that takes longer are left out: the fit extrapolates."""
STORAGE_BYTES = 64 * 2**20


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
            seconds = _forward_s(model, device, cached, new, clock)
            samples.append(AttentionSample(cached, new, seconds))
            on_sample(samples[-1])
            if seconds > LONGEST_S:
                break
    return samples


def _forward_s(model: CausalModel, device: torch.device, cached: int, new: int, clock: Clock) -> float:
    shape = model.shape
    kv = torch.zeros(cached + new, shape.token_layer_bytes, dtype=torch.uint8, device=device)
    tokens = torch.zeros(new, dtype=torch.int64, device=device)
    times = []
    with torch.inference_mode():
        for _ in range(ROUNDS + 1):
            started = clock.now()
            hidden = model.embed(tokens)
            model.begin_prefill([PrefillSegment(0, cached, new)])
            for layer in range(shape.layers):
                hidden = model.prefill_layer(layer, hidden, kv)
            model.logits(hidden[-1:]).argmax().item()  # waits for the device
            times.append(clock.now() - started)
    return statistics.median(times[1:])


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
    times = []
    for _ in range(ROUNDS):
        started = clock.now()
        for batch in _batches(keys, len(views)):
            _finish(storage.read([BlockRead(key, view) for key, view in zip(batch, views, strict=False)]))
        times.append(clock.now() - started)
    return statistics.median(times)


def _batches(keys: Sequence[BlockKey], size: int) -> Iterator[Sequence[BlockKey]]:
    return (keys[at : at + size] for at in range(0, len(keys), size))


def _finish(future: Future[Any]) -> None:
    future.result()


def engine_profile(
    attention: Sequence[AttentionSample], storage_tokens_per_s: float, prompt: int, hit_rate: float
) -> EngineProfile:
    """The profile that the measurements amount to."""
    fitted = fit(attention)
    return EngineProfile(fitted, prefill_rate(fitted, prompt, hit_rate), storage_tokens_per_s)
