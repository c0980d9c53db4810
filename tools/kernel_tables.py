"""Published kernel tables of single operators, and what a layer of each model is made of (paper section 6).

``fit_kernels.py`` says which tables these are and what they leave out.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE, VERSION = "aiconfigurator-core", "0.12.0"
VLLM, SGLANG, WIDE_EP, DEEPEP_NODE, DEEPEP_NODES, MLP = "0.24.0", "0.5.14", "0.5.10", "0.5.12", "0.5.6.post2", "0.5.6.post2"
"""Releases whose operators were measured: of vLLM, and of SGLang for most, for experts over nodes, and for their all-to-all."""

SMS = 20
"""Of a GPU that normal DeepEP uses."""
SMALL_TOKENS = 64
ABOVE_FLOOR = 1.2
LARGEST_BATCH = 8
LARGEST_BATCH_TOKENS = 32768
LONG_PROMPT = 2048
"""Without cached tokens, only prompts as long tell what a pair costs."""
LONGEST_CONTEXT = 131072
BATCH_CONTEXT_TOKENS = 262144
"""Batches with twice as much context pay more for it in V3.2, by up to a half."""
MIXTURE_TOKENS = (128, 256, 512, 1024, 1536, 2048)
WIDE_MIXTURE_TOKENS = (*MIXTURE_TOKENS, 4096, 8192)
DECODE_REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128)

Row = dict[str, Any]
Time = Callable[[float], float]


class MissingError(Exception):
    """The tables do not hold what a fit needs."""


@dataclass(frozen=True)
class Tables:
    """Parquet tables under ``root/<gpu>_sxm``, one for an operator, a framework and its release."""

    root: Path

    def rows(self, gpu: str, table: str, **where: object) -> list[Row]:
        """Rows of a table whose columns have these values (a tuple: any of them).

        Raises:
            MissingError: there is no such table, column or row.
        """
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise SystemExit(f"reading the tables needs pyarrow: pip install {PACKAGE}=={VERSION} pyarrow numpy") from error
        path = self.root / f"{gpu}_sxm" / f"{table}_perf.parquet"
        if not path.exists():
            raise MissingError(f"no table {table}")
        filters = [(name, "in", value if isinstance(value, tuple) else (value,)) for name, value in where.items()]
        rows: list[Row] = parquet.read_table(path, filters=filters).to_pylist()
        if not rows:
            raise MissingError(f"{table} has no {where}")
        return rows


@dataclass(frozen=True)
class Curve:
    """Seconds by tokens, linear between measured points."""

    points: Mapping[float, float]

    def __call__(self, tokens: float) -> float:
        known = sorted(self.points)
        if not known[0] <= tokens <= known[-1]:
            raise MissingError(f"{tokens} tokens lie outside {known[0]} to {known[-1]}")
        right = max(1, bisect_left(known, tokens))
        low, high = known[right - 1], known[right]
        share = (tokens - low) / (high - low)
        return (1 - share) * self.points[low] + share * self.points[high]


@dataclass(frozen=True)
class Sample:
    """``requests`` alike, each with ``new`` tokens behind ``cached`` ones (decode: ``new`` is 1), and what they took."""

    cached: int
    new: int
    requests: int
    seconds: float

    @property
    def tokens(self) -> int:
        """New tokens of all requests."""
        return self.requests * self.new

    @property
    def pairs(self) -> float:
        """(query, key) pairs of all requests."""
        return self.tokens * (self.cached + self.new / 2)


@dataclass(frozen=True)
class Layer:
    """What the tables know of a model on a GPU.

    Attributes:
        layers: of the model.
        prefill, decode: attention of a layer with its projections.
        mixture, shared: the rest of a layer in prefill and decode, by tokens on each engine, and where to look at it.
        engines: that share the attention of ``prefill`` and ``decode`` (tensor parallel).
        tables: where this is from.
        fewest: requests on each engine from which on decode is fitted; with less, few experts are touched.
    """

    layers: int
    prefill: Sequence[Sample]
    decode: Sequence[Sample]
    mixture: Time
    mixture_tokens: Sequence[int]
    shared: Time
    engines: int
    tables: str
    fewest: int = 1


def median_curve(rows: Iterable[Row], key: str, seconds: Callable[[Row], float]) -> Curve:
    """Of rows that differ in ``key``, and perhaps in nothing else."""
    grouped: dict[float, list[float]] = defaultdict(list)
    for row in rows:
        grouped[float(row[key])].append(seconds(row))
    return Curve({at: statistics.median(times) for at, times in grouped.items()})


def latency(row: Row) -> float:
    """Tables give milliseconds."""
    return float(row["latency"]) * 1e-3


def samples(rows: Iterable[Row], extra: Time = lambda _: 0.0) -> list[Sample]:
    """Prefill rows of bearable size, each with ``extra`` seconds for its new tokens."""
    found = [Sample(row["step"], row["isl"], row["batch_size"], latency(row)) for row in rows]
    return [Sample(one.cached, one.new, one.requests, one.seconds + extra(one.tokens)) for one in found if bearable(one)]


def bearable(one: Sample) -> bool:
    """Whether a prefill batch may be as large."""
    few = one.requests <= LARGEST_BATCH and one.tokens <= LARGEST_BATCH_TOKENS
    return few and one.cached <= LONGEST_CONTEXT and one.requests * one.cached <= BATCH_CONTEXT_TOKENS


def decode_samples(rows: Iterable[Row], extra: Time = lambda _: 0.0, shortest: int = 1023) -> list[Sample]:
    """Decode rows of contexts worth caching, each with ``extra`` seconds for its requests."""
    kept = (row for row in rows if shortest <= row["step"] <= LONGEST_CONTEXT and row["batch_size"] <= DECODE_REQUESTS[-1])
    return [Sample(row["step"], 1, row["batch_size"], latency(row) + extra(row["batch_size"])) for row in kept]


def neighbours(value: int, grid: Sequence[int]) -> tuple[int, int]:
    """The grid's values around ``value``."""
    right = min(max(1, bisect_left(grid, value)), len(grid) - 1)
    return grid[right - 1], grid[right]


