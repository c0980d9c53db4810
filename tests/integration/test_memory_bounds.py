"""What a cluster holds at most: device KV of a prefill batch, the store on disk, the buffers."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.turn_reference import wait_idle

from dualpath.cluster.local import LocalCluster
from dualpath.control.turns import ClusterStatus, EngineStatus
from dualpath.models.create import create_model

LAYERS, TOKEN_LAYER_BYTES, BLOCK = 4, 2 * 2 * 8 * 4, 16
RACING_BLOCKS = 8
"""A walk through a directory that changes meanwhile may count a block that goes and the one that takes its place."""
SMALL: dict[str, Any] = {
    "block_tokens": BLOCK,
    "prefill_buffer": "2MiB",
    "decode_buffer": "2MiB",
    "decode_kv_memory": "2MiB",
    "prefill_kv_memory": "1MiB",
    "write_back_buffer": "256KiB",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bounds") / "model"
    create_model(directory, layers=LAYERS, hidden=32, heads=4, kv_heads=2, head_dim=8, intermediate=64)
    return directory


def _engine(status: ClusterStatus, role: str) -> EngineStatus:
    return next(engine for engine in status.engines if engine.role == role)


@pytest.mark.parametrize("layerwise", [True, False])
def test_layerwise_prefill_holds_two_layers(model: Path, layerwise: bool) -> None:
    tokens = 200
    with LocalCluster(model, processes=False, layerwise=layerwise, **SMALL) as cluster:
        cluster.generate(list(range(tokens)), max_tokens=1, ignore_eos=True)
        peak = _engine(wait_idle(cluster), "prefill").peak_kv_bytes
    assert peak == (2 if layerwise else LAYERS) * tokens * TOKEN_LAYER_BYTES


def test_store_and_buffers_stay_within_their_bounds(model: Path, tmp_path: Path) -> None:
    capacity_blocks = 40
    block_bytes = LAYERS * BLOCK * TOKEN_LAYER_BYTES
    store = tmp_path / "store"
    knobs = {**SMALL, "store": str(store), "store_capacity": capacity_blocks * block_bytes, "decode": 2}
    seen: list[int] = []
    with LocalCluster(model, processes=False, **knobs) as cluster:

        def agent(seed: int) -> None:
            draw = random.Random(seed)
            prompt = [draw.randrange(256) for _ in range(150)]
            for _ in range(4):
                done = cluster.generate(prompt, max_tokens=20, ignore_eos=True, timeout_s=60)
                prompt += [*done.tokens, *(draw.randrange(256) for _ in range(10))]
                seen.append(sum(1 for file in store.rglob("*") if file.is_file() and file.stat().st_size >= block_bytes))

        threads = [threading.Thread(target=agent, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        status = wait_idle(cluster)
    assert status.evicted_blocks > 0, "the working set is larger than the store"
    assert status.stored_blocks <= capacity_blocks
    assert max(seen) <= capacity_blocks + RACING_BLOCKS
    assert all(engine.buffer_blocks_free == engine.buffer_blocks for engine in status.engines)
