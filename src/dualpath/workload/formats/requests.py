"""From recorded requests to turns: what of the history each next prompt keeps (paper A.3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dualpath.workload.trajectory import Turn


@dataclass(frozen=True, slots=True)
class Request:
    """One recorded request.

    ``shared_tokens`` is the longest prefix, in whole blocks of ``block_tokens``, of this prompt among the session's
    earlier prompts; None when the trace does not tell.
    """

    prompt_tokens: int
    output_tokens: int
    gap_s: float = 0.0
    reasoning_tokens: int = 0
    shared_tokens: int | None = None


def turns_of(requests: Sequence[Request], block_tokens: int = 1) -> list[Turn]:
    """The turns that send prompts of the recorded lengths.

    A prompt keeps the whole history if it is at least as long and shares the previous prompt to its last full block.
    Otherwise it is cut to the shared prefix. Where the trace does not tell what is shared, a prompt shorter than its
    history keeps the previous prompt without the output, and at least its last token is new.
    """
    turns: list[Turn] = []
    previous: Request | None = None
    for request in requests:
        kept = 0 if previous is None else _kept_tokens(previous, request, block_tokens)
        history = 0 if previous is None else previous.prompt_tokens + _returned(previous)
        turns.append(
            Turn(
                appended_tokens=request.prompt_tokens - kept,
                output_tokens=request.output_tokens,
                gap_s=request.gap_s,
                reasoning_tokens=request.output_tokens - _returned(request),
                kept_tokens=None if kept == history else kept,
            )
        )
        previous = request
    return turns


def _returned(request: Request) -> int:
    # Some providers count reasoning that is not part of the completion.
    return max(0, request.output_tokens - request.reasoning_tokens)


def _kept_tokens(previous: Request, request: Request, block_tokens: int) -> int:
    history = previous.prompt_tokens + _returned(previous)
    shared = request.shared_tokens
    if shared is None:
        whole = request.prompt_tokens >= history
        return history if whole else min(previous.prompt_tokens, request.prompt_tokens - 1)
    last_full_block = previous.prompt_tokens // block_tokens * block_tokens
    if request.prompt_tokens >= history and shared >= last_full_block:
        return history
    return min(shared, history, request.prompt_tokens)


@dataclass(slots=True)
class PrefixTree:
    """Prefixes of block ids that were seen, as a trie of numbered nodes."""

    _children: dict[tuple[int, int], int] = field(default_factory=dict)

    def known(self, ids: Iterable[int]) -> list[int]:
        """Nodes of the longest known prefix of ``ids``, one a block."""
        nodes: list[int] = []
        for block in ids:
            child = self._children.get((nodes[-1] if nodes else 0, block))
            if child is None:
                break
            nodes.append(child)
        return nodes

    def add(self, ids: Iterable[int]) -> int:
        """Remember all prefixes of ``ids``; the node of the whole (0: there was no block)."""
        node = 0
        for block in ids:
            node = self._children.setdefault((node, block), len(self._children) + 1)
        return node
