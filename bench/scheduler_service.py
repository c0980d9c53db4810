"""Turn lives a second that one core's scheduler service gets through, frames in and frames out, over a large index.

The index holds ``--blocks`` blocks in chains of 512. A turn continues a random chain: its prompt of 33k tokens hits most of
it and misses six blocks, which its decode engine writes with three more of the output. A life is Submit, ReadDone,
PrefillDone and TurnEnded, and, with the write-back, WriteRequest and WriteResult, each decoded as the scheduler's process
does it, and everything that is answered, encoded. Frames are made, and answers read, outside of the measured time, which is
the thread's processor time. Reports of all engines (``Fetch``) are measured apart, and with them the rate of lives that is
left when every engine reports in each interval. The time of an empty function call tells how fast the machine was meanwhile
(50 ns is quick).
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import random
import statistics
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dualpath.clock import MonotonicClock
from dualpath.control.block_index import BlockIndex
from dualpath.control.messages import (
    Assign,
    Decoder,
    Fetch,
    Join,
    Message,
    PrefillDone,
    ReadDone,
    RegionInfo,
    Stages,
    Submit,
    ToScheduler,
    TurnEnded,
    WriteGrant,
    WriteRequest,
    WriteResult,
    encode,
)
from dualpath.control.scheduler_main import encoded, spare_the_index
from dualpath.control.scheduler_service import SchedulerService
from dualpath.control.spec import ClusterSpec
from dualpath.control.turns import EngineStatus, SamplingParams
from dualpath.knobs import with_knobs
from dualpath.kvcache.chain import KEY_BYTES, TOKEN_BYTES, CacheNamespace
from dualpath.kvcache.layout import BlockGeometry
from dualpath.scheduling.central import CentralScheduler
from dualpath.scheduling.limits import scheduler_limits
from dualpath.settings import Settings
from dualpath.storage.memory import MemoryStorage
from dualpath.types import Role, Side

CHAIN_BLOCKS, BLOCK_TOKENS = 512, 64
MISSED_BLOCKS, TAIL_TOKENS = 6, 45
OUTPUT_TOKENS, OUTPUT_BLOCKS = 176, 3
ROUND_TURNS, ROUNDS_DECODING = 500, 4
TARGET_LIVES_PER_S = 5_000
NODE_TOKENS_PER_S, PREFILL_TOKENS_PER_S = 600_000.0, 400_000.0
KV_BLOCKS, BUFFER_BLOCKS = 16_384, 1 << 20
CLIENT = b"client-1"

Frame = tuple[bytes, bytes]
"""Who sends it, and what."""


@dataclass(frozen=True)
class Measured:
    """Medians over rounds; ``reports_per_s`` are Fetch messages alone, ``lives_beside_reports_per_s`` what is left then."""

    blocks: int
    prefill: int
    decode: int
    rounds: int
    hit_tokens: float
    submits_per_s: float
    lives_without_writes_per_s: float
    lives_per_s: float
    slowest_lives_per_s: float
    empty_call_ns: float
    reports_per_s: float
    lives_beside_reports_per_s: float


class Engines:
    """Names of a cluster's engines and what they say."""

    def __init__(self, prefill: int, decode: int, per_node: int) -> None:
        self.names = {
            role: [f"{role.value}-{index}.0" for index in range(count)]
            for role, count in ((Role.PREFILL, prefill), (Role.DECODE, decode))
        }
        self._per_node = per_node

    @property
    def count(self) -> int:
        return sum(len(names) for names in self.names.values())

    def joins(self) -> Iterable[Frame]:
        for role, names in self.names.items():
            for index, name in enumerate(names):
                node = f"{role.value}-node-{index // self._per_node}"
                region = RegionInfo("shm", f"{name}/buffer", 1 << 40, f"/proc/1/fd/{index}") if role is Role.DECODE else None
                yield (
                    name.encode(),
                    encode(Join(name, role, node, node, KV_BLOCKS, BUFFER_BLOCKS, f"ipc:///run/{name}.sock", region)),
                )

    def reports(self, seen: int) -> list[Frame]:
        frames = []
        for role, names in self.names.items():
            for name in names:
                status = EngineStatus(name=name, role=role, node=name, kv_blocks=KV_BLOCKS, buffer_blocks=BUFFER_BLOCKS)
                free = KV_BLOCKS if role is Role.DECODE else None
                frames.append((name.encode(), encode(Fetch(name, seen, 0, free, status))))
        return frames


