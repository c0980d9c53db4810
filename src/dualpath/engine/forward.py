"""One forward batch of a prefill engine, and the compute that runs it on the compute thread (paper sections 2 and 6)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dualpath.control.turns import TokenEvent
from dualpath.engine.layer_loop import FrameMemory, run_layers
from dualpath.engine.prefill_turn import PrefillTurn
from dualpath.engine.sampler import sample
from dualpath.errors import ClusterError, DeadlineExceeded
from dualpath.models.base import CausalModel, PrefillSegment
from dualpath.scheduling.batching import Chunk
from dualpath.traffic.layers import ChunkTransfer, LayerStream
from dualpath.traffic.manager import TrafficManager


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """Chunks of turns that are computed together, each with its rows in the batch's KV memory."""

    turns: Sequence[PrefillTurn]
    chunks: Sequence[Chunk]

    def segments(self) -> list[PrefillSegment]:
        """The chunks' places in the batch, one behind the other."""
        segments, row = [], 0
        for chunk in self.chunks:
            segments.append(PrefillSegment(row, chunk.cached, chunk.new))
            row += chunk.cached + chunk.new
        return segments

    def tokens(self) -> torch.Tensor:
        """The new tokens of all chunks, int64."""
        return torch.cat(
            [turn.prompt[chunk.cached : chunk.cached + chunk.new] for turn, chunk in zip(self.turns, self.chunks, strict=True)]
        )

    def finishing(self) -> list[int]:
        """Indices of the chunks that complete their prompts."""
        return [
            index
            for index, (turn, chunk) in enumerate(zip(self.turns, self.chunks, strict=True))
            if chunk.cached + chunk.new == turn.prompt_tokens
        ]

    def transfers(self) -> list[ChunkTransfer]:
        """What the layer stream has to move for each chunk."""
        return [
            ChunkTransfer(
                plan=turn.plan,
                cached=chunk.cached,
                new=chunk.new,
                kv_row=segment.kv_start,
                prefill_slots=turn.prefill_slots,
                decode_slots=turn.decode_slots,
                decode_region=turn.assign.decode_region.region,
            )
            for turn, chunk, segment in zip(self.turns, self.chunks, self.segments(), strict=True)
        ]


@dataclass(slots=True)
class PrefillCompute:
    """The model, its KV memory and the way in and out of it. Used from the compute thread only."""

    model: CausalModel
    frames: FrameMemory
    traffic: TrafficManager
    buffer_region: str
    device: torch.device
    transfer_timeout_s: float
    attention_s: float = 0.0

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.model.shape.eos_token_ids

    def run(self, batch: ForwardPass) -> dict[int, TokenEvent]:
        """Compute a batch; the first output token of each turn that completes, by index in the batch.

        When this returns, the decode buffers hold the chunks' KV and nothing of the batch is in flight.

        Raises:
            DeadlineExceeded, TransportError: KV could not be moved in time.
            ClusterError: KV is still being moved, so that no memory of the batch can be used again: the engine has to end.
        """
        started = time.perf_counter()
        stream = self.traffic.layer_stream(batch.transfers(), self.frames.layout, self.buffer_region)
        try:
            with torch.inference_mode():
                tokens = batch.tokens().to(self.device)
                hidden = run_layers(self.model, tokens, batch.segments(), self.frames, stream)
                events = self._first_tokens(batch, hidden)
            self._finish(stream)
        except BaseException:
            _abort(stream)
            raise
        finally:
            self.traffic.retire(stream)
        self.attention_s += time.perf_counter() - started - stream.statistics.exposed_s
        return events

    def _finish(self, stream: LayerStream) -> None:
        try:
            stream.finish().result(self.transfer_timeout_s)
        except TimeoutError:
            raise DeadlineExceeded(f"KV was not stored within {self.transfer_timeout_s:g} s") from None

    def _first_tokens(self, batch: ForwardPass, hidden: torch.Tensor) -> dict[int, TokenEvent]:
        finishing = batch.finishing()
        if not finishing:
            return {}
        logits = self.model.logits(hidden[finishing])
        submits = [batch.turns[index].assign.submit for index in finishing]
        sampled = sample(
            logits,
            [submit.sampling for submit in submits],
            [submit.first_position for submit in submits],
            self.eos_token_ids,
        )
        return {
            index: TokenEvent(
                submit.first_position, one.token, one.logprob, one.top_logprobs, batch.turns[index].plan.hit_tokens
            )
            for index, submit, one in zip(finishing, submits, sampled, strict=True)
        }


def _abort(stream: LayerStream) -> None:
    try:
        stream.abort()
    except DeadlineExceeded as error:
        raise ClusterError(str(error)) from error