GEMM_GRID = (128, *(256 * step for step in (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64)))
"""Inner and outer dimensions of the table of projections, as far as needed."""


def gemm(tables: Tables, gpu: str, dtype: str, n: int, k: int) -> Time:
    """A projection of ``k`` to ``n`` values, linear in both between the shapes of the table."""
    ns, ks = neighbours(n, GEMM_GRID), neighbours(k, GEMM_GRID)
    rows = tables.rows(gpu, f"gemm/sglang/{SGLANG}/gemm", gemm_dtype=dtype, n=ns, k=ks)
    corners = {(at_n, at_k): [row for row in rows if (row["n"], row["k"]) == (at_n, at_k)] for at_n in ns for at_k in ks}
    if not all(corners.values()):
        raise MissingError(f"gemm has no {dtype} {n} x {k}")
    curves = {at: median_curve(found, "m", latency) for at, found in corners.items()}

    def seconds(tokens: float) -> float:
        over_n = [Curve({at: curves[at, one](tokens) for at in ns})(n) for one in ks]
        return Curve(dict(zip(ks, over_n, strict=True)))(k)

    return seconds


def total(*times: Time) -> Time:
    """One after the other."""
    return lambda tokens: sum(time(tokens) for time in times)


def deepep(tables: Tables, gpu: str, mode: str, nodes: int, **shape: int) -> Curve:
    """Dispatch and combine by tokens a GPU; ``mode`` is "normal" or "ll"."""
    release = DEEPEP_NODE if nodes == 1 else DEEPEP_NODES
    where = shape | {"node_num": nodes} | ({"dispatch_sms": SMS} if mode == "normal" else {})
    rows = tables.rows(gpu, f"comm/sglang/{release}/wideep_deepep_{mode}", **where)
    parts = ("transmit_us", "notify_us") if mode == "normal" else ("avg_t_us",)
    return median_curve(
        rows, "num_token", lambda row: 1e-6 * sum(row[f"{way}_{part}"] for way in ("dispatch", "combine") for part in parts)
    )


def all_reduce(tables: Tables, gpu: str, hidden: int, engines: int) -> Time:
    """Of 16-bit activations within a node, by tokens of the node."""
    rows = tables.rows(gpu, f"comm/sglang/{SGLANG}/custom_allreduce", num_gpus=engines)
    best = median_curve((row for row in rows if "graph" in row["kernel_source"]), "message_size", latency)
    return lambda tokens: best(2 * hidden * tokens)


