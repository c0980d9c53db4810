"""What moves cost: bytes on storage NICs, compute NICs and memories (paper section 4.2)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from dualpath.dataflow.plan import Move, Place, forward_moves, plan
from dualpath.kvcache.layout import BlockGeometry
from dualpath.types import ReadShare

_PREFILL_PLACES = frozenset({Place.PE_BUFFER, Place.PE_HBM})
_BUFFERS = frozenset({Place.PE_BUFFER, Place.DE_BUFFER})


class Charge(NamedTuple):
    """Bytes on each resource that a turn's prefill engine (``pe``) and decode engine (``de``) share with others.

    Every move, local copies included, charges its source's compute NIC with a read and its destination's with a write; one
    from or to storage charges the storage NIC of its buffer's node instead. Every buffer that it touches charges that
    node's memory.
    """

    pe_snic_read: float = 0.0
    de_snic_read: float = 0.0
    de_snic_write: float = 0.0
    pe_cnic_read: float = 0.0
    pe_cnic_write: float = 0.0
    de_cnic_read: float = 0.0
    de_cnic_write: float = 0.0
    pe_dram: float = 0.0
    de_dram: float = 0.0

    def plus(self, other: Charge) -> Charge:
        return Charge(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def times(self, factor: float) -> Charge:
        return Charge(*(factor * value for value in self))


def charge(moves: Iterable[Move]) -> Charge:
    """The sum over ``moves``."""
    total: dict[str, float] = dict.fromkeys(Charge._fields, 0.0)
    for move in moves:
        for resource in _resources(move):
            total[resource] += move.bytes
    return Charge(**total)


def _resources(move: Move) -> list[str]:
    source, destination = move.source, move.destination
    touched = [f"{_side(place)}_dram" for place in (source, destination) if place in _BUFFERS]
    if source is Place.STORAGE:
        return [f"{_side(destination)}_snic_read", *touched]
    if destination is Place.STORAGE:
        return [f"{_side(source)}_snic_write", *touched]
    return [f"{_side(source)}_cnic_read", f"{_side(destination)}_cnic_write", *touched]


def _side(place: Place) -> str:
    return "pe" if place in _PREFILL_PLACES else "de"


class Stage(StrEnum):
    """When moves happen."""

    READ = "read"
    LOAD = "load"
    """Of a forward: layers in."""
    STORE = "store"
    """Of a forward: layers out."""
    HANDOFF = "handoff"
    WRITE_BACK = "write-back"


class PerToken(NamedTuple):
    """What a stage charges for a token, by what the token is to the turn.

    ``head`` and ``tail`` are the hit's tokens that the prefill and the decode side have read, ``new`` those to compute.
    What an earlier chunk has left in the decode engine's buffer counts as tail.
    """

    head: Charge
    tail: Charge
    new: Charge

    def of(self, head: int, tail: int, new: int) -> Charge:
        """The charge of so many tokens."""
        return self.head.times(head).plus(self.tail.times(tail)).plus(self.new.times(new))

    def plus(self, other: PerToken) -> PerToken:
        return PerToken(*(mine.plus(theirs) for mine, theirs in zip(self, other, strict=True)))


def per_token(geometry: BlockGeometry, *, layerwise: bool = True, transfers: bool = True) -> dict[Stage, PerToken]:
    """Every stage's charges for a token, taken from the moves of a small turn: moves cost in proportion to their tokens.

    Whole blocks only are written back: a turn's ``new`` tokens have to be counted up to its last whole block there.
    """
    block = geometry.block_tokens
    turn = plan(3 * block, ReadShare(block, block), geometry, layerwise=layerwise, transfers=transfers)
    forward = forward_moves(turn, 2 * block, block)
    moves = {
        Stage.READ: turn.storage_reads(),
        Stage.LOAD: [move for move in forward if move.destination is Place.PE_HBM],
        Stage.STORE: [move for move in forward if move.source is Place.PE_HBM],
        Stage.HANDOFF: turn.handoff(),
        Stage.WRITE_BACK: turn.write_back(),
    }
    return {stage: PerToken(*(_share(found, kind * block, block) for kind in range(3))) for stage, found in moves.items()}


def _share(moves: Iterable[Move], first: int, tokens: int) -> Charge:
    """A token's part of the moves that touch ``[first, first + tokens)``."""
    touching = [move for move in moves if move.first_token <= first and first + tokens <= move.first_token + move.tokens]
    total = Charge()
    for move in touching:
        total = total.plus(charge([move]).times(1 / move.tokens))
    return total
