"""Owner of the block store: prefix index, pins, eviction, and turns that wait for blocks being written (paper A.5)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dualpath.control.messages import WriteRequest, WriteResult, split_keys
from dualpath.control.turn_record import TurnRecord
from dualpath.kvcache.chain import KEY_BYTES
from dualpath.kvcache.layout import BlockGeometry
from dualpath.kvcache.trie import PrefixIndex
from dualpath.storage.base import Storage
from dualpath.types import BlockKey

logger = logging.getLogger(__name__)

EVICTION_SHARE, EVICTION_BATCH = 64, 256
"""A full store gives up this fraction of itself (1/n), but not many blocks, beyond what is needed: deletes come in batches."""


class BlockCounts(NamedTuple):
    """The index in numbers."""

    stored: int
    pinned: int
    pending: int
    evicted: int


class BlockIndex:
    """What is stored under one root; nobody else adds to it, evicts or deletes. Keeps it within ``capacity_blocks``."""

    def __init__(self, storage: Storage, capacity_blocks: int, geometry: BlockGeometry) -> None:
        self._storage = storage
        self._capacity = capacity_blocks
        self._geometry = geometry
        self._index = PrefixIndex()
        self._waiting: dict[BlockKey, list[TurnRecord]] = {}
        self._writers: dict[BlockKey, str] = {}
        self._unfinished: dict[str, list[BlockKey]] = {}

    def rebuild(self) -> None:
        """Find out what the store holds; what no chain leads to is deleted, and what is too much evicted."""
        orphans = self._index.rebuild(self._storage.scan())
        if orphans:
            logger.info("deleting %d blocks whose prefix is gone", len(orphans))
            self._storage.delete(orphans)
        self._make_room(0)

    def counts(self) -> BlockCounts:
        index = self._index
        return BlockCounts(index.blocks - index.pending, index.pinned, index.pending, index.evictions)

    # --- hits ---------------------------------------------------------------------------------------------------------

    def hold(self, turn: TurnRecord, *, may_wait: bool) -> int | None:
        """Pin the turn's hit; its length in tokens. None: its chain runs into blocks being written, for which it waits now."""
        keys = self._hit_keys(turn)
        match = self._index.match(keys)
        if match.pending and may_wait:
            turn.awaited = keys[match.published]
            self._waiting.setdefault(turn.awaited, []).append(turn)
            return None
        if match.published:
            turn.pinned = keys[match.published - 1]
            self._index.touch(turn.pinned)
            self._index.pin(turn.pinned)
        return match.published * self._geometry.block_tokens

    def unpark(self, turn: TurnRecord) -> None:
        """The turn waits no longer."""
        if turn.awaited is None:
            return
        waiting = self._waiting.get(turn.awaited, [])
        if turn in waiting:
            waiting.remove(turn)
        if not waiting:
            self._waiting.pop(turn.awaited, None)
        turn.awaited = None

    def expired(self, now: float) -> list[TurnRecord]:
        """Turns that have waited long enough for blocks; they go on with what is there."""
        turns = [turn for waiting in self._waiting.values() for turn in waiting if turn.wait_ends_s <= now]
        for turn in turns:
            self.unpark(turn)
        return turns

    def unpin(self, turn: TurnRecord) -> None:
        """The hit has been read, or nobody will."""
        if turn.pinned is not None:
            self._index.unpin(turn.pinned)
            turn.pinned = None

    def _hit_keys(self, turn: TurnRecord) -> Sequence[BlockKey]:
        """Keys of the blocks that may be a hit: at least one token is always computed."""
        return KeyView(turn.submit.keys, self._geometry.max_hit_blocks(turn.prompt_tokens))

    # --- writes -------------------------------------------------------------------------------------------------------

    def begin_write(self, request: WriteRequest, writer: str) -> tuple[bool, ...]:
        """Which of the blocks the writer is to write; the others are there already, or there is no room for them."""
        keys = split_keys(request.keys)
        parent = None if request.parent is None else BlockKey(request.parent)
        wanted = self._index.begin_write(keys, parent, request.depth, self._make_room(len(keys)))
        self._writers.update((key, writer) for key, new in zip(keys, wanted, strict=True) if new)
        return tuple(wanted)

    def written(self, result: WriteResult) -> list[TurnRecord]:
        """Publish or abandon what was granted; the turns that waited for it."""
        published = split_keys(result.published)
        failed = split_keys(result.failed)
        self._delete(self._index.publish(published))
        for key in failed:
            self._delete(self._index.abandon(key))
        return self._settled((*published, *failed))

    def writer_lost(self, writer: str) -> list[TurnRecord]:
        """Nobody will say any more what became of these blocks."""
        keys = [key for key, name in self._writers.items() if name == writer]
        self._unfinished[writer] = keys
        for key in keys:
            self._delete(self._index.abandon(key))
        return self._settled(keys)

    def writer_ended(self, writer: str) -> None:
        """It can write no more: what it finished after it was given up is nobody's."""
        self._delete([key for key in self._unfinished.pop(writer, ()) if key not in self._index])

    def lost(self, joined: bytes) -> None:
        """Blocks that turned out missing or corrupt."""
        for key in split_keys(joined):
            self._delete(self._index.remove_lost(key) or [key])

    def _settled(self, keys: Iterable[BlockKey]) -> list[TurnRecord]:
        turns: list[TurnRecord] = []
        for key in keys:
            self._writers.pop(key, None)
            turns += self._waiting.pop(key, [])
        for turn in turns:
            turn.awaited = None
        return turns

    def _make_room(self, blocks: int) -> int:
        """Evict so that ``blocks`` more fit, as far as possible; how many more do fit."""
        excess = self._index.blocks + blocks - self._capacity
        if excess > 0:
            self._delete(self._index.evict(excess + min(self._capacity // EVICTION_SHARE, EVICTION_BATCH)))
        return self._capacity - self._index.blocks

    def _delete(self, keys: Sequence[BlockKey]) -> None:
        if keys:
            self._storage.delete(keys)


class KeyView(Sequence[BlockKey]):
    """The first keys of a concatenation, sliced out only where a search looks."""

    __slots__ = ("_count", "_joined")

    def __init__(self, joined: bytes, count: int) -> None:
        self._joined = joined
        self._count = min(count, len(joined) // KEY_BYTES)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> BlockKey:  # type: ignore[override]
        if not 0 <= index < self._count:
            raise IndexError(index)
        return BlockKey(self._joined[KEY_BYTES * index : KEY_BYTES * (index + 1)])