def deepseek_rest(tables: Tables, gpu: str, phase: str, mode: str, nodes: int) -> Time:
    """Routed experts over the nodes, their all-to-all, the shared expert and the router, by tokens a GPU."""
    ranks = 8 * nodes
    table = f"moe/sglang/{WIDE_EP}/wideep_{phase}_moe"
    experts = median_curve(tables.rows(gpu, table, moe_ep_size=ranks, distribution="uniform"), "num_tokens", latency)
    mlp = tables.rows(gpu, f"mlp/sglang/{MLP}/wideep_{phase}_mlp", hidden_size=7168, intermediate_size=2048)
    shared = median_curve(mlp, "num_token", lambda row: float(row["avg_ms"]) * 1e-3)
    exchange = deepep(tables, gpu, mode, nodes, hidden_size=7168, num_experts=256)
    router = gemm(tables, gpu, "bfloat16", 256, 7168)
    return total(lambda tokens: experts(ranks * tokens), shared, exchange, router)


def deepseek(tables: Tables, gpu: str, prefill: Sequence[Sample], decode: Sequence[Sample], source: str) -> Layer:
    """DeepSeek-V3 or V3.2 around its attention."""
    rest = f"sglang {WIDE_EP} wideep moe, {DEEPEP_NODES} DeepEP and mlp, {SGLANG} gemm"
    mixture = deepseek_rest(tables, gpu, "context", "normal", 2)
    low_latency = deepseek_rest(tables, gpu, "generation", "ll", 4)
    # The low-latency tables begin at two tokens.
    return Layer(61, prefill, decode, mixture, WIDE_MIXTURE_TOKENS, lambda n: low_latency(max(n, 2)), 1, f"{source}; {rest}")


def sparse(tables: Tables, gpu: str) -> Layer:
    """DeepSeek-V3.2: sparse attention with an indexer, fp8 KV."""
    where = {"num_heads": 128, "tp_size": 1, "kv_cache_dtype": "fp8", "gemm_type": "fp8_block"}
    where["model"] = "deepseek-ai/DeepSeek-V3.2"
    context = tables.rows(gpu, f"sparse_attention/sglang/{SGLANG}/dsa_context_module", op_name="dsa_context_module", **where)
    # Short contexts take a dense kernel, which turns of agents hardly meet.
    indexed = samples(row for row in context if "dense" not in row["kernel_source"])
    generation = tables.rows(gpu, f"sparse_attention/vllm/{VLLM}/dsa_generation_module", **where)
    source = f"sglang {SGLANG} dsa context module, vllm {VLLM} dsa generation module"
    return deepseek(tables, gpu, indexed, decode_samples(generation, shortest=2048), source)


def latent(tables: Tables, gpu: str) -> Layer:
    """DeepSeek-V3: dense latent attention, fp8 KV."""
    where = {"num_heads": 128, "kv_cache_dtype": "fp8", "gemm_type": "fp8_block"}
    context = tables.rows(gpu, f"mla/vllm/{VLLM}/mla_context_module", **where)
    generation = tables.rows(gpu, f"mla/vllm/{VLLM}/mla_generation_module", **where)
    source = f"vllm {VLLM} mla modules"
    return deepseek(tables, gpu, samples(context), decode_samples(generation), source)


