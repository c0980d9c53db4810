"""Models on nodes: kernel tables where there are any, rooflines elsewhere, weights that have to fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dualpath.costmodel.calibration import DEFAULT, Calibration, parameters
from dualpath.costmodel.catalogue import MODELS, NODES, SIZES
from dualpath.costmodel.serving import Placement, ServedModel, served
from dualpath.errors import SettingsError


def on(model: str, hardware: str, prefill: int = 2, decode: int = 4, free: Calibration = DEFAULT) -> ServedModel:
    return served(model, MODELS[model], SIZES[model], Placement(hardware, NODES[hardware], prefill, decode), free)


@pytest.mark.parametrize("model", MODELS)
def test_every_model_of_the_catalogue_runs_on_h200(model: str) -> None:
    found = on(model, "h200")
    assert found.layers * found.token_layer_bytes == MODELS[model].token_bytes
    assert found.prefill(30_000, 300) > 0
    assert found.prefill(60_000, 300) > found.prefill(30_000, 300)
    assert 0.001 < found.decode.step(found.decode.engine_s(10, 300_000), 10) < 0.2


def test_the_papers_model_has_kernel_tables_and_others_say_where_their_times_come_from() -> None:
    assert "h100" in on("ds-660b", "h800").source
    assert on("qwen2.5-32b", "a100").source == "roofline of the data sheet"


def test_less_memory_bandwidth_makes_decoding_slower_and_an_h800_is_an_h100() -> None:
    h100, h200, h800 = (on("ds-660b", gpu).decode for gpu in ("h100", "h200", "h800"))
    assert h800 == h100
    assert h100.step(h100.engine_s(20, 600_000), 20) > 1.1 * h200.step(h200.engine_s(20, 600_000), 20)


def test_a_dense_model_has_no_experts_to_be_uneven() -> None:
    plain, twice = (on("qwen2.5-32b", "h800", free=replace(DEFAULT, mixture_factor=factor)).prefill for factor in (1.0, 2.0))
    assert plain == twice


def test_the_mixture_factor_scales_experts_only() -> None:
    plain, twice = (on("ds-660b", "h800", free=replace(DEFAULT, mixture_factor=factor)).prefill for factor in (1.0, 2.0))
    assert twice(30_000, 300) == plain(30_000, 300)
    assert twice.mixture_s == 2 * plain.mixture_s


def test_larger_memory_is_more_kv() -> None:
    assert on("ds-660b", "h200").decode_kv_bytes - on("ds-660b", "h800").decode_kv_bytes == pytest.approx(61e9)


def test_weights_over_fewer_nodes_leave_less_and_at_last_nothing() -> None:
    assert on("ds-660b", "h800", decode=2).decode_kv_bytes < on("ds-660b", "h800", decode=4).decode_kv_bytes
    with pytest.raises(SettingsError, match="prefill: a GPU of 80 GB cannot hold 84 GB of weights"):
        on("ds-660b", "h800", prefill=1)


def test_every_free_parameter_has_a_reason() -> None:
    assert all(reason and unit for _, _, unit, reason, _ in parameters(DEFAULT))
    assert sum(calibrated for *_, calibrated in parameters(DEFAULT)) <= 3
