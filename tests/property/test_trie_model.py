"""The prefix index against a model that searches everything."""

import itertools
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dualpath.kvcache.trie import PrefixIndex
from dualpath.types import BlockKey

# A chain is a path of small numbers; a block's key is the path to it, so that chains share prefixes often.
PATHS = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(tuple)
Path = tuple[int, ...]


def key(path: Path) -> BlockKey:
    return BlockKey(bytes(path))


def prefixes(path: Path) -> list[Path]:
    return [path[:length] for length in range(1, len(path) + 1)]


@dataclass
class Block:
    written: bool = False
    use: int = 0


class IndexModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.blocks: dict[Path, Block] = {}
        self.pins: list[Path] = []
        self.uses = 0
        self.evicted = 0

    def next_use(self) -> int:
        self.uses += 1
        return self.uses

    def published(self, path: Path) -> bool:
        return all(prefix in self.blocks and self.blocks[prefix].written for prefix in prefixes(path))

    def subtree(self, path: Path) -> set[Path]:
        return {other for other in self.blocks if other[: len(path)] == path}

    def match(self, path: Path) -> tuple[int, int]:
        hit = sum(self.published(prefix) for prefix in prefixes(path))
        return hit, sum(prefix in self.blocks for prefix in prefixes(path)) - hit

    def evictable(self) -> list[Path]:
        return [path for path in self.blocks if self.published(path) and len(self.subtree(path)) == 1 and path not in self.pins]

    def remove(self, paths: set[Path]) -> None:
        for path in paths:
            del self.blocks[path]

    @rule(path=PATHS)
    def begin_chain(self, path: Path) -> None:
        chain = list(prefixes(path))
        missing = [prefix not in self.blocks for prefix in chain]
        assert self.index.begin_write([key(prefix) for prefix in chain], None, 0) == missing
        for prefix in itertools.compress(chain, missing):
            self.blocks[prefix] = Block(use=self.next_use())

    @rule(path=PATHS)
    def begin_without_ancestors(self, path: Path) -> None:
        if path not in self.blocks and path[:-1] and path[:-1] not in self.blocks:
            assert self.index.begin_write([key(path)], key(path[:-1]), len(path) - 1) == [False]

    @rule(path=PATHS)
    def publish_one(self, path: Path) -> None:
        assert self.index.publish([key(path)]) == ([] if path in self.blocks else [key(path)])
        if path in self.blocks:
            self.blocks[path].written = True

    @rule(path=PATHS)
    def publish_chain(self, path: Path) -> None:
        strays = self.index.publish([key(prefix) for prefix in prefixes(path)])
        assert strays == [key(prefix) for prefix in prefixes(path) if prefix not in self.blocks]
        for prefix in prefixes(path):
            if prefix in self.blocks:
                self.blocks[prefix].written = True

    @rule(path=PATHS)
    def abandon(self, path: Path) -> None:
        removed = set() if self.published(path) else self.subtree(path) if path in self.blocks else set()
        assert set(self.index.abandon(key(path))) == {key(other) for other in removed}
        self.remove(removed)

    @rule(path=PATHS)
    def lose(self, path: Path) -> None:
        removed = self.subtree(path) if path in self.blocks else set()
        order = self.index.remove_lost(key(path))
        assert set(order) == {key(other) for other in removed}
        assert sorted(order, key=len, reverse=True) == order or all(
            order.index(key(other)) < order.index(key(other[:-1])) for other in removed if other[:-1] in removed
        ), "children come before their parents"
        self.remove(removed)

    @rule(path=PATHS)
    def touch(self, path: Path) -> None:
        self.index.touch(key(path))
        if path in self.blocks:
            self.blocks[path].use = self.next_use()

    @rule(path=PATHS)
    def pin(self, path: Path) -> None:
        if path in self.blocks:
            self.index.pin(key(path))
            self.pins.append(path)

    @rule(choice=st.integers(0, 99))
    def unpin(self, choice: int) -> None:
        if self.pins:
            self.index.unpin(key(self.pins.pop(choice % len(self.pins))))

    @rule(count=st.integers(0, 6))
    def evict(self, count: int) -> None:
        expected: list[BlockKey] = []
        while len(expected) < count and (candidates := self.evictable()):
            victim = min(candidates, key=lambda path: self.blocks[path].use)
            use = self.blocks.pop(victim).use
            if victim[:-1]:
                self.blocks[victim[:-1]].use = max(self.blocks[victim[:-1]].use, use)
            expected.append(key(victim))
        assert self.index.evict(count) == expected
        self.evicted += len(expected)

    @rule(path=PATHS)
    def look_up(self, path: Path) -> None:
        assert self.index.match([key(prefix) for prefix in prefixes(path)]) == self.match(path)

    @invariant()
    def counts_are_right(self) -> None:
        assert self.index.blocks == len(self.blocks)
        assert self.index.pending == sum(not self.published(path) for path in self.blocks)
        assert self.index.pinned == len(set(self.pins))
        assert self.index.evictions == self.evicted
        assert all(key(path) in self.index for path in self.blocks)
        leaves = sum(len(self.subtree(path)) == 1 for path in self.blocks)
        assert self.index._leaves == leaves


IndexModel.TestCase.settings = settings(deadline=None, max_examples=80, stateful_step_count=40)
TestPrefixIndex = IndexModel.TestCase