@dataclass(frozen=True)
class Turn:
    """A placed turn and the blocks that its decode engine wants to write behind ``hit_blocks``."""

    assign: Assign
    hit_blocks: int
    written: bytes

    @property
    def decode(self) -> bytes:
        return self.assign.decode.encode()

    def prefilled(self) -> Iterable[Frame]:
        """What both engines say up to the first token."""
        assign, request_id = self.assign, self.assign.submit.request_id
        prefill = assign.prefill.encode()
        if assign.read_prefill_tokens:
            yield prefill, encode(ReadDone(request_id, Side.PREFILL, assign.read_prefill_tokens))
        if assign.read_decode_tokens:
            yield self.decode, encode(ReadDone(request_id, Side.DECODE, assign.read_decode_tokens))
        yield prefill, encode(PrefillDone(request_id))

    def to_write(self) -> Frame:
        """The decode engine's request to write."""
        assign, keys = self.assign, self.assign.submit.keys
        parent = keys[(self.hit_blocks - 1) * KEY_BYTES : self.hit_blocks * KEY_BYTES] if self.hit_blocks else None
        return self.decode, encode(WriteRequest(assign.sequence, parent, self.hit_blocks, self.written))

    def has_written(self, wanted: Sequence[bool]) -> Frame:
        """What the decode engine says once the blocks that it was to write are written."""
        keys = [self.written[KEY_BYTES * i : KEY_BYTES * (i + 1)] for i, yes in enumerate(wanted) if yes]
        return self.decode, encode(WriteResult(b"".join(keys), b""))

    def ended(self) -> Frame:
        """What the decode engine says once the last token is out."""
        cached, stages = self.hit_blocks * BLOCK_TOKENS, Stages(0.0, 0.01, 0.02, 0.03)
        return self.decode, encode(TurnEnded(self.assign.submit.request_id, "length", OUTPUT_TOKENS, cached, stages))


