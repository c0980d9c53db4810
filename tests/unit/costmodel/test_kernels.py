"""The generated fits against values printed from the tables that they were fitted to."""

from __future__ import annotations

import dataclasses

import pytest

from dualpath.costmodel import kernels
from dualpath.costmodel.catalogue import MODELS, NODES, SIZES
from dualpath.costmodel.kernels import KERNELS, KernelFit

MS = 1e-3
PREFIX = 32_768
SPARSE = KERNELS["ds-660b", "h200"]
EVERY = pytest.mark.parametrize("fit", KERNELS.values(), ids=["-".join(at) for at in KERNELS])


@pytest.mark.parametrize(("new", "table_ms"), [(512, 1.59), (1024, 2.58), (2048, 4.90), (4096, 9.87), (8192, 20.2)])
def test_sparse_prefill_attention_is_that_of_the_table(new: int, table_ms: float) -> None:
    """A layer of DeepSeek-V3.2 behind 32k tokens on H200."""
    prefill = SPARSE.prefill
    layer_s = max(prefill.floor_s, prefill(PREFIX, new) / prefill.layers)
    assert layer_s == pytest.approx(table_ms * MS, rel=0.05)


def test_the_floor_is_that_of_the_table() -> None:
    assert SPARSE.prefill.floor_s == pytest.approx(1.5 * MS, rel=0.05)


def test_prefill_mixture_is_that_of_the_tables() -> None:
    """2,048 tokens a GPU over EP16: experts, dispatch, combine; shared expert, router and notification are a tenth more."""
    parts_s = (1.49 + 0.46 + 1.11) * MS
    mixture_s = SPARSE.prefill.mixture_s + SPARSE.prefill.mixture_token_s * 2048
    assert parts_s < mixture_s < 1.12 * parts_s


def test_a_decode_step_is_that_of_the_tables() -> None:
    """32 requests of 32k tokens a GPU: attention, experts, dispatch, combine; shared expert and router come on top."""
    parts_s = (0.344 + 0.115 + 0.055 + 0.086) * MS
    decode = SPARSE.decode
    layer_s = decode.step(decode.engine_s(32, 32 * PREFIX), 32) / decode.layers
    assert parts_s < layer_s < 1.1 * parts_s


def test_decode_attention_grows_with_the_batch_as_in_the_table() -> None:
    decode = SPARSE.decode
    growth_s = decode.engine_s(128, 128 * PREFIX) - decode.engine_s(1, PREFIX)
    assert growth_s == pytest.approx((0.635 - 0.211) * MS, rel=0.05)


def test_models_and_hardware_are_those_of_the_catalogue() -> None:
    for model, gpu in KERNELS:
        assert model in MODELS
        assert gpu in NODES
        assert KERNELS[model, gpu].prefill.layers == KERNELS[model, gpu].decode.layers == SIZES[model].layers


def test_one_model_by_two_names_has_one_fit() -> None:
    for gpu in NODES:
        assert KERNELS.get(("ds-660b", gpu)) is KERNELS.get(("deepseek-v3.2", gpu))


def test_the_module_says_where_it_comes_from() -> None:
    assert kernels.__doc__ is not None
    for word in ("tools/fit_kernels.py", "generated", kernels.SOURCE, kernels.VERSION, "Apache-2.0"):
        assert word in kernels.__doc__


@EVERY
def test_every_fit_names_its_source(fit: KernelFit) -> None:
    assert (fit.source, fit.version) == ("aiconfigurator-core", "0.12.0")


@EVERY
def test_coefficients_are_not_negative(fit: KernelFit) -> None:
    for time in (fit.prefill, fit.decode):
        assert all(value >= 0 for value in dataclasses.asdict(time).values())


@EVERY
def test_errors_are_small(fit: KernelFit) -> None:
    """Dense attention is worse: its kernels are less efficient on few tokens, which a plane cannot follow."""
    assert fit.prefill_error < 0.17
    assert fit.mixture_error < 0.09
    assert fit.decode_error < 0.04


@EVERY
def test_attention_grows_with_cached_and_new_tokens(fit: KernelFit) -> None:
    prefill, decode = fit.prefill, fit.decode
    assert prefill(PREFIX, 512) < prefill(PREFIX, 513) < prefill(2 * PREFIX, 513)
    assert decode.engine_s(8, 8 * PREFIX) <= decode.engine_s(9, 8 * PREFIX) < decode.engine_s(9, 9 * PREFIX)


def test_sparse_attention_hardly_grows_with_the_context() -> None:
    dense = KERNELS["deepseek-v3", "h200"]
    assert SPARSE.prefill.pair_s < dense.prefill.pair_s / 3
    assert SPARSE.decode.context_s < dense.decode.context_s / 5
