"""Created models: loadable by transformers, varied in output, dependent on all of their context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dualpath.errors import ModelError
from dualpath.models.create import create_model
from dualpath.models.registry import describe_model
from dualpath.settings import Dtype

torch.set_num_threads(1)

ARCHITECTURES = ["Qwen2ForCausalLM", "Qwen3ForCausalLM"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_demonstration_model(tmp_path: Path, architecture: str) -> None:
    created = create_model(tmp_path / "model", architecture=architecture)
    shape = describe_model(created.directory)
    assert created.token_bytes == shape.layers * shape.token_layer_bytes == 4096
    loaded = AutoModelForCausalLM.from_pretrained(created.directory)
    assert created.parameters == sum(weight.numel() for weight in loaded.parameters())
    assert loaded.generation_config.eos_token_id == [258, 256] == list(shape.eos_token_ids)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tied", [False, True])
def test_greedy_output_is_varied_and_hangs_on_the_whole_context(tmp_path: Path, architecture: str, tied: bool) -> None:
    directory = create_model(tmp_path / "model", architecture=architecture, tied=tied).directory
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    prompt = torch.randint(0, 256, (1, 600), generator=torch.Generator().manual_seed(1))
    output = greedy(model, prompt)
    assert len(set(output)) > 24
    for position in (0, 200, 400):
        other = prompt.clone()
        other[0, position] = (other[0, position] + 1) % 256
        assert greedy(model, other) != output, f"token {position} makes no difference"


def greedy(model: Any, prompt: torch.Tensor) -> list[int]:
    tokens: list[int] = model.generate(prompt, max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0)[
        0
    ].tolist()
    return tokens[prompt.shape[1] :]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tokenizer_round_trip_and_chat(tmp_path: Path, architecture: str) -> None:
    sizes: dict[str, Any] = {"layers": 1, "hidden": 8, "heads": 1, "kv_heads": 1, "head_dim": 4, "intermediate": 4}
    directory = create_model(tmp_path / "model", architecture=architecture, vocab=300, **sizes).directory
    tokenizer = AutoTokenizer.from_pretrained(directory)
    text = "Grüße, 世界!\n\ttab  ends "
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
    assert len(tokenizer) == 300
    assert all(tokenizer.decode([token]) for token in range(259, 300))
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True)
    assert chat == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.encode(chat)[0] == 257
    assert tokenizer.decode(tokenizer.encode(chat), skip_special_tokens=True) == "user\nhi\nassistant\n"
    assert tokenizer.eos_token_id == 258


def test_seed_decides_the_weights(tmp_path: Path) -> None:
    prints = [describe_model(create_model(tmp_path / str(n), seed=n // 2).directory).fingerprint for n in range(4)]
    assert prints[0] == prints[1] != prints[2] == prints[3]


@pytest.mark.parametrize("dtype", [Dtype.FLOAT64, Dtype.BFLOAT16])
def test_dtype_is_stored(tmp_path: Path, dtype: Dtype) -> None:
    created = create_model(tmp_path / "model", dtype=dtype)
    expected = getattr(torch, dtype.value)
    assert describe_model(created.directory).dtype is expected
    assert AutoModelForCausalLM.from_pretrained(created.directory).dtype is expected


@pytest.mark.parametrize(
    ("sizes", "complaint"),
    [
        ({"heads": 6, "kv_heads": 4}, "num_attention_heads 6 is no multiple of num_key_value_heads 4"),
        ({"vocab": 258}, "vocab must be at least 259"),
        ({"head_dim": 5}, "head_dim 5 must be even"),
        ({"layers": 0}, "num_hidden_layers must be a positive integer"),
        ({"architecture": "GPT2"}, "architecture GPT2 is not supported"),
    ],
)
def test_sizes_that_make_no_model_write_nothing(tmp_path: Path, sizes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        create_model(tmp_path / "model", **sizes)
    assert not (tmp_path / "model").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for occupied in (tmp_path, tmp_path / "file"):
        with pytest.raises(ModelError, match="exists and is not an empty directory"):
            create_model(occupied)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
