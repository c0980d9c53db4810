"""How fast Layer Blocks go from one process's buffer to another's over shared memory, beside a plain memcpy of the same bytes.

The blocks lie in shuffled slots on both sides and move layer by layer, as a layer stream moves them. The memcpy moves as many
bytes a call, in one piece, between the same two mapped memories. A third way, the whole buffer in one call, is reported too:
from some hundred MiB a call on, glibc writes past the cache, which nothing that moves blocks or layers can have. Rounds of
all alternate, so that all see the same machine.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import msgspec
import numpy as np

from dualpath.kvcache.layout import BlockGeometry
from dualpath.transport.base import Completion, CopyBatch, Operation, RegionDescriptor
from dualpath.transport.shm import ShmTransport

MEBIBYTE = 2**20
TARGET_RATIO = 0.60
WAIT_S = 60.0

OWNER = """
import sys, msgspec
from dualpath.transport.shm import ShmTransport
transport = ShmTransport("bench-owner-")
transport.allocate("decode-buffer", int(sys.argv[1]))
print(msgspec.json.encode(transport.descriptor("decode-buffer")).decode(), flush=True)
sys.stdin.read()
transport.close()
"""


class Rig:
    """Both buffers as this process sees them, and the two ways to fill the peer's."""

    def __init__(self, descriptor: RegionDescriptor, geometry: BlockGeometry, blocks: int) -> None:
        self.geometry = geometry
        self.transport = ShmTransport("bench-poster-")
        self.bytes = descriptor.bytes
        self.near = np.frombuffer(self.transport.allocate("prefill-buffer", self.bytes), dtype=np.uint8)
        self.near[:] = np.arange(self.bytes, dtype=np.uint64).view(np.uint8)[: self.bytes]
        self.transport.attach(descriptor)
        with open(descriptor.locator.split("#")[0], "r+b", buffering=0) as file:
            self.far = np.frombuffer(mmap.mmap(file.fileno(), self.bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE), np.uint8)
        random = np.random.default_rng(1)
        slots = np.column_stack((random.permutation(blocks), random.permutation(blocks))).astype(np.int64)
        lengths = np.full(blocks, geometry.layer_block_bytes, dtype=np.int64)
        self.layer_0 = np.column_stack((slots * geometry.slot_bytes, lengths))

    def by_transport(self) -> None:
        step = np.array((self.geometry.layer_block_bytes, self.geometry.layer_block_bytes, 0), dtype=np.int64)
        completions: list[Completion] = []
        for layer in range(self.geometry.layers):
            copies = self.layer_0 + layer * step
            completions.append(self.transport.post([CopyBatch(Operation.WRITE, "prefill-buffer", "decode-buffer", copies)]))
        for completion in completions:
            completion.result(WAIT_S)

    def by_memcpy(self) -> None:
        self._memcpy(self.bytes // self.geometry.layers)

    def by_one_memcpy(self) -> None:
        self._memcpy(self.bytes)

    def _memcpy(self, call_bytes: int) -> None:
        for start in range(0, self.bytes, call_bytes):
            length = min(call_bytes, self.bytes - start)
            ctypes.memmove(self.far.ctypes.data + start, self.near.ctypes.data + start, length)

    def check(self) -> None:
        """Every block has arrived in its slot."""
        rows = (self.bytes // self.geometry.slot_bytes, self.geometry.slot_bytes)
        local, remote = (self.layer_0[:, :2] // self.geometry.slot_bytes).T
        if not np.array_equal(self.far.reshape(rows)[remote], self.near.reshape(rows)[local]):
            raise SystemExit("the peer's buffer does not hold what was sent")


def seconds(run: Callable[[], None]) -> float:
    started_s = time.perf_counter()
    run()
    return time.perf_counter() - started_s


def measure(rig: Rig, rounds: int) -> dict[str, float]:
    """Medians over interleaved rounds, after one that is not counted."""
    ways = {"transport": rig.by_transport, "memcpy": rig.by_memcpy, "one_memcpy": rig.by_one_memcpy}
    rig.by_one_memcpy()
    rig.by_transport()
    rig.check()
    taken_s = [{name: seconds(run) for name, run in ways.items()} for _ in range(rounds)]
    result = {f"{name}_gb_per_s": rig.bytes / statistics.median(taken[name] for taken in taken_s) / 1e9 for name in ways}
    result["ratio"] = statistics.median(taken["memcpy"] / taken["transport"] for taken in taken_s)
    result["ratio_to_one_memcpy"] = statistics.median(taken["one_memcpy"] / taken["transport"] for taken in taken_s)
    return result | {"target_ratio": TARGET_RATIO}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--block-tokens", type=int, default=64)
    parser.add_argument("--token-layer-bytes", type=int, default=1024)
    parser.add_argument("--total-mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    geometry = BlockGeometry(arguments.layers, arguments.block_tokens, arguments.token_layer_bytes)
    blocks = arguments.total_mib * MEBIBYTE // geometry.slot_bytes
    command = [sys.executable, "-c", OWNER, str(blocks * geometry.slot_bytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        rig = Rig(msgspec.json.decode(owner.stdout.readline(), type=RegionDescriptor), geometry, blocks)
        result = measure(rig, arguments.rounds)
        rig.transport.close()
    if arguments.json:
        print(json.dumps(result))
    else:
        print(f"{blocks} blocks of {geometry.layers} x {geometry.layer_block_bytes} bytes, {arguments.rounds} rounds")
        print(f"transport              {result['transport_gb_per_s']:.2f} GB/s")
        print(
            f"memcpy, a layer a call {result['memcpy_gb_per_s']:.2f} GB/s, ratio {result['ratio']:.2f} (target {TARGET_RATIO})"
        )
        print(f"memcpy, one call       {result['one_memcpy_gb_per_s']:.2f} GB/s, ratio {result['ratio_to_one_memcpy']:.2f}")
    return 0 if result["ratio"] >= TARGET_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
