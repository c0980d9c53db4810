"""The dense models against transformers: whole, chunked, cached and batched prefill, paged decode, every dtype."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, DynamicCache

from dualpath.models import attention
from dualpath.models.base import CausalModel, DecodeBatch, PrefillSegment
from dualpath.models.create import create_model
from dualpath.models.registry import load_model
from dualpath.settings import Dtype

torch.set_num_threads(1)

FLOAT64_TOLERANCE = 1e-6
"""transformers rounds norms to float32 even in a float64 model; another order of sums may flip such a rounding."""
FLOAT32_TOLERANCE = 1e-4
PAGE_TOKENS = 8
ARCHITECTURES = ("Qwen2ForCausalLM", "Qwen3ForCausalLM")


def tokens_of(count: int, seed: int, vocab: int = 320) -> list[int]:
    return torch.randint(0, vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@dataclass
class Runner:
    """Runs a model as an engine does: layer by layer, over memory that the model does not own."""

    model: CausalModel

    def buffers(self, rows: int) -> torch.Tensor:
        """Prefill KV, ``[layers, rows, token_layer_bytes]``; filled with a byte that makes any stray row show."""
        shape = self.model.shape
        return torch.full((shape.layers, rows, shape.token_layer_bytes), 0x7F, dtype=torch.uint8)

    def prefill(
        self, buffers: torch.Tensor, segments: Sequence[PrefillSegment], tokens: Sequence[int], every_token: bool = True
    ) -> torch.Tensor:
        self.model.begin_prefill(segments, every_token=every_token)
        hidden = self.model.embed(torch.tensor(tokens))
        for layer, kv in enumerate(buffers):
            hidden = self.model.prefill_layer(layer, hidden, kv)
        return self.model.logits(hidden)

    def pool(self, pages: int) -> torch.Tensor:
        rows = self.buffers(pages * PAGE_TOKENS)
        return rows.view(len(rows), pages, PAGE_TOKENS, -1)

    def to_pages(self, buffers: torch.Tensor, kv_start: int, tokens: int, pool: torch.Tensor, table: Sequence[int]) -> None:
        """Copy a sequence's rows to its pages, page by page."""
        for number, page in enumerate(table):
            rows = buffers[:, kv_start + number * PAGE_TOKENS : kv_start + min(tokens, (number + 1) * PAGE_TOKENS)]
            pool[:, page, : rows.shape[1]] = rows

    def decode(self, pool: torch.Tensor, batch: DecodeBatch, tokens: Sequence[int]) -> torch.Tensor:
        self.model.begin_decode(batch)
        hidden = self.model.embed(torch.tensor(tokens))
        for layer, pages in enumerate(pool):
            hidden = self.model.decode_layer(layer, hidden, pages)
        return self.model.logits(hidden)


@torch.inference_mode()
def reference_logits(reference: Any, tokens: Sequence[int]) -> torch.Tensor:
    logits: torch.Tensor = reference(torch.tensor([list(tokens)])).logits[0]
    return logits


def load_reference(directory: Path, dtype: Dtype) -> Any:
    loaded = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype.value), attn_implementation="sdpa")
    return loaded.eval()


