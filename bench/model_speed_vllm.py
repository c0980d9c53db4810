"""The vLLM part of model_speed.py, run by an interpreter that has vLLM: medians in seconds as one line of JSON."""

from __future__ import annotations

import importlib
import json
import os
import statistics
import sys
import time
from typing import Any


def timed(engine: Any, sampling: Any, prompts: list[list[int]]) -> float:
    started = time.perf_counter()
    engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
    return time.perf_counter() - started


def main() -> None:
    directory = sys.argv[1]
    rounds, batch, context, prompt = map(int, sys.argv[2:])
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    # By name, so that this file is checked where vLLM is not installed.
    vllm = importlib.import_module("vllm")
    engine = vllm.LLM(model=directory, dtype="float32", enforce_eager=True, enable_prefix_caching=False, max_model_len=4096)
    first = vllm.SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    steps = 32
    longer = vllm.SamplingParams(max_tokens=1 + steps, temperature=0.0, ignore_eos=True)
    long_prompt = [[token % 256 for token in range(prompt)]]
    short_prompts = [[(token + row) % 256 for token in range(context)] for row in range(batch)]
    prefill, decode = [], []
    for _ in range(rounds + 1):
        prefill.append(timed(engine, first, long_prompt))
        without = timed(engine, first, short_prompts)
        decode.append((timed(engine, longer, short_prompts) - without) / steps)
    print(json.dumps({"prefill": statistics.median(prefill[1:]), "decode": statistics.median(decode[1:])}))


if __name__ == "__main__":
    main()
