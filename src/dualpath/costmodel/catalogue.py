"""Models and nodes by the names that people use, for planning without a machine (paper section 7 and Table 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from dualpath.costmodel.shapes import PAPER_MODELS, ModelCost, ModelSize
from dualpath.errors import SettingsError
from dualpath.knobs import did_you_mean

Entry = TypeVar("Entry")

GB = 1e9
TERA = 1e12


@dataclass(frozen=True, slots=True)
class Node:
    """A node as its data sheets describe it.

    Attributes:
        gpus: GPUs of a node, each with a compute NIC of its own (g).
        flops: dense FLOPs a second of one GPU at the precision that it serves with (fp8 where it has it, else bf16).
        hbm_bytes: device memory of one GPU.
        hbm_bandwidth: its bandwidth, bytes a second.
        cnic_bandwidth: B, bytes a second of one compute NIC in one direction.
        snic_bandwidth: B·s, bytes a second of the node's storage NIC.
        dram_bandwidth: M, bytes a second of the node's memory, reads and writes together.
    """

    gpus: int
    flops: float
    hbm_bytes: float
    hbm_bandwidth: float
    cnic_bandwidth: float = 50 * GB
    snic_bandwidth: float = 50 * GB
    dram_bandwidth: float = 500 * GB


NODES: dict[str, Node] = {
    "a100": Node(8, 312 * TERA, 80 * GB, 2039 * GB, cnic_bandwidth=25 * GB, snic_bandwidth=25 * GB, dram_bandwidth=400 * GB),
    "h100": Node(8, 1979 * TERA, 80 * GB, 3350 * GB),
    "h200": Node(8, 1979 * TERA, 141 * GB, 4800 * GB),
    "h800": Node(8, 1979 * TERA, 80 * GB, 3350 * GB),
    "b200": Node(8, 4500 * TERA, 180 * GB, 8000 * GB),
}
"""GPUs as NVIDIA's data sheets give them (SXM, no sparsity), eight a node, with 400 Gbps NICs (A100: 200 Gbps)."""


def _stored(cost: ModelCost, token_bytes: int) -> ModelCost:
    return ModelCost(token_bytes, cost.token_flops, cost.context_flops)


DS_27B = ModelCost(
    token_bytes=30 * (656 + 132),
    token_flops=2 * 3.95e9 + 2 * 1088 * 32 * 30 * 1024,
    context_flops=2 * 32 * 64 * 30,
)
"""The paper's scaled-down DeepSeek-V3.2 (section 7): 30 layers, 32 heads, sparse attention to 1,024 tokens."""

MODELS: dict[str, ModelCost] = {
    "ds-660b": _stored(PAPER_MODELS["DeepSeek-V3.2"], 48_068),
    "ds-27b": DS_27B,
    "deepseek-v3.2": _stored(PAPER_MODELS["DeepSeek-V3.2"], 48_068),
    "deepseek-v3": PAPER_MODELS["DeepSeek-V3"],
    "qwen2.5-32b": PAPER_MODELS["Qwen2.5-32B"],
    "qwen3-235b": PAPER_MODELS["Qwen3-235B"],
    "gpt-oss-120b": PAPER_MODELS["GPT-OSS-120B"],
}
"""Models by name. A store of DeepSeek-V3.2 keeps its indexer keys too (132 B a layer), which Table 1 leaves out."""


SIZES: dict[str, ModelSize] = {
    "ds-660b": ModelSize(61, 671e9, 7168, 2, 4),
    "ds-27b": ModelSize(30, 27e9, 2560),
    "deepseek-v3.2": ModelSize(61, 671e9, 7168, 2, 4),
    "deepseek-v3": ModelSize(61, 671e9, 7168, 2, 4),
    "qwen2.5-32b": ModelSize(64, 65.5e9),
    "qwen3-235b": ModelSize(94, 235e9, 4096),
    "gpt-oss-120b": ModelSize(36, 63e9, 2880),
}
"""Of the models of ``MODELS``; DeepSeek's experts run over 16 and 32 GPUs as the paper has it."""


def node_named(name: str) -> Node:
    """The node with eight GPUs of this name.

    Raises:
        SettingsError: there is none; the message says which there are and which is meant, perhaps.
    """
    return _named("hardware", NODES, name)


def model_named(name: str) -> ModelCost:
    """The model of this name.

    Raises:
        SettingsError: there is none; the message says which there are and which is meant, perhaps.
    """
    return _named("model", MODELS, name)


def _named(what: str, entries: Mapping[str, Entry], name: str) -> Entry:
    found = entries.get(name.lower())
    if found is None:
        known = f"known are {', '.join(entries)}"
        raise SettingsError(f"{what}: {name!r} is not known{did_you_mean(name.lower(), entries)}; {known}")
    return found