@pytest.fixture(scope="module", params=ARCHITECTURES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("models") / request.param
    sizes: dict[str, Any] = {"hidden": 48, "heads": 6, "kv_heads": 2, "head_dim": 20, "intermediate": 80, "vocab": 320}
    create_model(root, architecture=request.param, layers=4, tied=request.param == "Qwen2ForCausalLM", seed=3, **sizes)
    return root


@pytest.fixture(scope="module")
def exact(directory: Path) -> tuple[Runner, Any]:
    return Runner(load_model(directory, Dtype.FLOAT64, "cpu")), load_reference(directory, Dtype.FLOAT64)


@pytest.mark.parametrize(("dtype", "tolerance"), [(Dtype.FLOAT64, 1e-10), (Dtype.FLOAT32, FLOAT32_TOLERANCE)])
def test_whole_prefill(directory: Path, dtype: Dtype, tolerance: float) -> None:
    prompt = tokens_of(300, seed=1)
    runner = Runner(load_model(directory, dtype, "cpu"))
    logits = runner.prefill(runner.buffers(310), [PrefillSegment(5, 0, 300)], prompt)
    expected = reference_logits(load_reference(directory, dtype), prompt)
    assert logits.dtype is expected.dtype
    torch.testing.assert_close(logits, expected, rtol=0, atol=tolerance)


def test_bfloat16_is_as_exact_as_transformers(directory: Path, exact: tuple[Runner, Any]) -> None:
    prompt = tokens_of(200, seed=2)
    runner = Runner(load_model(directory, Dtype.BFLOAT16, "cpu"))
    logits = runner.prefill(runner.buffers(200), [PrefillSegment(0, 0, 200)], prompt)
    expected = reference_logits(exact[1], prompt)
    error = (logits.double() - expected).square().mean().sqrt()
    reference_error = (reference_logits(load_reference(directory, Dtype.BFLOAT16), prompt) - expected).square().mean().sqrt()
    assert 0 < error < 1.3 * reference_error < 0.5 * expected.std()


def test_kv_rows_are_keys_then_values(directory: Path, exact: tuple[Runner, Any]) -> None:
    runner, reference = exact
    prompt = tokens_of(21, seed=4)
    buffers = runner.buffers(30)
    untouched = buffers.clone()
    runner.prefill(buffers, [PrefillSegment(7, 0, 21)], prompt)
    cache = DynamicCache(config=reference.config)
    with torch.inference_mode():
        reference(torch.tensor([prompt]), None, None, cache)
    rows = buffers[:, 7:28].view(torch.float64).view(4, 21, 2, 2, 20)
    for layer in range(4):
        expected = torch.stack((cache.layers[layer].keys[0], cache.layers[layer].values[0])).permute(2, 0, 1, 3)
        torch.testing.assert_close(rows[layer], expected, rtol=0, atol=FLOAT64_TOLERANCE)
    assert torch.equal(buffers[:, :7], untouched[:, :7])
    assert torch.equal(buffers[:, 28:], untouched[:, 28:])


@pytest.mark.parametrize("cuts", [(1,), (64, 128), (7, 8, 150, 199), (199,)])
def test_chunked_prefill(exact: tuple[Runner, Any], cuts: tuple[int, ...]) -> None:
    runner, reference = exact
    prompt = tokens_of(200, seed=5)
    buffers = runner.buffers(200)
    edges = (0, *cuts, 200)
    chunks = [
        runner.prefill(buffers, [PrefillSegment(0, start, end - start)], prompt[start:end]) for start, end in pairwise(edges)
    ]
    torch.testing.assert_close(torch.cat(chunks), reference_logits(reference, prompt), rtol=0, atol=FLOAT64_TOLERANCE)


def test_cached_prefix_from_another_run(exact: tuple[Runner, Any]) -> None:
    runner, reference = exact
    shared, first, second = tokens_of(128, seed=6), tokens_of(9, seed=7), tokens_of(33, seed=8)
    source = runner.buffers(140)
    runner.prefill(source, [PrefillSegment(0, 0, 137)], shared + first)
    target = runner.buffers(200)
    for block in (1, 0):
        target[:, 20 + 64 * block : 84 + 64 * block] = source[:, 64 * block : 64 + 64 * block]
    logits = runner.prefill(target, [PrefillSegment(20, 128, 33)], second)
    expected = reference_logits(reference, shared + second)[128:]
    torch.testing.assert_close(logits, expected, rtol=0, atol=FLOAT64_TOLERANCE)


@pytest.mark.parametrize(("query_chunk", "mask_elements"), [(5, 2**24), (256, 900), (1, 2**24)])
def test_chunks_of_queries_change_nothing(
    exact: tuple[Runner, Any], monkeypatch: pytest.MonkeyPatch, query_chunk: int, mask_elements: int
) -> None:
    runner, reference = exact
    monkeypatch.setattr(attention, "QUERY_CHUNK", query_chunk)
    monkeypatch.setattr(attention, "MASK_ELEMENTS", mask_elements)
    prompt = tokens_of(90, seed=9)
    buffers = runner.buffers(90)
    parts = [runner.prefill(buffers, [PrefillSegment(0, 0, 40)], prompt[:40])]
    parts.append(runner.prefill(buffers, [PrefillSegment(0, 40, 50)], prompt[40:]))
    torch.testing.assert_close(torch.cat(parts), reference_logits(reference, prompt), rtol=0, atol=FLOAT64_TOLERANCE)


@pytest.mark.parametrize("scattered", [False, True])
def test_greedy_decode_is_transformers_token_for_token(exact: tuple[Runner, Any], scattered: bool) -> None:
    """Sequences of unequal lengths, one of a single token, one that starts on a page edge, over many steps."""
    runner, reference = exact
    steps, lengths = 48, [1, 16, 37, 64]
    prompts = [tokens_of(length, seed=10 + length) for length in lengths]
    pages_each = -(-(max(lengths) + steps) // PAGE_TOKENS)
    pages = list(range(len(lengths) * pages_each))
    if scattered:
        pages = [pages[index] for index in torch.randperm(len(pages), generator=torch.Generator().manual_seed(1)).tolist()]
    tables = [pages[row * pages_each : (row + 1) * pages_each] for row in range(len(lengths))]
    pool = runner.pool(len(pages))
    outputs: list[list[int]] = []
    for prompt, table in zip(prompts, tables, strict=True):
        buffers = runner.buffers(len(prompt))
        logits = runner.prefill(buffers, [PrefillSegment(0, 0, len(prompt))], prompt)
        runner.to_pages(buffers, 0, len(prompt), pool, table[: -(-len(prompt) // PAGE_TOKENS)])
        outputs.append([int(logits[-1].argmax())])
    for step in range(steps - 1):
        batch = DecodeBatch(tables, [length + step for length in lengths])
        tokens = runner.decode(pool, batch, [output[-1] for output in outputs]).argmax(-1).tolist()
        for output, token in zip(outputs, tokens, strict=True):
            output.append(token)
    for prompt, output in zip(prompts, outputs, strict=True):
        logits = reference_logits(reference, prompt + output)
        assert output == logits[len(prompt) - 1 : -1].argmax(-1).tolist()
        assert len(set(output)) > steps // 4, "a model that repeats itself proves little"


def test_contiguous_pages_are_read_in_place_alike(exact: tuple[Runner, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of devices that do not gather, on the processor."""
    runner, _ = exact
    prompt, table = tokens_of(29, seed=11), [3, 4, 5, 6]
    buffers, pool = runner.buffers(29), runner.pool(8)
    runner.prefill(buffers, [PrefillSegment(0, 0, 29)], prompt)
    runner.to_pages(buffers, 0, 29, pool, table)
    gathered = runner.decode(pool, DecodeBatch([table], [29]), [7])
    planned: list[attention.DecodePlan] = []
    original: Callable[..., attention.DecodePlan] = attention.plan_decode

    def in_place(*arguments: Any, **keywords: Any) -> attention.DecodePlan:
        planned.append(original(*arguments, **(keywords | {"in_place": True})))
        return planned[-1]

    monkeypatch.setattr("dualpath.models.dense.plan_decode", in_place)
    torch.testing.assert_close(runner.decode(pool, DecodeBatch([table], [29]), [7]), gathered, rtol=0, atol=1e-12)
    assert [sequence.pages for plan in planned for sequence in plan.sequences] == [None]


def test_decode_writes_only_the_new_rows(exact: tuple[Runner, Any]) -> None:
    runner, _ = exact
    pool = runner.pool(4).zero_()
    runner.decode(pool, DecodeBatch([[2, 0], [1]], [9, 0]), [3, 4])
    written = pool.any(-1).nonzero().tolist()
    assert written == [[layer, page, slot] for layer in range(4) for page, slot in ((0, 1), (1, 0))]


def test_layers_before_begin_are_refused(directory: Path) -> None:
    model = load_model(directory, Dtype.FLOAT32, "cpu")
    hidden, kv = torch.zeros(1, 48), torch.zeros(1, 1, model.shape.token_layer_bytes, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="begin_prefill"):
        model.prefill_layer(0, hidden, kv[0])
    with pytest.raises(RuntimeError, match="begin_decode"):
        model.decode_layer(0, hidden, kv)


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    kv_heads = draw(st.integers(1, 4))
    return {
        "architecture": draw(st.sampled_from(ARCHITECTURES)),
        "layers": draw(st.integers(1, 3)),
        "hidden": draw(st.sampled_from([8, 20, 48])),
        "heads": kv_heads * draw(st.integers(1, 8)),
        "kv_heads": kv_heads,
        "head_dim": 2 * draw(st.integers(1, 16)),
        "intermediate": draw(st.integers(1, 50)),
        "vocab": draw(st.integers(259, 300)),
        "tied": draw(st.booleans()),
        "seed": draw(st.integers(0, 100)),
    }


@settings(deadline=None, max_examples=25)
@given(
    shape=shapes(),
    requests=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20), st.integers(0, 5)), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
def test_any_shape_and_any_batch(shape: dict[str, Any], requests: list[tuple[int, int, int]], seed: int) -> None:
    """Each request: cached tokens, new tokens, and unused KV rows before it. One batch prefills, one step decodes."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = create_model(Path(scratch) / "model", **shape).directory
        runner, reference = Runner(load_model(directory, Dtype.FLOAT64, "cpu")), load_reference(directory, Dtype.FLOAT64)
    prompts = [tokens_of(cached + new, seed + row, shape["vocab"]) for row, (cached, new, _) in enumerate(requests)]
    buffers = runner.buffers(sum(map(sum, requests)))
    segments, start = [], 0
    for (cached, new, gap), prompt in zip(requests, prompts, strict=True):
        segments.append(PrefillSegment(start + gap, cached, new))
        start += gap + cached + new
        if cached:
            runner.prefill(buffers, [PrefillSegment(segments[-1].kv_start, 0, cached)], prompt[:cached])
    new_tokens = [token for prompt, (cached, _, _) in zip(prompts, requests, strict=True) for token in prompt[cached:]]
    logits = runner.prefill(buffers, segments, new_tokens)
    expected = [reference_logits(reference, prompt) for prompt in prompts]
    parts = [one[cached:] for one, (cached, _, _) in zip(expected, requests, strict=True)]
    torch.testing.assert_close(logits, torch.cat(parts), rtol=0, atol=FLOAT64_TOLERANCE)
    written = buffers.clone()
    last_tokens = runner.prefill(buffers, segments, new_tokens, every_token=False)
    torch.testing.assert_close(last_tokens, torch.stack([one[-1] for one in expected]), rtol=0, atol=FLOAT64_TOLERANCE)
    assert torch.equal(buffers, written)

    needed = [len(prompt) // PAGE_TOKENS + 1 for prompt in prompts]
    order = torch.randperm(sum(needed), generator=torch.Generator().manual_seed(seed)).tolist()
    tables = [[order.pop() for _ in range(count)] for count in needed]
    pool = runner.pool(sum(needed))
    for segment, prompt, table in zip(segments, prompts, tables, strict=True):
        runner.to_pages(buffers, segment.kv_start, len(prompt), pool, table[: -(-len(prompt) // PAGE_TOKENS)])
    following = [int(one[-1].argmax()) for one in expected]
    logits = runner.decode(pool, DecodeBatch(tables, [len(prompt) for prompt in prompts]), following)
    last = [reference_logits(reference, [*prompt, token])[-1] for prompt, token in zip(prompts, following, strict=True)]
    torch.testing.assert_close(logits, torch.stack(last), rtol=0, atol=FLOAT64_TOLERANCE)
