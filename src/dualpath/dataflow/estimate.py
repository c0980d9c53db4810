"""What the second path can bring at most, from bytes and FLOPs alone, without a simulation (paper sections 3 and 4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dualpath.costmodel.shapes import ModelCost
from dualpath.dataflow.bounds import ClusterShape, Resource, binding_resource, most_reads, utilisations

_FULL = 1e-6


class Limit(StrEnum):
    """What a rate of turns runs into first."""

    STORAGE = "storage NICs"
    NETWORK = "compute network or memory"
    COMPUTE = "prefill compute"


@dataclass(frozen=True, slots=True)
class MeanTurn:
    """An average turn in tokens: its prompt, and the part of it that is new.

    Raises:
        ValueError: nothing is new, or more than the prompt.
    """

    prompt_tokens: float
    new_tokens: float

    def __post_init__(self) -> None:
        if not 0 < self.new_tokens <= self.prompt_tokens:
            raise ValueError(f"a turn of {self.prompt_tokens:g} tokens cannot have {self.new_tokens:g} new ones")

    @property
    def hit_tokens(self) -> float:
        return self.prompt_tokens - self.new_tokens

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / self.prompt_tokens


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What remains of data sheets: of the storage NICs' rate, and of a GPU's FLOPs during prefill.

    The defaults are about what the paper's DS 660B reaches: 31 GB/s of 50, and 7 % of the fp8 peak, since a few hundred new
    tokens behind a long context keep no GPU busy.
    """

    storage: float = 0.62
    compute: float = 0.1


@dataclass(frozen=True, slots=True)
class Rate:
    """Turns a second, and what limits them."""

    turns_per_s: float
    limit: Limit


@dataclass(frozen=True, slots=True)
class Estimate:
    """Upper bounds of a cluster's throughput.

    Attributes:
        io_per_compute: bytes of hit read per FLOP of prefill.
        basic, dualpath: turns a second with the prefill side's reads only, and with both paths.
        compute: turns a second that the prefill engines compute.
        reads: how much of the prefill and of the decode nodes' storage NICs both paths can use.
        binding: the resource that is used most if all storage NICs are busy.
    """

    io_per_compute: float
    basic: Rate
    dualpath: Rate
    compute: float
    reads: tuple[float, float]
    binding: Resource

    @property
    def speedup(self) -> float:
        """At most so many times Basic's throughput."""
        return self.dualpath.turns_per_s / self.basic.turns_per_s


def estimate(
    shape: ClusterShape, gpu_flops: float, model: ModelCost, turn: MeanTurn, efficiency: Efficiency | None = None
) -> Estimate:
    """The bounds for turns of one mean size.

    New tokens are computed at the mean context of the turn. Both paths are used as far as storage NICs, CNICs and
    memories allow.
    """
    efficiency = efficiency or Efficiency()
    hit_bytes = turn.hit_tokens * model.token_bytes
    flops = turn.new_tokens * model.flops(turn.prompt_tokens - turn.new_tokens / 2)
    compute = shape.prefill_nodes * shape.engines_per_node * gpu_flops * efficiency.compute / flops
    only_prefill = most_reads(shape, efficiency.storage, both_paths=False)
    both = most_reads(shape, efficiency.storage)
    return Estimate(
        io_per_compute=hit_bytes / flops,
        basic=_rate(shape, only_prefill, hit_bytes, compute),
        dualpath=_rate(shape, both, hit_bytes, compute),
        compute=compute,
        reads=both,
        binding=binding_resource(shape),
    )


def _rate(shape: ClusterShape, reads: tuple[float, float], hit_bytes: float, compute: float) -> Rate:
    used_nodes = reads[0] * shape.prefill_nodes + reads[1] * shape.decode_nodes
    read = _per_s(used_nodes * shape.snic_bandwidth, hit_bytes)
    if compute <= read:
        return Rate(compute, Limit.COMPUTE)
    network_full = max(utilisations(shape, *reads).values()) > 1 - _FULL
    return Rate(read, Limit.NETWORK if network_full else Limit.STORAGE)


def _per_s(bytes_per_s: float, turn_bytes: float) -> float:
    return bytes_per_s / turn_bytes if turn_bytes else float("inf")
