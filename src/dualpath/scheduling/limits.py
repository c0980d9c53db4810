"""The scheduler's knobs with every derived quantity in tokens and blocks (paper section 6)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from dualpath.errors import SettingsError
from dualpath.settings import Placement, ReadSidePolicy, Settings
from dualpath.types import NodeName


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What the central scheduler decides by.

    Attributes:
        alpha_s: seconds of storage reading (α) above which a node's prefill engines are avoided.
        beta_s: seconds of prefill (β) above which a prefill engine gets nothing more.
        prefill_new_weight: a request's load on a prefill engine is ``max(prompt, weight · new)`` tokens; 0 is the paper's.
        decode_free_watermark: share of a decode engine's KV pool that placement keeps free.
        storage_tokens_per_s: tokens of KV a node reads a second, unless ``node_storage_tokens_per_s`` names the node.
        prefill_tokens_per_s: prompt tokens a prefill engine gets through a second.
        recompute_when_faster: drop a hit whose read is predicted to take longer than computing it.

    Raises:
        SettingsError: a rate is not positive and finite.
    """

    block_tokens: int
    storage_tokens_per_s: float
    prefill_tokens_per_s: float
    read_side: ReadSidePolicy = ReadSidePolicy.SHORTER_QUEUE
    placement: Placement = Placement.ADAPTIVE
    alpha_s: float = 3.0
    beta_s: float = 5.0
    decode_free_watermark: float = 0.02
    recompute_when_faster: bool = False
    node_storage_tokens_per_s: Mapping[NodeName, float] = field(default_factory=dict)
    prefill_new_weight: float = 0.0

    def __post_init__(self) -> None:
        rates = {f"node_storage_tokens_per_s[{node}]": rate for node, rate in self.node_storage_tokens_per_s.items()}
        rates |= {"storage_tokens_per_s": self.storage_tokens_per_s, "prefill_tokens_per_s": self.prefill_tokens_per_s}
        for key, rate in rates.items():
            if not 0 < rate < math.inf:
                raise SettingsError(f"{key} must be positive and finite, not {rate}")

    @property
    def beta_tokens(self) -> float:
        return self.beta_s * self.prefill_tokens_per_s

    def node_rate(self, node: NodeName) -> float:
        """Tokens of KV that ``node`` reads from storage a second."""
        return self.node_storage_tokens_per_s.get(node, self.storage_tokens_per_s)

    def prefill_load(self, prompt_tokens: int, hit_tokens: int) -> int:
        """Tokens that a request adds to a prefill engine's load (``tok_e``).

        A token to compute takes the time of several dozen that are only attended to, so that the few requests with many
        new ones hold up whoever is placed behind them.
        """
        return max(prompt_tokens, int(self.prefill_new_weight * (prompt_tokens - hit_tokens)))

    def blocks(self, tokens: int) -> int:
        """Blocks that ``tokens`` occupy, the last one perhaps in part."""
        return -(-tokens // self.block_tokens)

    def watermark_blocks(self, kv_blocks: int) -> int:
        """Blocks of a decode pool of ``kv_blocks`` that placement keeps free."""
        return math.ceil(self.decode_free_watermark * kv_blocks)


def scheduler_limits(settings: Settings, *, storage_tokens_per_s: float, prefill_tokens_per_s: float) -> SchedulerLimits:
    """The limits that ``settings`` ask for; the rates given here hold where settings name none."""
    section = settings.scheduling
    return SchedulerLimits(
        block_tokens=settings.cache.block_tokens,
        storage_tokens_per_s=section.storage_tokens_per_s or storage_tokens_per_s,
        prefill_tokens_per_s=section.prefill_tokens_per_s or prefill_tokens_per_s,
        read_side=section.read_side,
        placement=section.placement,
        alpha_s=section.alpha_s,
        beta_s=section.beta_s,
        decode_free_watermark=section.decode_free_watermark,
        prefill_new_weight=section.prefill_new_weight,
        recompute_when_faster=settings.cluster.recompute_when_faster,
    )
