"""What end-to-end tests share: tiny models with their transformers reference, small clusters, and waiting for idleness."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from dualpath.cluster.local import Generation, LocalCluster
from dualpath.control.turns import ClusterStatus, SamplingParams, TokenEvent, TurnFinished
from dualpath.kvcache.layout import BlockGeometry
from dualpath.models.create import create_model
from dualpath.settings import Dtype
from dualpath.types import Role

NEAR_TIE = 1e-3
"""In float32, logits so close may change places when sums are ordered otherwise."""
LOGPROB_TOLERANCE = 1e-4
IDLE_TIMEOUT_S = 10.0
TURN_TIMEOUT_S = 60.0
FETCH_INTERVAL_S = 0.02
TORCH_DTYPES = {Dtype.FLOAT64: torch.float64, Dtype.FLOAT32: torch.float32}


@dataclass(frozen=True)
class TinyModel:
    """A random model in ``directory``, computed in ``dtype`` by the cluster and by transformers."""

    directory: Path
    dtype: Dtype
    layers: int
    token_layer_bytes: int
    vocab: int
    eos_token_ids: tuple[int, ...] = (258, 256)

    @classmethod
    def create(cls, directory: Path, dtype: Dtype, **sizes: Any) -> TinyModel:
        """A new model; ``sizes`` as ``create_model`` takes them."""
        shape = {"layers": 4, "hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate": 48, "vocab": 320} | sizes
        create_model(directory, dtype=dtype, **shape)
        item_bytes = TORCH_DTYPES[dtype].itemsize
        return cls(directory, dtype, shape["layers"], 2 * shape["kv_heads"] * shape["head_dim"] * item_bytes, shape["vocab"])

    @cached_property
    def transformers(self) -> Any:
        torch.set_num_threads(1)
        model = AutoModelForCausalLM.from_pretrained(self.directory, dtype=TORCH_DTYPES[self.dtype])
        return model.eval()

    def geometry(self, block_tokens: int) -> BlockGeometry:
        return BlockGeometry(self.layers, block_tokens, self.token_layer_bytes)

    @torch.inference_mode()
    def logits(self, prompt: Sequence[int], output: Sequence[int]) -> torch.Tensor:
        """The reference's logits ``[len(output), vocab]`` for each output token, given what came before it."""
        tokens = torch.tensor([[*prompt, *output[:-1]]])
        found: torch.Tensor = self.transformers(tokens, logits_to_keep=len(output)).logits[0]
        return found

    @torch.inference_mode()
    def greedy(self, prompt: Sequence[int], tokens: int) -> list[int]:
        """What transformers itself generates, up to an end token."""
        found = self.transformers.generate(torch.tensor([list(prompt)]), max_new_tokens=tokens, do_sample=False)
        return [int(token) for token in found[0, len(prompt) :]]

    def check(self, turn: Generation, sampling: SamplingParams) -> None:
        """Fail unless a turn has as many tokens as it should, the reference's likeliest ones, with its logprobs.

        Each token is compared given the turn's own earlier ones: equality everywhere is equality with greedy decoding.
        """
        assert [event.position for event in turn.events] == list(range(len(turn.tokens)))
        assert turn.finished.output_tokens == len(turn.tokens)
        assert turn.finished.prompt_tokens == len(turn.prompt)
        logits = self.logits(turn.prompt, turn.tokens)
        allowed = logits.clone()
        ends = [*sampling.stop_token_ids, *(() if sampling.ignore_eos else self.eos_token_ids)]
        allowed[: sampling.min_tokens, ends] = float("-inf")
        if sampling.temperature == 0.0:
            self._check_greedy(turn, allowed)
        self._check_end(turn, sampling, ends)
        if sampling.logprobs is not None:
            self._check_logprobs(turn, logits.double().log_softmax(-1))

    def _check_greedy(self, turn: Generation, allowed: torch.Tensor) -> None:
        best = allowed.topk(2, dim=-1)
        likeliest, gaps = best.indices[:, 0].tolist(), (best.values[:, 0] - best.values[:, 1]).tolist()
        margin = NEAR_TIE if self.dtype is Dtype.FLOAT32 else 0.0
        wrong = [
            (position, token, right, gap)
            for position, (token, right, gap) in enumerate(zip(turn.tokens, likeliest, gaps, strict=True))
            if token != right and gap > margin
        ]
        assert not wrong, f"(position, token, the reference's, its margin): {wrong[:5]}; {turn.finished}"

    def _check_end(self, turn: Generation, sampling: SamplingParams, ends: Sequence[int]) -> None:
        ended = [position for position, token in enumerate(turn.tokens) if token in ends]
        if turn.finish_reason == "stop":
            assert ended == [len(turn.tokens) - 1]
            assert len(turn.tokens) > sampling.min_tokens
        else:
            assert turn.finish_reason == "length"
            assert len(turn.tokens) == sampling.max_tokens
            assert not ended[:-1]

    def _check_logprobs(self, turn: Generation, logprobs: torch.Tensor) -> None:
        for event, row in zip(turn.events, logprobs, strict=True):
            assert event.logprob is not None
            assert abs(event.logprob - float(row[event.token])) < LOGPROB_TOLERANCE, (event, turn.finished)
            for token, logprob in event.top_logprobs:
                assert abs(logprob - float(row[token])) < LOGPROB_TOLERANCE, (event, turn.finished)


