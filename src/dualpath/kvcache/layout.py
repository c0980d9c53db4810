"""Full Blocks and Layer Blocks: sizes and offsets, exact to the byte (paper A.5)."""

from __future__ import annotations

from dataclasses import dataclass

PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class BlockGeometry:
    """The shape of one KV block.

    A Layer Block is ``[1, block_tokens, token_layer_bytes]``, a Full Block ``[layers, block_tokens, token_layer_bytes]``:
    its Layer Blocks concatenated, so that no layout conversion is ever needed. Its content is opaque outside ``models``.
    """

    layers: int
    block_tokens: int
    token_layer_bytes: int

    def __post_init__(self) -> None:
        for name in ("layers", "block_tokens", "token_layer_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")

    @property
    def token_bytes(self) -> int:
        """KV bytes of one token over all layers."""
        return self.layers * self.token_layer_bytes

    @property
    def layer_block_bytes(self) -> int:
        return self.block_tokens * self.token_layer_bytes

    @property
    def full_block_bytes(self) -> int:
        return self.layers * self.layer_block_bytes

    @property
    def slot_bytes(self) -> int:
        """A Full Block's place in a buffer, rounded up to whole pages so that direct I/O can land in it."""
        return -(-self.full_block_bytes // PAGE_BYTES) * PAGE_BYTES

    def blocks(self, tokens: int) -> int:
        """Blocks that ``tokens`` occupy, the last one perhaps in part."""
        return -(-tokens // self.block_tokens)

    def whole_blocks(self, tokens: int) -> int:
        """Complete blocks within ``tokens``."""
        return tokens // self.block_tokens

    def max_hit_blocks(self, prompt_tokens: int) -> int:
        """Most blocks of a prompt that may be a hit: at least one token is always computed."""
        return max(0, (prompt_tokens - 1) // self.block_tokens)
