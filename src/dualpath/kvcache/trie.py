"""The prefix index: which blocks are stored, which are being written, and which go first (paper A.5)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple, Protocol

from dualpath.kvcache.node import PENDING, PUBLISHED, REMOVED, WRITTEN, Node
from dualpath.types import BlockKey


class Match(NamedTuple):
    """How much of a chain is in the index: leading published blocks, then blocks that are just being written."""

    published: int
    pending: int


class StoredBlockLike(Protocol):
    """What a scan of the store says about a block."""

    @property
    def key(self) -> BlockKey: ...
    @property
    def parent(self) -> BlockKey | None: ...
    @property
    def depth(self) -> int: ...
    @property
    def written_s(self) -> float: ...


class PrefixIndex:
    """Chains of blocks as a trie whose nodes are found by key.

    Every node's parent is in the index, and every published node's parent is published: a chain can therefore be
    searched by bisection, and protecting the deepest block of a chain protects the whole chain. Uses are ordered by a
    counter, not by time. Owned by one thread; it moves no bytes: the owner orders writes and deletes accordingly.
    """

    def __init__(self) -> None:
        self._nodes: dict[BlockKey, Node] = {}
        self._pins: dict[BlockKey, int] = {}
        self._uses = 0
        self._pending = 0
        self._evictions = 0
        # Entries (last use when queued, unique number, node): lazily corrected when they surface.
        self._queue: list[tuple[int, int, Node]] = []
        self._queue_number = 0
        self._leaves = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._nodes

    @property
    def blocks(self) -> int:
        """Blocks in the index, pending ones included."""
        return len(self._nodes)

    @property
    def pinned(self) -> int:
        """Keys that hold a pin (each protects its ancestors too, which are not counted)."""
        return len(self._pins)

    @property
    def pending(self) -> int:
        """Blocks that are not yet published."""
        return self._pending

    @property
    def evictions(self) -> int:
        """Blocks evicted since the start."""
        return self._evictions

    # --- readers --------------------------------------------------------------------------------------------------

    def match(self, keys: Sequence[BlockKey]) -> Match:
        """The longest prefix of the chain ``keys`` that is in the index, in O(log n) lookups."""
        nodes = self._nodes
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) // 2
            if keys[middle] in nodes:
                low = middle + 1
            else:
                high = middle
        if low == 0 or nodes[keys[low - 1]].state is PUBLISHED:
            return Match(low, 0)
        present = low
        low, high = 0, present - 1
        while low < high:
            middle = (low + high) // 2
            if nodes[keys[middle]].state is PUBLISHED:
                low = middle + 1
            else:
                high = middle
        return Match(low, present - low)

    def touch(self, key: BlockKey) -> None:
        """Note a use of the chain that ends in ``key``. Unknown keys are ignored."""
        if (node := self._nodes.get(key)) is not None:
            node.last_use = self._next_use()

    def pin(self, key: BlockKey) -> None:
        """Keep the chain that ends in ``key`` from eviction, once more.

        Raises:
            KeyError: not in the index.
        """
        if key not in self._nodes:
            raise KeyError(key)
        self._pins[key] = self._pins.get(key, 0) + 1

    def unpin(self, key: BlockKey) -> None:
        """Take one pin back, even if the block has been lost meanwhile.

        Raises:
            KeyError: the key holds no pin.
        """
        self._pins[key] -= 1
        if not self._pins[key]:
            del self._pins[key]
            if (node := self._nodes.get(key)) is not None:
                self._enqueue(node)

    # --- writers --------------------------------------------------------------------------------------------------

    def begin_write(self, keys: Sequence[BlockKey], parent: BlockKey | None, depth: int, room: int = sys.maxsize) -> list[bool]:
        """Enter a piece of a chain that is about to be written, ``room`` new blocks at most; which of them to write.

        Not those that are stored or being written already, nor any without its parent in the index. ``parent`` is None
        where the piece begins its chain, at ``depth`` 0.

        Raises:
            ValueError: ``depth`` is not one more than the parent's.
        """
        nodes = self._nodes
        above = None if parent is None else nodes.get(parent)
        if parent is not None and above is None:
            return [False] * len(keys)
        if depth != (0 if above is None else above.depth + 1):
            raise ValueError(f"{len(keys)} blocks cannot begin at depth {depth}")
        wanted = [False] * len(keys)
        for index, key in enumerate(keys):
            node = nodes.get(key)
            if node is None:
                if room <= 0:
                    break
                room -= 1
                wanted[index] = True
                node = Node(key, above, depth + index, self._next_use(), PENDING)
                self._attach(node)
                self._pending += 1
            above = node
        return wanted

    def publish(self, keys: Sequence[BlockKey]) -> list[BlockKey]:
        """Make written blocks visible, each as soon as its parent is; ``keys`` of one chain come in chain order.

        Returns those that are not in the index (any more): bytes that nobody will find and the owner should delete.
        """
        strays: list[BlockKey] = []
        for key in keys:
            node = self._nodes.get(key)
            if node is None:
                strays.append(key)
            elif node.state is PENDING:
                node.state = WRITTEN
                self._publish_written(node)
        return strays

    def abandon(self, key: BlockKey) -> list[BlockKey]:
        """Drop a block whose write failed, and everything below it; returns the keys dropped, children first.

        A block that was published by another writer meanwhile stays.
        """
        node = self._nodes.get(key)
        return [] if node is None or node.state is PUBLISHED else self._drop_subtree(node)

    def remove_lost(self, key: BlockKey) -> list[BlockKey]:
        """Drop a block that turned out unreadable, and everything below it; returns the keys dropped, children first."""
        node = self._nodes.get(key)
        return [] if node is None else self._drop_subtree(node)

    # --- owner ----------------------------------------------------------------------------------------------------

    def evict(self, blocks_to_free: int) -> list[BlockKey]:
        """Drop up to ``blocks_to_free`` least recently used leaves, never pinned or pending ones; returns their keys.

        A block that becomes a leaf inherits its last child's use. The order returned is a safe order to delete in.
        """
        evicted: list[BlockKey] = []
        queue = self._queue
        while queue and len(evicted) < blocks_to_free:
            last_use, _, node = heappop(queue)
            node.queued = False
            if not self._is_evictable(node):
                continue
            if node.last_use != last_use:
                self._enqueue(node)
                continue
            evicted.append(node.key)
            self._detach(node)
            if (parent := node.parent) is not None:
                if parent.last_use < last_use:
                    parent.last_use = last_use
                self._enqueue(parent)
        self._evictions += len(evicted)
        return evicted

    def rebuild(self, blocks: Iterable[StoredBlockLike]) -> list[BlockKey]:
        """Fill an empty index with what a scan found; earlier writes count as earlier uses.

        Returns the keys of orphans, whose parent is missing: the owner should delete them.

        Raises:
            ValueError: the index is not empty.
        """
        if self._nodes:
            raise ValueError(f"the index already has {len(self._nodes)} blocks")
        by_age = sorted(blocks, key=lambda block: block.written_s)
        orphans: list[BlockKey] = []
        for use, block in sorted(enumerate(by_age, self._uses + 1), key=lambda item: item[1].depth):
            if block.key not in self._nodes and not self._attach_stored(block, use):
                orphans.append(block.key)
        self._uses += len(by_age)
        for node in self._nodes.values():
            self._enqueue(node)
        return orphans

    # --- inside ---------------------------------------------------------------------------------------------------

    def _next_use(self) -> int:
        self._uses += 1
        return self._uses

    def _publish_written(self, node: Node) -> None:
        """Publish ``node`` and what waits below it, if its own parent is published."""
        if node.parent is not None and node.parent.state is not PUBLISHED:
            return
        ready = [node]
        while ready:
            node = ready.pop()
            node.state = PUBLISHED
            self._pending -= 1
            child = node.first_child
            if child is None:
                self._enqueue(node)
            while child is not None:
                if child.state is WRITTEN:
                    ready.append(child)
                child = child.next_sibling

    def _drop_subtree(self, root: Node) -> list[BlockKey]:
        order = [root]
        for node in order:
            order.extend(node.children())
        for node in reversed(order):
            self._pending -= node.state is not PUBLISHED
            self._detach(node)
        if root.parent is not None:
            self._enqueue(root.parent)
        return [node.key for node in reversed(order)]

    def _attach_stored(self, block: StoredBlockLike, use: int) -> bool:
        parent = None if block.parent is None else self._nodes.get(block.parent)
        if (parent is None) != (block.parent is None) or block.depth != (0 if parent is None else parent.depth + 1):
            return False
        self._attach(Node(block.key, parent, block.depth, use, PUBLISHED))
        return True

    def _attach(self, node: Node) -> None:
        self._nodes[node.key] = node
        parent = node.parent
        if parent is None or parent.first_child is not None:
            self._leaves += 1
        if parent is None:
            return
        node.next_sibling = parent.first_child
        if parent.first_child is not None:
            parent.first_child.previous_sibling = node
        parent.first_child = node

    def _detach(self, node: Node) -> None:
        """Take a leaf out of the index."""
        del self._nodes[node.key]
        node.state = REMOVED
        if node.next_sibling is not None:
            node.next_sibling.previous_sibling = node.previous_sibling
        if node.previous_sibling is not None:
            node.previous_sibling.next_sibling = node.next_sibling
        elif node.parent is not None:
            node.parent.first_child = node.next_sibling
        if node.parent is None or node.parent.first_child is not None:
            self._leaves -= 1

    def _is_evictable(self, node: Node) -> bool:
        return node.state is PUBLISHED and node.first_child is None and node.key not in self._pins

    def _enqueue(self, node: Node) -> None:
        """Queue ``node`` for eviction if it may be evicted and is not queued yet."""
        # As ``_is_evictable``, without the call: this runs for every block that is published or evicted.
        if node.queued or node.first_child is not None or node.state is not PUBLISHED or node.key in self._pins:
            return
        node.queued = True
        self._queue_number += 1
        heappush(self._queue, (node.last_use, self._queue_number, node))
        if len(self._queue) > 2 * self._leaves + 1024:
            self._compact_queue()

    def _compact_queue(self) -> None:
        """Forget entries of blocks that are no leaves any more, so that the queue stays within twice the leaves."""
        kept = []
        for entry in self._queue:
            node = entry[2]
            node.queued = self._is_evictable(node)
            if node.queued:
                kept.append(entry)
        self._queue[:] = kept
        heapify(self._queue)
