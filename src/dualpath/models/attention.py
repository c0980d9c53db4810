"""Attention over KV rows that the engine owns: causal for prefill segments, paged for decode (paper section 2).

A KV row is one token of one layer, ``[2, kv_heads, head_dim]``: its keys, then its values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch.nn.functional import scaled_dot_product_attention

from dualpath.models.base import DecodeBatch, PrefillSegment

QUERY_CHUNK = 256
"""Most queries attended at once: chunks skip most of the triangle that a causal mask would throw away."""

MASK_ELEMENTS = 2**24
"""Most elements of a mask; beyond 65,536 tokens of context the chunks get shorter instead."""


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """How many heads of which size; ``group`` query heads share a KV head."""

    kv_heads: int
    group: int
    head_dim: int

    def rows(self, kv: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Bytes ``[…, token_layer_bytes]`` seen as KV rows ``[tokens, 2, kv_heads, head_dim]``."""
        return kv.view(dtype).view(-1, 2, self.kv_heads, self.head_dim)


class CausalMask:
    """One additive mask from which every chunk of every segment takes its view.

    Row ``i`` allows the columns up to ``i + offset``, so that a chunk of queries at the end of ``n`` rows sees the
    right triangle in the window of ``n`` columns that ends with its own diagonal.
    """

    def __init__(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> None:
        self.queries = rows
        self._offset = columns - 1
        blocked = torch.full((rows, self._offset + rows), float("-inf"), dtype=dtype, device=device)
        self._mask = blocked.triu_(self._offset + 1)

    def view(self, queries: int, columns: int) -> torch.Tensor | None:
        """``[queries, columns]`` for the last ``queries`` of ``columns`` tokens; None where nothing is blocked."""
        if queries == 1:
            return None
        first = self._offset - (columns - queries)
        return self._mask[:queries, first : first + columns]


@dataclass(frozen=True, slots=True)
class QueryChunk:
    """The batch's ``queries`` attend to the KV ``rows``: all of them, under ``mask``, or, if ``causal``, as a square."""

    queries: slice
    rows: slice
    mask: torch.Tensor | None
    causal: bool = False


@dataclass(frozen=True, slots=True)
class RowWrite:
    """The batch's ``states`` whose KV fills these ``rows``."""

    states: slice
    rows: slice


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """What is the same for all layers of one prefill batch.

    ``last_tokens`` are the rows of each segment's last token, and ``last_chunks`` what these alone attend to.
    """

    positions: torch.Tensor
    writes: tuple[RowWrite, ...]
    chunks: tuple[QueryChunk, ...]
    last_tokens: torch.Tensor
    last_chunks: tuple[QueryChunk, ...]


def plan_prefill(segments: Sequence[PrefillSegment], dtype: torch.dtype, device: torch.device) -> PrefillPlan:
    """Positions, writes and chunks of a batch of segments; there is one at least, and each has a new token at least."""
    ends = list(accumulate(segment.new for segment in segments))
    spans = [(segment, end - segment.new) for segment, end in zip(segments, ends, strict=True)]
    mask = _shared_mask(segments, dtype, device)
    positions = [torch.arange(segment.cached, segment.cached + segment.new, device=device) for segment in segments]
    return PrefillPlan(
        positions=torch.cat(positions),
        writes=tuple(_write(segment, first) for segment, first in spans),
        chunks=tuple(chunk for segment, first in spans for chunk in _chunks(segment, first, mask)),
        last_tokens=torch.tensor(ends, device=device) - 1,
        last_chunks=tuple(QueryChunk(slice(index, index + 1), _rows(one), None) for index, one in enumerate(segments)),
    )


def _shared_mask(segments: Sequence[PrefillSegment], dtype: torch.dtype, device: torch.device) -> CausalMask:
    """Large enough for every segment with a cached part, within the bound."""
    continued = [segment for segment in segments if segment.cached]
    columns = max((segment.cached + segment.new for segment in continued), default=1)
    queries = max((segment.new for segment in continued), default=1)
    return CausalMask(max(1, min(queries, QUERY_CHUNK, MASK_ELEMENTS // columns)), columns, dtype, device)


def _rows(segment: PrefillSegment) -> slice:
    return slice(segment.kv_start, segment.kv_start + segment.cached + segment.new)


def _write(segment: PrefillSegment, first: int) -> RowWrite:
    kv_first = segment.kv_start + segment.cached
    return RowWrite(slice(first, first + segment.new), slice(kv_first, kv_first + segment.new))


def _chunks(segment: PrefillSegment, first: int, mask: CausalMask) -> list[QueryChunk]:
    if not segment.cached:
        # The operator's own causal path needs no mask and skips the empty triangle in finer steps than chunks would.
        queries, rows = slice(first, first + segment.new), slice(segment.kv_start, segment.kv_start + segment.new)
        return [QueryChunk(queries, rows, None, causal=True)]
    chunks = []
    for begin in range(0, segment.new, mask.queries):
        end = min(begin + mask.queries, segment.new)
        columns = segment.cached + end
        rows = slice(segment.kv_start, segment.kv_start + columns)
        chunks.append(QueryChunk(slice(first + begin, first + end), rows, mask.view(end - begin, columns)))
    return chunks


def prefill_attention(
    queries: torch.Tensor, rows: torch.Tensor, chunks: Sequence[QueryChunk], heads: HeadLayout
) -> torch.Tensor:
    """Queries ``[n, kv_heads · group, head_dim]`` over the batch's KV rows, to ``[n, kv_heads · group · head_dim]``.

    A group's members stand in the batch dimension and share their KV heads without a copy (an expanded view).
    """
    grouped = queries.view(-1, heads.kv_heads, heads.group, heads.head_dim).permute(2, 1, 0, 3)
    keys, values = rows.permute(1, 2, 0, 3).unsqueeze(1).expand(-1, heads.group, -1, -1, -1)
    attended = [
        scaled_dot_product_attention(
            grouped[:, :, chunk.queries],
            keys[:, :, chunk.rows],
            values[:, :, chunk.rows],
            attn_mask=chunk.mask,
            is_causal=chunk.causal,
        )
        for chunk in chunks
    ]
    # Without groups this only renames what the operator has laid out by token already.
    flat = [part.permute(2, 1, 0, 3).reshape(part.shape[2], -1) for part in attended]
    return flat[0] if len(flat) == 1 else torch.cat(flat)


@dataclass(frozen=True, slots=True)
class SequencePages:
    """Where one sequence's KV rows are: in the ``pages`` to gather, or (None) in place, contiguous from ``first_row``."""

    tokens: int
    first_row: int
    pages: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """What is the same for all layers of one decode step.

    ``slots`` are the rows that the new tokens fill; ``scratch`` holds one sequence's gathered pages at a time.
    """

    slots: torch.Tensor
    sequences: tuple[SequencePages, ...]
    scratch: torch.Tensor


def plan_decode(
    batch: DecodeBatch,
    page_tokens: int,
    heads: HeadLayout,
    dtype: torch.dtype,
    device: torch.device,
    *,
    in_place: bool,
) -> DecodePlan:
    """Slots and pages of one step's batch in a pool whose pages hold ``page_tokens`` tokens.

    With ``in_place``, sequences whose pages are neighbours are not gathered.
    """
    pairs = list(zip(batch.tables, batch.lengths, strict=True))
    slots = [table[length // page_tokens] * page_tokens + length % page_tokens for table, length in pairs]
    sequences = tuple(_sequence(table, length + 1, page_tokens, device, in_place) for table, length in pairs)
    gathered = max((len(sequence.pages) for sequence in sequences if sequence.pages is not None), default=0)
    return DecodePlan(
        slots=torch.tensor(slots, dtype=torch.int64, device=device),
        sequences=sequences,
        scratch=torch.empty((gathered, page_tokens, 2, heads.kv_heads, heads.head_dim), dtype=dtype, device=device),
    )


def _sequence(table: Sequence[int], tokens: int, page_tokens: int, device: torch.device, in_place: bool) -> SequencePages:
    used = table[: -(-tokens // page_tokens)]
    if in_place and list(used) == list(range(used[0], used[0] + len(used))):
        return SequencePages(tokens, used[0] * page_tokens, None)
    return SequencePages(tokens, 0, torch.tensor(used, dtype=torch.int64, device=device))


def decode_attention(queries: torch.Tensor, rows: torch.Tensor, plan: DecodePlan, heads: HeadLayout) -> torch.Tensor:
    """One query a sequence, ``[batch, kv_heads · group, head_dim]``, over its pages, to ``[batch, heads · head_dim]``.

    ``rows`` are all KV rows of the pool. A group's query heads stand where a prefill has queries, so that its KV head
    is read once.
    """
    pages = rows.view(-1, *plan.scratch.shape[1:])
    grouped = queries.view(-1, 1, heads.kv_heads, heads.group, heads.head_dim)
    attended = []
    for query, sequence in zip(grouped.unbind(), plan.sequences, strict=True):
        run = rows[sequence.first_row :] if sequence.pages is None else _gathered(pages, sequence.pages, plan.scratch)
        keys, values = run[: sequence.tokens].permute(1, 2, 0, 3).unsqueeze(1)
        attended.append(scaled_dot_product_attention(query, keys, values))
    return torch.cat(attended).view(len(attended), -1)


def _gathered(pages: torch.Tensor, chosen: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
    """The chosen pages' rows in order, in ``scratch``."""
    gathered = scratch[: len(chosen)]
    torch.index_select(pages, 0, chosen, out=gathered)
    return gathered.view(-1, *scratch.shape[2:])
