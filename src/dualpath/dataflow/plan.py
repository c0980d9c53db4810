"""Fig. 4 as data: the moves of one turn for PE read, DE read and split read.

``plan`` describes a whole turn, ``forward_moves`` one prefill chunk's part of it. The traffic manager executes moves,
the simulator charges them to links, the bounds test sums them. Every move, local copies included, charges the source
CNIC's read and the destination CNIC's write (PCIe side); moves from or to storage charge the SNIC of the buffer's node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from dualpath.dataflow.classes import TrafficClass
from dualpath.kvcache.layout import BlockGeometry
from dualpath.types import ReadShare


class Place(StrEnum):
    """Where KV bytes can be."""

    STORAGE = "storage"
    PE_BUFFER = "pe-buffer"
    PE_HBM = "pe-hbm"
    DE_BUFFER = "de-buffer"
    DE_HBM = "de-hbm"


@dataclass(frozen=True, slots=True)
class Move:
    """KV of the prompt tokens ``[first_token, first_token + tokens)`` goes from ``source`` to ``destination``.

    ``bytes`` is the sum over all layers; with ``per_layer`` they move as one piece a layer, in layer order, so that
    neighbouring layers' compute hides them.
    """

    source: Place
    destination: Place
    first_token: int
    tokens: int
    bytes: int
    per_layer: bool
    traffic_class: TrafficClass


@dataclass(frozen=True, slots=True)
class Plan:
    """What has to move for one turn, and by which path.

    Attributes:
        prompt_tokens: the whole prompt, hits included.
        share: hit tokens by reading side; whole blocks.
        geometry: shape of a block.
        layerwise: whether the prefill engine streams KV layer by layer (False: whole, before and after compute).
        transfers: False for the Oracle: the plan has no moves at all.
    """

    prompt_tokens: int
    share: ReadShare
    geometry: BlockGeometry
    layerwise: bool = True
    transfers: bool = True

    def __post_init__(self) -> None:
        hit = self.share.hit_tokens
        if self.share.prefill_tokens % self.geometry.block_tokens or hit % self.geometry.block_tokens:
            raise ValueError(f"a hit is whole blocks of {self.geometry.block_tokens} tokens, not {self.share}")
        if not 0 <= hit < self.prompt_tokens:
            raise ValueError(f"a hit of {hit} leaves no token of {self.prompt_tokens} to compute")

    @property
    def hit_tokens(self) -> int:
        return self.share.hit_tokens

    @property
    def miss_tokens(self) -> int:
        return self.prompt_tokens - self.hit_tokens

    @property
    def moves(self) -> tuple[Move, ...]:
        """All moves of the turn's prompt, in the order in which they can start."""
        return (
            *self.storage_reads(),
            *forward_moves(self, self.hit_tokens, self.miss_tokens),
            *self.handoff(),
            *self.write_back(),
        )

    def storage_reads(self) -> tuple[Move, ...]:
        """Storage to the buffers: the head to the PE's, the tail to the DE's (Fig. 4, labels 1 and 2)."""
        head, tail = self.share.prefill_tokens, self.share.decode_tokens
        return self._moves(
            (Place.STORAGE, Place.PE_BUFFER, 0, head, False, TrafficClass.STORAGE_READ),
            (Place.STORAGE, Place.DE_BUFFER, head, tail, False, TrafficClass.STORAGE_READ),
        )

    def handoff(self) -> tuple[Move, ...]:
        """DE buffer to DE HBM, once the buffer holds the whole prompt."""
        return self._moves((Place.DE_BUFFER, Place.DE_HBM, 0, self.prompt_tokens, False, TrafficClass.HANDOFF))

    def write_back(self) -> tuple[Move, ...]:
        """The prompt's complete missed blocks, from the DE buffer to storage."""
        whole = self.geometry.whole_blocks(self.prompt_tokens) * self.geometry.block_tokens
        missed = max(0, whole - self.hit_tokens)
        return self._moves((Place.DE_BUFFER, Place.STORAGE, self.hit_tokens, missed, False, TrafficClass.WRITE_BACK))

    def shrunk(self, valid_tokens: int) -> Plan:
        """The plan when only the first ``valid_tokens`` of the hit could be read; the rest is recomputed."""
        return replace(self, share=self.share.shrunk(valid_tokens))

    def _moves(self, *rows: tuple[Place, Place, int, int, bool, TrafficClass]) -> tuple[Move, ...]:
        if not self.transfers:
            return ()
        token_bytes = self.geometry.token_bytes
        return tuple(
            Move(source, destination, first, tokens, tokens * token_bytes, per_layer, traffic_class)
            for source, destination, first, tokens, per_layer, traffic_class in rows
            if tokens
        )


def plan(
    prompt_tokens: int,
    share: ReadShare,
    geometry: BlockGeometry,
    *,
    layerwise: bool = True,
    transfers: bool = True,
) -> Plan:
    """The plan of a turn of ``prompt_tokens`` whose hit is read as ``share`` says.

    Raises:
        ValueError: the share is not whole blocks, or leaves nothing to compute.
    """
    return Plan(prompt_tokens, share, geometry, layerwise, transfers)


def forward_moves(turn: Plan, cached: int, new: int) -> tuple[Move, ...]:
    """The moves of one prefill chunk that computes tokens ``[cached, cached + new)``.

    The first chunk loads the head from the PE buffer and the tail from the DE buffer, and stores the head beside its
    own tokens, so that afterwards the DE buffer holds everything so far. Later chunks load from there, like a DE read.

    Raises:
        ValueError: the chunk does not start where the hit or an earlier chunk ended, or leaves the prompt.
    """
    if not turn.hit_tokens <= cached < cached + new <= turn.prompt_tokens:
        raise ValueError(f"chunk [{cached}, {cached + new}) is outside [{turn.hit_tokens}, {turn.prompt_tokens})")
    layerwise = turn.layerwise
    load, store = TrafficClass.LAYER_LOAD, TrafficClass.LAYER_STORE
    head = turn.share.prefill_tokens if cached == turn.hit_tokens else 0
    return turn._moves(
        (Place.PE_BUFFER, Place.PE_HBM, 0, head, layerwise, load),
        (Place.DE_BUFFER, Place.PE_HBM, head, cached - head, layerwise, load),
        (Place.PE_HBM, Place.DE_BUFFER, 0, head, layerwise, store),
        (Place.PE_HBM, Place.DE_BUFFER, cached, new, layerwise, store),
    )