def grouped_query(
    tables: Tables, gpu: str, heads: int, kv_heads: int, head_dim: int, kv_dtype: str, projections: Time, window: int = 0
) -> tuple[list[Sample], list[Sample]]:
    """Attention kernels of prefill and decode, with the projections around them."""
    folder = f"attention/sglang/{SGLANG}"
    where: dict[str, object] = {"num_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    where |= {"kv_cache_dtype": kv_dtype, "window_size": window}
    context = tables.rows(gpu, f"{folder}/context_attention", attn_dtype=kv_dtype, **where)
    generation = tables.rows(gpu, f"{folder}/generation_attention", **where)
    return samples(context, projections), decode_samples(generation, projections)


def qwen3(tables: Tables, gpu: str) -> Layer:
    """Qwen3-235B in fp8."""
    projections = total(gemm(tables, gpu, "fp8_block", 9216, 4096), gemm(tables, gpu, "fp8_block", 4096, 8192))
    prefill, decode = grouped_query(tables, gpu, 64, 4, 128, "fp8", projections)
    shape = {"hidden_size": 4096, "inter_size": 1536, "num_experts": 128, "moe_tp_size": 1, "moe_ep_size": 8}
    shape["topk"] = 8
    rows = tables.rows(gpu, f"moe/sglang/{SGLANG}/moe", moe_dtype="fp8_block", distribution="balanced", **shape)
    experts = median_curve(rows, "num_tokens", latency)
    router = gemm(tables, gpu, "bfloat16", 128, 4096)
    around = {"hidden_size": 4096, "num_experts": 128, "num_topk": 8}
    mixture = total(lambda n: experts(8 * n), router, deepep(tables, gpu, "normal", 1, **around))
    shared = total(lambda n: experts(8 * n), router, deepep(tables, gpu, "ll", 1, **around))
    source = f"sglang {SGLANG} attention, gemm, moe; {DEEPEP_NODE} DeepEP"
    return Layer(94, prefill, decode, mixture, MIXTURE_TOKENS, shared, 1, source, fewest=4)


def qwen2(tables: Tables, gpu: str) -> Layer:
    """Qwen2.5-32B in bf16, an eighth of every projection on each of eight GPUs."""
    projections = total(gemm(tables, gpu, "bfloat16", 7168 // 8, 5120), gemm(tables, gpu, "bfloat16", 5120, 5120 // 8))
    prefill, decode = grouped_query(tables, gpu, 5, 1, 128, "bfloat16", projections)
    mlp = total(gemm(tables, gpu, "bfloat16", 2 * 27648 // 8, 5120), gemm(tables, gpu, "bfloat16", 5120, 27648 // 8))
    reduce = all_reduce(tables, gpu, 5120, 8)
    rest = total(mlp, reduce, reduce)
    source = f"sglang {SGLANG} attention, gemm, all-reduce"
    return Layer(64, prefill, decode, lambda n: rest(8 * n), MIXTURE_TOKENS, lambda n: rest(8 * n), 8, source)


def gpt_oss(tables: Tables, gpu: str) -> Layer:
    """GPT-OSS-120B: bf16 projections, fp8 KV, 4-bit experts."""
    projections = total(gemm(tables, gpu, "bfloat16", 5120 // 8, 2880), gemm(tables, gpu, "bfloat16", 2880, 4096 // 8))
    full = grouped_query(tables, gpu, 8, 1, 64, "fp8", projections)
    sliding = grouped_query(tables, gpu, 8, 1, 64, "fp8", projections, window=128)
    prefill, decode = (averaged(*both) for both in zip(full, sliding, strict=True))
    shape = {"hidden_size": 2880, "inter_size": 2880, "num_experts": 128, "moe_tp_size": 1, "moe_ep_size": 8}
    dtype = "w4a8_mxfp4_mxfp8" if gpu == "b200" else "w4a16_mxfp4"
    rows = tables.rows(gpu, f"moe/sglang/{SGLANG}/moe", topk=4, moe_dtype=dtype, distribution="balanced", **shape)
    reduce = all_reduce(tables, gpu, 2880, 8)
    rest = total(median_curve(rows, "num_tokens", latency), gemm(tables, gpu, "bfloat16", 128, 2880), reduce, reduce)
    source = f"sglang {SGLANG} attention, gemm, moe, all-reduce"
    return Layer(36, prefill, decode, lambda n: rest(8 * n), MIXTURE_TOKENS, lambda n: rest(8 * n), 8, source, fewest=4)


def averaged(some: Sequence[Sample], others: Sequence[Sample]) -> list[Sample]:
    """Means of samples of the same shape."""
    shapes = {(one.cached, one.new, one.requests): one.seconds for one in others}
    both = [(one, shapes.get((one.cached, one.new, one.requests))) for one in some]
    return [Sample(a.cached, a.new, a.requests, (a.seconds + b) / 2) for a, b in both if b is not None]


MODELS: dict[str, Callable[[Tables, str], Layer]] = {
    "ds-660b": sparse,
    "deepseek-v3": latent,
    "qwen3-235b": qwen3,
    "qwen2.5-32b": qwen2,
    "gpt-oss-120b": gpt_oss,
}