@dataclass(frozen=True)
class SmallCluster:
    """How to open a thread-mode cluster whose memories are counted in blocks, so that it starts at once.

    ``pages`` is the decode engines' KV pool, ``buffers`` both roles' DRAM buffers, ``rows`` the prefill engines' KV memory
    in tokens.
    """

    model: TinyModel
    block_tokens: int = 16
    system: str = "dualpath"
    pages: int = 200
    decode_buffer: int = 64
    prefill_buffer: int = 64
    staging: int = 8
    rows: int = 1024
    knobs: dict[str, Any] = field(default_factory=dict)

    def open(self, **knobs: Any) -> LocalCluster:
        """A cluster to enter; ``knobs`` are further settings by name."""
        geometry = self.model.geometry(self.block_tokens)
        layerwise = self.system != "basic"
        frames = 2 if layerwise else self.model.layers
        sizes: dict[str, Any] = {
            "block_tokens": self.block_tokens,
            "decode_kv_memory": self.pages * geometry.full_block_bytes,
            "decode_buffer": self.decode_buffer * geometry.slot_bytes,
            "prefill_buffer": self.prefill_buffer * geometry.slot_bytes,
            "write_back_buffer": self.staging * geometry.slot_bytes,
            "prefill_kv_memory": self.rows * frames * geometry.token_layer_bytes,
            "fetch_interval_s": FETCH_INTERVAL_S,
            "heartbeat_timeout_s": 60.0,
            "dtype": self.model.dtype,
            "device": "cpu",
        }
        return LocalCluster(self.model.directory, system=self.system, processes=False, **(sizes | self.knobs | knobs))


@dataclass(frozen=True)
class Ask:
    """A turn to run; given up after so many tokens, or so many seconds, if either is said."""

    prompt: Sequence[int]
    sampling: SamplingParams
    give_up_tokens: int | None = None
    give_up_s: float | None = None


def run_together(model: TinyModel, cluster: LocalCluster, asks: Sequence[Ask]) -> list[Generation | None]:
    """Turns at the same time, each compared with the reference afterwards; None for those given up."""
    done = cluster.run(_gather(cluster, asks))
    for turn, ask in zip(done, asks, strict=True):
        if turn is not None:
            model.check(turn, ask.sampling)
    return done


async def _gather(cluster: LocalCluster, asks: Sequence[Ask]) -> list[Generation | None]:
    return await asyncio.gather(*(_ask(cluster, ask) for ask in asks))


async def _ask(cluster: LocalCluster, ask: Ask) -> Generation | None:
    stream = cluster.client.generate(ask.prompt, ask.sampling, timeout_s=TURN_TIMEOUT_S)
    events: list[TokenEvent] = []
    try:
        async with asyncio.timeout(ask.give_up_s):
            async for event in stream:
                if isinstance(event, TurnFinished):
                    tokens = tuple(one.token for one in events)
                    return Generation(tuple(ask.prompt), tokens, tuple(events), None, event, ())
                events.append(event)
                if len(events) == ask.give_up_tokens:
                    break
    except TimeoutError:
        pass
    finally:
        await stream.aclose()
    return None


def wait_idle(cluster: LocalCluster) -> ClusterStatus:
    """The status once no turn, buffer slot, page, pin or block is in use any more; fails if that takes too long.

    Engines report now and then: only what two reports say in a row is believed.
    """
    deadline = time.monotonic() + IDLE_TIMEOUT_S
    idle_reports = 0
    while True:
        status = cluster.status()
        busy = _busy(status)
        idle_reports = 0 if busy else idle_reports + 1
        if idle_reports == 2:
            return status
        assert time.monotonic() < deadline, f"still in use after {IDLE_TIMEOUT_S:g} s: {busy}"
        time.sleep(3 * FETCH_INTERVAL_S)


def _busy(status: ClusterStatus) -> dict[str, int]:
    counts = {name: getattr(status, name) for name in ("waiting", "running", "pinned_blocks", "pending_blocks")}
    for engine in status.engines:
        counts |= {
            f"{engine.name} running": engine.running,
            f"{engine.name} waiting": engine.waiting,
            f"{engine.name} unread": engine.read_queue_tokens,
            f"{engine.name} buffer": engine.buffer_blocks - engine.buffer_blocks_free,
            f"{engine.name} pages": engine.kv_blocks - engine.kv_blocks_free if engine.role == Role.DECODE else 0,
        }
    return {name: count for name, count in counts.items() if count}


def random_tokens(seed: int, count: int) -> list[int]:
    """Plain bytes: no end tokens among them."""
    generator = random.Random(seed)
    return [generator.randrange(256) for _ in range(count)]
