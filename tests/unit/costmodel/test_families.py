"""Costs from Hugging Face configurations against the paper's formulas."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.model_configs import QWEN_32B

from dualpath.costmodel.catalogue import MODELS, NODES, model_named, node_named
from dualpath.costmodel.families import cost_of_config
from dualpath.costmodel.shapes import PAPER_MODELS
from dualpath.errors import ModelError, SettingsError

QWEN_235B: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 94,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 12_288,
    "moe_intermediate_size": 1536,
    "num_experts_per_tok": 8,
    "num_experts": 128,
}
GPT_OSS_120B: dict[str, Any] = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 36,
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2880,
    "num_experts_per_tok": 4,
    "num_local_experts": 128,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "first_k_dense_replace": 3,
    "intermediate_size": 18_432,
    "moe_intermediate_size": 2048,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
}
DEEPSEEK_V32 = DEEPSEEK_V3 | {
    "model_type": "deepseek_v32",
    "index_topk": 2048,
    "index_n_heads": 64,
    "index_head_dim": 128,
}


@pytest.mark.parametrize(
    ("config", "element_bytes", "name"),
    [
        (QWEN_32B, 2, "Qwen2.5-32B"),
        (QWEN_235B, 1, "Qwen3-235B"),
        (GPT_OSS_120B, 1, "GPT-OSS-120B"),
        (DEEPSEEK_V3, 1, "DeepSeek-V3"),
    ],
)
def test_configurations_give_the_papers_costs(config: dict[str, Any], element_bytes: int, name: str) -> None:
    found, paper = cost_of_config(config, element_bytes=element_bytes), PAPER_MODELS[name]
    assert found.token_bytes == paper.token_bytes
    assert found.context_flops == pytest.approx(paper.context_flops)
    # GPT-OSS' 5.1e9 active parameters count its embedding and head, 0.58e9 each, of which one is used.
    assert found.token_flops == pytest.approx(paper.token_flops, rel=0.12 if name == "GPT-OSS-120B" else 0.05)


def test_sparse_attention_keeps_its_indexer_keys() -> None:
    found, paper = cost_of_config(DEEPSEEK_V32, element_bytes=1), PAPER_MODELS["DeepSeek-V3.2"]
    assert found.token_bytes == 48_068 == MODELS["ds-660b"].token_bytes
    assert found.token_flops == pytest.approx(paper.token_flops, rel=0.03)
    assert found.context_flops == pytest.approx(paper.context_flops)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "qwen4"}, "'qwen4' is not supported; did you mean 'qwen"),
        ({"num_hidden_layers": None}, "num_hidden_layers must be a positive whole number, not None"),
        ({"hidden_size": "wide"}, "hidden_size must be a positive whole number, not 'wide'"),
        ({"intermediate_size": -1}, "intermediate_size must be a positive whole number, not -1"),
        ({"num_attention_heads": 0}, "num_attention_heads must be a positive whole number, not 0"),
        ({**GPT_OSS_120B, "layer_types": 5}, "layer_types must be a list, not 5"),
    ],
)
def test_unusable_configurations_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        cost_of_config(QWEN_32B | change)


def test_names_are_found_or_suggested() -> None:
    assert model_named("DS-660B") is MODELS["ds-660b"]
    assert node_named("H800") is NODES["h800"]
    with pytest.raises(SettingsError, match="model: 'ds-66b' is not known; did you mean 'ds-660b'"):
        model_named("ds-66b")
    with pytest.raises(SettingsError, match=r"hardware: 'tpu' is not known; known are a100, "):
        node_named("tpu")
