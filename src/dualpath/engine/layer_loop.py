"""A prefill forward, layer by layer: KV in, attention over hit and new, KV out, neighbours overlapped (paper section 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dualpath.kvcache.layout import BlockGeometry
from dualpath.models.base import CausalModel, PrefillSegment
from dualpath.traffic.layers import LayerFrames, LayerStream


@dataclass(slots=True)
class FrameMemory:
    """Device memory for the KV of one forward batch: ``frames`` layers of up to ``rows`` tokens each.

    Layer ``l`` lives in frame ``l % frames``: two frames stream layerwise, as many as layers hold everything.
    ``peak_bytes`` is the most that one batch has used.
    """

    region: str
    memory: torch.Tensor
    frames: int
    rows: int
    token_layer_bytes: int
    peak_bytes: int = 0

    @classmethod
    def allocate(cls, region: str, geometry: BlockGeometry, frames: int, rows: int, device: torch.device) -> FrameMemory:
        """Zero-filled memory (the Oracle computes on it as it is)."""
        memory = torch.zeros(frames * rows * geometry.token_layer_bytes, dtype=torch.uint8, device=device)
        return cls(region, memory, frames, rows, geometry.token_layer_bytes)

    @property
    def layout(self) -> LayerFrames:
        """Where a layer stream finds the layers."""
        return LayerFrames(self.region, self.frames, self.rows)

    def layer(self, layer: int) -> torch.Tensor:
        """The layer's KV rows, ``[rows, token_layer_bytes]`` uint8."""
        frame_bytes = self.rows * self.token_layer_bytes
        start = (layer % self.frames) * frame_bytes
        return self.memory[start : start + frame_bytes].view(self.rows, self.token_layer_bytes)

    def note_use(self, rows: int) -> None:
        """Record that a batch of ``rows`` tokens is held."""
        self.peak_bytes = max(self.peak_bytes, self.frames * rows * self.token_layer_bytes)


def run_layers(
    model: CausalModel,
    tokens: torch.Tensor,
    segments: Sequence[PrefillSegment],
    frames: FrameMemory,
    stream: LayerStream,
) -> torch.Tensor:
    """Hidden states ``[segments, hidden_size]`` of each segment's last token, after the last layer.

    The new tokens' KV is on its way when this returns.

    Runs on the compute thread and blocks there for layers that are not loaded in time.

    Raises:
        DeadlineExceeded, TransportError: KV could not be loaded; the stream has to be aborted.
    """
    frames.note_use(sum(segment.cached + segment.new for segment in segments))
    stream.start()
    hidden = model.embed(tokens)
    model.begin_prefill(segments)
    for layer in range(model.shape.layers):
        stream.wait_loaded(layer)
        hidden = model.prefill_layer(layer, hidden, frames.layer(layer))
        stream.computed(layer)
    return hidden
