"""Prefill and decode of one process on one thread: DualPath's models against transformers', and vLLM where it is installed.

Ours runs layer by layer over memory it does not own, as an engine does. Rounds are interleaved, medians printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from dualpath.models.base import CausalModel, DecodeBatch, PrefillSegment
from dualpath.models.create import create_model
from dualpath.models.registry import load_model
from dualpath.settings import Dtype

BATCH = 16
CONTEXT = 512
PROMPT = 2048
APPEND = (1000, 30)
PAGE_TOKENS = 64

Measures = dict[str, Callable[[], Any]]


class Ours:
    """This project's model over a paged pool and one KV buffer a layer."""

    def __init__(self, directory: Path, steps: int) -> None:
        self.model: CausalModel = load_model(directory, Dtype.FLOAT32, "cpu")
        shape = self.model.shape
        self.buffers = torch.zeros(shape.layers, PROMPT, shape.token_layer_bytes, dtype=torch.uint8)
        pages = -(-(CONTEXT + steps) // PAGE_TOKENS)
        self.pool = torch.zeros(shape.layers, BATCH * pages, PAGE_TOKENS, shape.token_layer_bytes, dtype=torch.uint8)
        order = torch.randperm(BATCH * pages, generator=torch.Generator().manual_seed(1)).tolist()
        self.contiguous = [list(range(row * pages, (row + 1) * pages)) for row in range(BATCH)]
        self.scattered = [order[row * pages : (row + 1) * pages] for row in range(BATCH)]
        self.lengths = {"contiguous": CONTEXT, "scattered": CONTEXT}
        self.prompt = torch.arange(PROMPT) % 256
        self.tokens = torch.arange(BATCH)

    def prefill(self, cached: int, new: int) -> torch.Tensor:
        self.model.begin_prefill([PrefillSegment(0, cached, new)])
        hidden = self.model.embed(self.prompt[cached : cached + new])
        for layer, kv in enumerate(self.buffers):
            hidden = self.model.prefill_layer(layer, hidden, kv)
        return self.model.logits(hidden[-1:]).argmax(-1)

    def decode(self, kind: str) -> torch.Tensor:
        tables = self.contiguous if kind == "contiguous" else self.scattered
        self.model.begin_decode(DecodeBatch(tables, [self.lengths[kind]] * BATCH))
        self.lengths[kind] += 1
        hidden = self.model.embed(self.tokens)
        for layer, pages in enumerate(self.pool):
            hidden = self.model.decode_layer(layer, hidden, pages)
        return self.model.logits(hidden).argmax(-1)

    def measures(self) -> Measures:
        return {
            "prefill": lambda: self.prefill(0, PROMPT),
            "append": lambda: self.prefill(*APPEND),
            "decode": lambda: self.decode("contiguous"),
            "decode-scattered": lambda: self.decode("scattered"),
        }


class Transformers:
    """transformers with its dynamic cache and SDPA attention."""

    def __init__(self, directory: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="sdpa")
        self.prompt = (torch.arange(PROMPT) % 256)[None]
        self.tokens = torch.arange(BATCH)[:, None]
        self.decoding = self._filled(self.prompt[:, :CONTEXT].expand(BATCH, -1))
        self.appending = self._filled(self.prompt[:, : APPEND[0]])

    def _filled(self, prompt: torch.Tensor) -> DynamicCache:
        cache = DynamicCache(config=self.model.config)
        self._forward(prompt, cache)
        return cache

    @torch.inference_mode()
    def _forward(self, tokens: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        # By place, because the cache's name has changed between versions.
        logits: torch.Tensor = self.model(tokens, None, None, cache, logits_to_keep=1).logits
        return logits.argmax(-1)

    def append(self) -> torch.Tensor:
        cached, new = APPEND
        token = self._forward(self.prompt[:, cached : cached + new], self.appending)
        self.appending.crop(-new)
        return token

    def measures(self) -> Measures:
        decode = lambda: self._forward(self.tokens, self.decoding)  # noqa: E731
        return {
            "prefill": lambda: self._forward(self.prompt, DynamicCache(config=self.model.config)),
            "append": self.append,
            "decode": decode,
            "decode-scattered": decode,
        }


def interleaved(contenders: dict[str, Measures], rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds by measure and contender; the first, warming round is dropped."""
    times: dict[str, dict[str, list[float]]] = {}
    for turn in range(rounds + 1):
        for name, measures in contenders.items():
            for measure, run in measures.items():
                started = time.perf_counter()
                run()
                if turn:
                    times.setdefault(measure, {}).setdefault(name, []).append(time.perf_counter() - started)
    return {measure: {name: statistics.median(all_s) for name, all_s in by.items()} for measure, by in times.items()}


def vllm_medians(python: str, directory: Path, rounds: int) -> dict[str, float]:
    """The same measures by vLLM, run by another interpreter."""
    script = Path(__file__).with_name("model_speed_vllm.py")
    sizes = [str(number) for number in (rounds, BATCH, CONTEXT, PROMPT)]
    done = subprocess.run([python, str(script), str(directory), *sizes], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{python} {script.name} failed:\n{done.stderr[-2000:]}")
    # vLLM writes to stdout too, also behind the figures.
    figures = [line for line in done.stdout.splitlines() if line.startswith('{"prefill"')]
    if not figures:
        raise SystemExit(f"{python} {script.name} printed no figures:\n{done.stdout[-2000:]}")
    medians: dict[str, float] = json.loads(figures[-1])
    return medians


def print_table(medians: dict[str, dict[str, float]], directory: Path) -> None:
    names = list(medians["prefill"])
    print(f"{directory}: float32, one thread, medians in ms (ratio to dualpath)")
    print(f"{'':18}" + "".join(f"{name:>24}" for name in names))
    for measure, by_name in medians.items():
        cells = (
            f"{by_name[name] * 1e3:14.2f} ({by_name[name] / by_name['dualpath']:5.2f} x)" if name in by_name else f"{'':24}"
            for name in names
        )
        print(f"{measure:18}" + "".join(f"{cell:>24}" for cell in cells))
    print(f"prefill {PROMPT} tokens; append {APPEND[1]} behind {APPEND[0]}; decode: a step of batch {BATCH}, context {CONTEXT}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="model directory; default: a small random one")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="also write the medians, in seconds, to this file")
    parser.add_argument("--vllm-python", help="interpreter that has vLLM installed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        directory = arguments.model
        if directory is None:
            directory = create_model(Path(scratch) / "small", hidden=256, kv_heads=2, head_dim=32, intermediate=512).directory
        contenders = {
            "dualpath": Ours(directory, arguments.rounds + 1).measures(),
            "transformers": Transformers(directory).measures(),
        }
        medians = interleaved(contenders, arguments.rounds)
        if arguments.vllm_python:
            for measure, seconds in vllm_medians(arguments.vllm_python, directory, arguments.rounds).items():
                medians[measure]["vllm"] = seconds
        else:
            print("vLLM is not measured: name an interpreter that has it with --vllm-python", file=sys.stderr)
        print_table(medians, directory)
    if arguments.json:
        arguments.json.write_text(json.dumps(medians, indent=2) + "\n")


if __name__ == "__main__":
    main()
