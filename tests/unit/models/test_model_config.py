"""Reading config.json: what is accepted from which writer, and what each refusal names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from dualpath.errors import ModelError
from dualpath.models.config import ModelConfig, compute_dtype, read_config
from dualpath.models.create import create_model
from dualpath.models.rotary import RotaryConfig, RotaryTable
from dualpath.settings import Dtype

torch.set_num_threads(1)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return create_model(tmp_path / "model", layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, intermediate=16).directory


def change(directory: Path, *removed: str, **changed: Any) -> None:
    path = directory / "config.json"
    values = json.loads(path.read_text()) | changed
    path.write_text(json.dumps({key: value for key, value in values.items() if key not in removed}))


def test_a_created_model_reads_back(directory: Path) -> None:
    config = read_config(directory)
    assert config == ModelConfig(
        architecture="Qwen2ForCausalLM",
        layers=2,
        hidden_size=32,
        heads=4,
        kv_heads=2,
        head_dim=8,
        intermediate_size=16,
        vocab_size=512,
        max_positions=32_768,
        rms_norm_eps=1e-6,
        rotary=RotaryConfig("default", 1e6, 32_768),
        tied_embeddings=True,
        qkv_bias=True,
        output_bias=False,
        qk_norm=False,
        dtype=torch.float32,
        eos_token_ids=(258, 256),
    )
    assert config.group == 2
    assert config.token_layer_bytes(torch.bfloat16) == 2 * 2 * 8 * 2


def test_what_transformers_itself_writes(directory: Path) -> None:
    """transformers 5 saves ``rope_parameters`` and ``dtype``, earlier ones ``rope_theta`` and ``torch_dtype``."""
    before = read_config(directory)
    AutoConfig.from_pretrained(directory).save_pretrained(directory)
    values = json.loads((directory / "config.json").read_text())
    assert values["rope_parameters"]["rope_theta"] == 1e6
    assert "dtype" in values
    assert "torch_dtype" not in values
    assert read_config(directory) == before


def test_missing_directory_and_missing_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere: no such model directory"):
        read_config(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        read_config(tmp_path)


@pytest.mark.parametrize(("text", "complaint"), [("{", "cannot be read as JSON"), ("[]", "must hold a JSON object, not list")])
def test_malformed_config(directory: Path, text: str, complaint: str) -> None:
    (directory / "config.json").write_text(text)
    with pytest.raises(ModelError, match=rf"config\.json: {complaint}"):
        read_config(directory)


@pytest.mark.parametrize(
    "key",
    [
        "architectures",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
    ],
)
def test_missing_keys_are_named(directory: Path, key: str) -> None:
    change(directory, key)
    with pytest.raises(ModelError, match=f"model: config.json has no key '{key}'"):
        read_config(directory)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM is not supported.*Qwen2ForCausalLM, Qwen3ForCausalLM"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope type 'longrope' is not supported"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling.factor must be a positive number, not None"),
        ({"rope_scaling": "yarn"}, "rope_scaling must be an object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"head_dim": 7}, "head_dim 7 must be even"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple of num_key_value_heads 3"),
        ({"hidden_size": "32"}, "hidden_size must be a positive integer, not '32'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer, not 0"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps must be a number"),
        ({"torch_dtype": "int8"}, "dtype 'int8' is not supported"),
        ({"max_position_embeddings": True}, "max_position_embeddings must be a positive integer"),
    ],
)
def test_refusals_say_what_and_where(directory: Path, changed: dict[str, Any], complaint: str) -> None:
    change(directory, **changed)
    with pytest.raises(ModelError, match=f"model: .*{complaint}"):
        read_config(directory)


def test_a_window_that_no_layer_uses_is_no_obstacle(directory: Path) -> None:
    change(directory, use_sliding_window=True, sliding_window=64, max_window_layers=2)
    assert read_config(directory).layers == 2
    change(directory, use_sliding_window=False, sliding_window=64, max_window_layers=0)
    assert read_config(directory).layers == 2


def test_head_dim_defaults_as_each_architecture_does(directory: Path) -> None:
    change(directory, "head_dim")
    assert read_config(directory).head_dim == 32 // 4
    change(directory, architectures=["Qwen3ForCausalLM"], model_type="qwen3")
    assert read_config(directory).head_dim == AutoConfig.from_pretrained(directory).head_dim == 128


@pytest.mark.parametrize(
    ("named", "expected"),
    [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.float32), (None, torch.float32)],
)
def test_auto_dtype_is_the_directorys(directory: Path, named: str | None, expected: torch.dtype) -> None:
    change(directory, torch_dtype=named)
    assert compute_dtype(read_config(directory), Dtype.AUTO) is expected
    assert compute_dtype(read_config(directory), Dtype.FLOAT64) is torch.float64


def test_end_tokens_come_from_the_generation_config_first(directory: Path) -> None:
    generation = directory / "generation_config.json"
    generation.write_text('{"eos_token_id": 5}')
    assert read_config(directory).eos_token_ids == (5,)
    generation.write_text("{}")
    assert read_config(directory).eos_token_ids == (258,)
    generation.unlink()
    change(directory, eos_token_id=None)
    assert read_config(directory).eos_token_ids == ()
    change(directory, eos_token_id="</s>")
    with pytest.raises(ModelError, match="eos_token_id must be token ids"):
        read_config(directory)


ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0},
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 4.0,
        "mscale": 0.7,
        "mscale_all_dim": 1.3,
        "beta_fast": 16,
        "truncate": False,
    },
    "yarn-attention-factor": {"type": "yarn", "factor": 2.5, "attention_factor": 1.25},
}


@pytest.mark.parametrize("head_dim", [8, 20, 128])
@pytest.mark.parametrize("rope", ROPES)
def test_rotary_tables_are_transformers_to_the_bit(directory: Path, rope: str, head_dim: int) -> None:
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

    scaling = ROPES[rope] | ({"original_max_position_embeddings": 1000} if "yarn" in rope or rope == "llama3" else {})
    change(directory, head_dim=head_dim, rope_scaling=scaling or None)
    reference = Qwen2RotaryEmbedding(AutoConfig.from_pretrained(directory))
    positions = torch.tensor([0, 1, 77, 5000, 31_000])
    cosine, sine = reference(torch.zeros(1), positions[None])
    table = RotaryTable(read_config(directory).rotary, head_dim, torch.float32, torch.device("cpu"))
    found_cosine, found_sine = table.at(positions)
    assert torch.equal(found_cosine[:, 0], cosine[0])
    half = head_dim // 2
    assert torch.equal(found_sine[:, 0, half:], sine[0, :, half:])
    assert torch.equal(found_sine[:, 0, :half], -sine[0, :, :half])


def test_yarn_extends_the_context(directory: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
    change(directory, rope_scaling=scaling)
    assert read_config(directory).max_positions == 131_072
