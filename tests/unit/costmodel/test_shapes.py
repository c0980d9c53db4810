"""Model costs against the paper's Table 1 and against a real model's parameters."""

from __future__ import annotations

import pytest

from dualpath.costmodel.shapes import PAPER_MODELS, DenseShape, ModelCost

QWEN_32B = DenseShape(layers=64, hidden_size=5120, heads=40, kv_heads=8, head_dim=128, intermediate_size=27_648)
APPEND = 429


@pytest.mark.parametrize(
    ("model", "least", "most"),
    [
        ("Qwen2.5-32B", 117, 267),
        ("Qwen3-235B", 39, 60),
        ("GPT-OSS-120B", 47, 95),
        ("DeepSeek-V3.2", 13, 36),
        ("DeepSeek-V3", 4.8, 5.8),
    ],
)
def test_table_1(model: str, least: float, most: float) -> None:
    """Bytes a FLOP in GB/PFLOP over contexts of 16k to 64k; DeepSeek-V3 is known to lie 10 % below."""
    cost = PAPER_MODELS[model]
    found = [cost.io_per_compute(context * 1024, APPEND) * 1e6 for context in range(16, 65)]
    tolerance = 0.12 if model == "DeepSeek-V3" else 0.035
    assert min(found) == pytest.approx(least, rel=tolerance)
    assert max(found) == pytest.approx(most, rel=tolerance)


def test_a_dense_shape_gives_the_papers_cost() -> None:
    cost, paper = QWEN_32B.cost(element_bytes=2), PAPER_MODELS["Qwen2.5-32B"]
    assert cost.token_bytes == paper.token_bytes
    assert cost.context_flops == paper.context_flops
    assert cost.token_flops == pytest.approx(paper.token_flops, rel=0.03)


def test_flops_and_ratio() -> None:
    cost = ModelCost(token_bytes=100, token_flops=1000.0, context_flops=2.0)
    assert cost.flops(50) == 1100.0
    assert cost.io_per_compute(50, append=10) == pytest.approx(5000 / 11_000)