class Rig:
    """A service over a full index, and the clients and engines that talk to it."""

    def __init__(self, blocks: int, engines: Engines, seed: int) -> None:
        self._random = random.Random(seed)
        self._service = service(blocks + blocks // 50)
        self._decoder = Decoder(ToScheduler)
        self._prompt = self._random.randbytes((CHAIN_BLOCKS + MISSED_BLOCKS + 1) * BLOCK_TOKENS * TOKEN_BYTES)
        self._submitted = 0
        self._decoding: deque[list[tuple[Turn, Sequence[bool]]]] = deque([] for _ in range(ROUNDS_DECODING))
        self.profiler: cProfile.Profile | None = None
        self.run(engines.joins())
        self._chains = [self._store_chain(engines.names[Role.DECODE][0]) for _ in range(blocks // CHAIN_BLOCKS)]
        self.sequence = 0
        self.hit_tokens: list[int] = []

    def _store_chain(self, writer: str) -> bytes:
        keys = self._random.randbytes(CHAIN_BLOCKS * KEY_BYTES)
        self._service.handle(writer.encode(), WriteRequest(0, None, 0, keys))
        self._service.handle(writer.encode(), WriteResult(keys, b""))
        self._service.take_outbox()
        return keys

    def run(self, frames: Iterable[Frame]) -> tuple[list[tuple[bytes, Message]], float]:
        """Have the service act on frames as its process does; what it answered, and the seconds it took."""
        handle, decode, take_outbox = self._service.handle, self._decoder.decode, self._service.take_outbox
        answered: list[tuple[bytes, Message]] = []
        frames = list(frames)
        if self.profiler is not None:
            self.profiler.enable()
        start_s = time.thread_time()
        for sender, frame in frames:
            handle(sender, decode(frame))
            outbox = take_outbox()
            for _ in encoded(outbox):
                pass
            answered += outbox
        elapsed_s = time.thread_time() - start_s
        if self.profiler is not None:
            self.profiler.disable()
        return answered, elapsed_s

    def round(self) -> tuple[float, float, float]:
        """Many turns are submitted, as many prefilled, and as many end; the seconds for submissions, for everything but the
        write-back, and for everything.
        """
        answered, submit_s = self.run([self._submit() for _ in range(ROUND_TURNS)])
        turns = {turn.assign.sequence: turn for turn in self._placed(answered)}
        _, prefill_s = self.run(frame for turn in turns.values() for frame in turn.prefilled())
        answered, request_s = self.run(turn.to_write() for turn in turns.values())
        grants = {one.ticket: one.wanted for _, one in answered if isinstance(one, WriteGrant)}
        self._decoding.append([(turn, grants[number]) for number, turn in turns.items()])
        ending = self._decoding.popleft()
        _, written_s = self.run(turn.has_written(wanted) for turn, wanted in ending)
        _, end_s = self.run(turn.ended() for turn, _ in ending)
        served_s = submit_s + prefill_s + end_s
        return submit_s, served_s, served_s + request_s + written_s

    def _submit(self) -> Frame:
        chain = self._chains[self._random.randrange(len(self._chains))]
        hit = self._random.randrange(CHAIN_BLOCKS // 2, CHAIN_BLOCKS)
        tokens = (hit + MISSED_BLOCKS) * BLOCK_TOKENS + TAIL_TOKENS
        self._submitted += 1
        submit = Submit(
            request_id=f"client-1/{self._submitted}",
            prompt=memoryview(self._prompt)[: tokens * TOKEN_BYTES],
            keys=chain[: hit * KEY_BYTES] + self._random.randbytes(MISSED_BLOCKS * KEY_BYTES),
            sampling=SamplingParams(max_tokens=OUTPUT_TOKENS),
            first_position=0,
            reply_to="ipc:///run/client-1.sock",
            timeout_s=600.0,
        )
        return CLIENT, encode(submit)

    def _placed(self, answered: Iterable[tuple[bytes, Message]]) -> Iterable[Turn]:
        for identity, one in answered:
            if isinstance(one, Assign) and identity == one.decode.encode():
                hit_tokens = one.read_prefill_tokens + one.read_decode_tokens
                self.hit_tokens.append(hit_tokens)
                self.sequence = one.sequence
                hit = hit_tokens // BLOCK_TOKENS
                written = one.submit.keys[hit * KEY_BYTES :] + self._random.randbytes(OUTPUT_BLOCKS * KEY_BYTES)
                yield Turn(one, hit, written)


def service(capacity_blocks: int) -> SchedulerService:
    """A scheduler service with an empty store of so many blocks."""
    geometry = BlockGeometry(layers=1, block_tokens=BLOCK_TOKENS, token_layer_bytes=1)
    settings = with_knobs(Settings(), {"store_capacity": capacity_blocks * geometry.full_block_bytes})
    spec = ClusterSpec(
        run_directory="/run",
        model_directory="/model",
        model_fingerprint="model",
        store_directory="/store",
        namespace=CacheNamespace("model", "float32", BLOCK_TOKENS, geometry.full_block_bytes),
        geometry=geometry,
        max_context_tokens=1 << 20,
        settings=settings,
        storage_tokens_per_s=NODE_TOKENS_PER_S,
        prefill_tokens_per_s=PREFILL_TOKENS_PER_S,
        attention={},
    )
    limits = scheduler_limits(
        settings, storage_tokens_per_s=spec.storage_tokens_per_s, prefill_tokens_per_s=spec.prefill_tokens_per_s
    )
    clock = MonotonicClock()
    index = BlockIndex(MemoryStorage(geometry.full_block_bytes), spec.store_capacity_blocks, geometry)
    return SchedulerService(spec, CentralScheduler(limits, clock), index, clock, "epoch")


def empty_call_ns(calls: int = 20_000) -> float:
    """Processor time of one call of a function that does nothing."""

    def nothing() -> None:
        pass

    start_s = time.thread_time()
    for _ in range(calls):
        nothing()
    return (time.thread_time() - start_s) / calls * 1e9


def measure(rig: Rig, engines: Engines, blocks: int, rounds: int) -> Measured:
    """Medians over ``rounds`` rounds, once the pipeline is full."""
    for _ in range(ROUNDS_DECODING + 1):
        rig.round()
    rig.hit_tokens.clear()
    submits, served, lives, reports, calls = [], [], [], [], []
    for _ in range(rounds):
        submit_s, served_s, all_s = rig.round()
        submits.append(ROUND_TURNS / submit_s)
        served.append(ROUND_TURNS / served_s)
        lives.append(ROUND_TURNS / all_s)
        calls.append(empty_call_ns())
        frames = engines.reports(rig.sequence)
        reports.append(len(frames) / rig.run(frames)[1])
    report_share = engines.count / Settings().scheduling.fetch_interval_s / statistics.median(reports)
    return Measured(
        blocks=blocks,
        prefill=len(engines.names[Role.PREFILL]),
        decode=len(engines.names[Role.DECODE]),
        rounds=rounds,
        hit_tokens=statistics.mean(rig.hit_tokens),
        submits_per_s=statistics.median(submits),
        lives_without_writes_per_s=statistics.median(served),
        lives_per_s=statistics.median(lives),
        slowest_lives_per_s=min(lives),
        empty_call_ns=statistics.median(calls),
        reports_per_s=statistics.median(reports),
        lives_beside_reports_per_s=max(0.0, 1 - report_share) * statistics.median(lives),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=2_000_000)
    parser.add_argument("--prefill", type=int, default=384, help="prefill engines, 8 a node")
    parser.add_argument("--decode", type=int, default=768, help="decode engines, 8 a node")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", action="store_true", help="print where the time goes instead (the profiler slows it down)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    spare_the_index()
    engines = Engines(options.prefill, options.decode, per_node=8)
    rig = Rig(options.blocks, engines, options.seed)
    if options.profile:
        rig.profiler = cProfile.Profile()
    found = measure(rig, engines, options.blocks, options.rounds)
    if rig.profiler is not None:
        pstats.Stats(rig.profiler).sort_stats("tottime").print_stats(30)
        return
    verdict = "met" if found.lives_without_writes_per_s >= TARGET_LIVES_PER_S else "MISSED"
    print(
        f"{found.blocks:,} blocks, {found.prefill} PE and {found.decode} DE, 8 a node, prompts that hit "
        f"{found.hit_tokens:,.0f} tokens on average: {found.lives_without_writes_per_s:,.0f} lives/s "
        f"(target {TARGET_LIVES_PER_S:,}: {verdict}; empty call {found.empty_call_ns:.0f} ns); "
        f"with the write-back of {MISSED_BLOCKS + OUTPUT_BLOCKS} blocks each {found.lives_per_s:,.0f} lives/s "
        f"(slowest round {found.slowest_lives_per_s:,.0f}), beside all engines' reports "
        f"{found.lives_beside_reports_per_s:,.0f}/s; submissions alone {found.submits_per_s:,.0f}/s; "
        f"reports alone {found.reports_per_s:,.0f}/s"
    )
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(found), indent=2) + "\n")
    if found.lives_without_writes_per_s < TARGET_LIVES_PER_S:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
