"""A block as a node of the prefix index (paper A.5)."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

from dualpath.types import BlockKey


class State(IntEnum):
    """How far a block is."""

    PENDING = 0
    """Being written."""
    WRITTEN = 1
    """Complete, but below a pending block."""
    PUBLISHED = 2
    REMOVED = 3
    """No longer in the index."""


PENDING, WRITTEN, PUBLISHED, REMOVED = State
"""Reading a member from the class takes ten times as long as reading a name."""


class Node:
    """One block; children are a doubly linked list, so that a million nodes need no containers of their own."""

    __slots__ = (
        "depth",
        "first_child",
        "key",
        "last_use",
        "next_sibling",
        "parent",
        "previous_sibling",
        "queued",
        "state",
    )

    def __init__(self, key: BlockKey, parent: Node | None, depth: int, last_use: int, state: State) -> None:
        self.key = key
        self.parent = parent
        self.depth = depth
        self.last_use = last_use
        self.state = state
        self.queued = False
        self.first_child: Node | None = None
        self.next_sibling: Node | None = None
        self.previous_sibling: Node | None = None

    def children(self) -> Iterator[Node]:
        child = self.first_child
        while child is not None:
            yield child
            child = child.next_sibling
