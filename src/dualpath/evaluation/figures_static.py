"""What needs no simulation: arithmetic of models, data sets and hardware (paper Tables 1 and 2, Fig. 3)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from statistics import fmean

from dualpath.costmodel.calibration import DEFAULT
from dualpath.costmodel.catalogue import MODELS, NODES, SIZES
from dualpath.costmodel.serving import Placement, ServedModel, served
from dualpath.costmodel.shapes import PAPER_MODELS
from dualpath.evaluation.experiment import Experiment
from dualpath.evaluation.lab import TRAJECTORIES, Case, Lab
from dualpath.evaluation.load import verdict
from dualpath.evaluation.section import Picture, Section, Series, Value, Within
from dualpath.workload.synthesis import TABLE_2, averages_of, synthesise

GB_PER_PFLOP = 1e6
"""Of a byte a FLOP."""
APPEND_TOKENS = 429
_CONTEXTS = {"16k": 16 * 1024, "32.7k": 32_721, "64k": 64 * 1024}
_TABLE1_PAPER: Mapping[str, Mapping[str, float]] = {
    "Qwen2.5-32B": {"16k": 117, "64k": 267},
    "GPT-OSS-120B": {"16k": 47, "64k": 95},
    "Qwen3-235B": {"16k": 39, "64k": 60},
    "DeepSeek-V3.2": {"16k": 13, "32.7k": 22, "64k": 36},
    "DeepSeek-V3": {"16k": 4.8, "64k": 5.8},
}
"""Ends of the printed ranges; 22 is printed for DeepSeek-V3.2 at 32.7k."""
INEXACT = "DeepSeek-V3"
INEXACT_TOLERANCE = 0.11
HALF_A_UNIT = 0.5
"""Of the printed numbers, which are whole but for ``INEXACT``."""

TABLE2_TOLERANCE = 0.02

_FALL = 14.4
_OLDEST, _NEWEST = "a100", "b200"
_GENERATIONS = {"A100": "a100", "H100": "h100", "B200": "b200"}
BLACKWELL_FP4_FLOPS = 9e15
"""Dense, by the data sheet; the catalogue has what it serves with, fp8."""
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXT_TOKENS, NEW_TOKENS = 30_000, 300
_BATCH_MODELS = {"DS 660B": ("ds-660b", 2, 4), "DS 27B": ("ds-27b", 1, 1), "Qwen2.5-32B": ("qwen2.5-32b", 1, 2)}
_TABLES_ALONE = replace(DEFAULT, request_context_s=0.0)


def _no_cases() -> Sequence[Case]:
    return ()


def _table1(_: Lab) -> Section:
    values = [_table1_value(model, at) for model in _TABLE1_PAPER for at in _CONTEXTS]
    judged = [value for value in values if value.holds is not None and not value.name.startswith(f"{INEXACT},")]
    rounded = sum(bool(value.holds) for value in judged)
    errors = [value.error for value in values if value.name.startswith(f"{INEXACT},") and value.error is not None]
    missing = [1 / (1 + error) for error in errors]
    text = [
        f"KV bytes that a turn reads for each FLOP that it computes, {APPEND_TOKENS} tokens appended: context times bytes of a "
        f"token, over appended tokens times FLOPs of a new token at that context. No simulation.",
        f"{rounded} of {len(judged)} printed numbers of the other models come out as printed, rounded alike.",
        f"{INEXACT} is {-max(errors):.0%} to {-min(errors):.0%} below its printed range: a factor {min(missing):.2f} to "
        f"{max(missing):.2f} on bytes over FLOPs is missing, nearly the same at both ends, so the shape over the context is "
        f"right. Its bytes are taken as V3.2's latent layout (fp8, 656 B a layer), its attention as absorbed, over the whole "
        f"context; the paper states neither. {656 * min(missing):.0f} to {656 * max(missing):.0f} B a layer would do, or that "
        f"many fewer FLOPs.",
    ]
    series = [
        Series(model, [(context, _io(model, context)) for context in range(16 * 1024, 65 * 1024, 4096)])
        for model in _TABLE1_PAPER
    ]
    paper = [
        Series(model, [(_CONTEXTS[at], value) for at, value in ends.items()], paper=True)
        for model, ends in _TABLE1_PAPER.items()
    ]
    picture = Picture("I/O a computation", "context (tokens)", "GB/PFLOP", [*series, *paper], log_y=True)
    return Section("table1", "Table 1: KV bytes read for each FLOP", text, values, [picture])


def _io(model: str, context: float) -> float:
    return PAPER_MODELS[model].io_per_compute(context, APPEND_TOKENS) * GB_PER_PFLOP


def _table1_value(model: str, at: str) -> Value:
    paper, ours = _TABLE1_PAPER[model].get(at), _io(model, _CONTEXTS[at])
    if paper is None:
        return Value(f"{model}, {at}", "GB/PFLOP", ours)
    tolerance = INEXACT_TOLERANCE if model == INEXACT else HALF_A_UNIT / paper
    note = "" if model == INEXACT else "within half a unit of what is printed"
    return Value(f"{model}, {at}", "GB/PFLOP", ours, paper, Within.RELATIVE, tolerance, note=note)


def _table2(_: Lab) -> Section:
    values = []
    tokens = {}
    for name, (_shape, averages) in TABLE_2.items():
        trajectories = synthesise(name, TRAJECTORIES, random.Random(0))
        found = averages_of(trajectories)
        values += [
            Value(
                f"{one.name}, {name}",
                "" if one.name == "turns" else "tokens",
                getattr(found, one.name),
                getattr(averages, one.name),
                Within.RELATIVE,
                TABLE2_TOLERANCE,
            )
            for one in fields(averages)
        ]
        turns = sum(len(one.turns) for one in trajectories)
        tokens[name] = (
            sum(turn.appended_tokens for one in trajectories for turn in one.turns) / turns,
            sum(turn.output_tokens for one in trajectories for turn in one.turns) / turns,
            fmean(sum(step.prompt_tokens for step in one.steps()) for one in trajectories),
        )
    weighted = "; ".join(
        f"{name} {append:.0f} appended, {output:.0f} generated, {prompt / 1e6:.2f}M prompt tokens an agent"
        for name, (append, output, prompt) in tokens.items()
    )
    text = [
        f"The paper's trajectories are not published; these are generated, {TRAJECTORIES} a set, so that all five averages of "
        f"each set are met. They are means over trajectories of means over turns, which is why turns times tokens a turn is "
        f"not the total.",
        f"What a cluster sees is the mean over turns, in which long trajectories weigh more: {weighted}.",
        *verdict(values),
    ]
    names = [one.name for one in fields(next(iter(TABLE_2.values()))[1])]
    errors = [[value.error or 0.0 for value in values if value.name.startswith(f"{name},")] for name in names]
    series = [
        Series(set_name, [(name, 100 * errors[row][at]) for row, name in enumerate(names)])
        for at, set_name in enumerate(TABLE_2)
    ]
    return Section(
        "table2",
        "Table 2: the data sets",
        text,
        values,
        [Picture("Deviation of the generated sets from the paper's averages", "", "%", series)],
    )


def _ratio(name: str, flops: float | None = None) -> float:
    """Bytes a second of a GPU's compute NIC for each FLOP a second."""
    node = NODES[name]
    return node.cnic_bandwidth / (flops or node.flops)


def _fig3(_: Lab) -> Section:
    old, new = NODES[_OLDEST], NODES[_NEWEST]
    exact = (Within.RELATIVE, TABLE2_TOLERANCE)
    falls = {
        "with the NIC unchanged": (new.flops / old.flops, "A100 bf16 312, B200 fp8 4,500 TFLOP/s", exact),
        "with twice the NIC and fp4": (
            _ratio(_OLDEST) / _ratio(_NEWEST, BLACKWELL_FP4_FLOPS),
            "NICs of 200 and 400 Gbps, B200 fp4 9,000 TFLOP/s; PCIe 4 to 5 doubles alike",
            exact,
        ),
        "with twice the NIC": (
            _ratio(_OLDEST) / _ratio(_NEWEST),
            "the catalogue's nodes: NICs of 200 and 400 Gbps, B200 fp8",
            (Within.SHOWN, 0.0),
        ),
    }
    values = [
        Value(f"fall of I/O to compute, {how}", "x", ours, _FALL, within, tolerance, note=note)
        for how, (ours, note, (within, tolerance)) in falls.items()
    ]
    values += [
        Value(f"batch of 1 against the largest, {label}{how}", "x", _throughputs(_served(label, tables))[0][1])
        for label in _BATCH_MODELS
        for how, tables in (("", False), (", kernel tables alone", True))
    ]
    model = _served("DS 660B", False)
    values += [
        Value("requests whose KV fits beside DS 660B, all layers", "", _fitting(model, model.layers), note="not layerwise"),
        Value("requests whose KV fits beside DS 660B, one layer", "", _fitting(model, 1), note="layerwise"),
    ]
    return Section(
        "fig3",
        "Fig. 3: hardware trend, and throughput by batch size",
        _fig3_text(falls["with the NIC unchanged"][0], falls["with twice the NIC"][0], values),
        values,
        [_trend_picture(), _batch_picture()],
    )


def _fig3_text(unchanged: float, catalogue: float, values: Sequence[Value]) -> list[str]:
    model, alone = _served("DS 660B", False), _served("DS 660B", True)
    rows = _fitting(model, model.layers)
    small = _throughput(model, max(1, int(rows))) / _throughput(model, _BATCHES[-1])
    return [
        f"Left: bytes a second of I/O for each FLOP a second, from Ampere to Blackwell. The paper does not say what it counts. "
        f"Two readings give its {_FALL:g}: FLOPs alone ({unchanged:.2f}, each GPU at the precision that it serves with, the "
        f"same NIC), or NICs that double while FLOPs go to fp4. The catalogue's nodes, which the simulations use, give "
        f"{catalogue:.1f}: A100 with 200 Gbps, B200 with 400 Gbps and fp8.",
        *verdict(values),
        f"Right: prefill throughput of one step with {NEW_TOKENS} new tokens behind {CONTEXT_TOKENS:,} of context, by requests "
        f"an engine, from the step times that the simulations use; no numbers of the paper's curve are known. For DS 660B one "
        f"request an engine gives {_throughputs(model)[0][1]:.0%} of the largest batch's throughput, "
        f"{_throughputs(alone)[0][1]:.0%} by the kernel tables alone: the calibrated cost in proportion to the context is paid "
        f"by every request, so batching saves only the experts' fixed part. {rows:.1f} requests fit into HBM with all their "
        f"layers, {_fitting(model, 1):.0f} layer by layer. The step of {max(1, int(rows))} has {small:.0%} of the largest "
        f"batch's throughput: at most {1 - small:.0%} are lost to HBM without layerwise prefill (see Fig. 12 right).",
    ]


def _served(label: str, tables_alone: bool) -> ServedModel:
    name, prefill, decode = _BATCH_MODELS[label]
    on = Placement("h800", NODES["h800"], prefill, decode)
    return served(name, MODELS[name], SIZES[name], on, _TABLES_ALONE if tables_alone else DEFAULT)


def _throughput(model: ServedModel, requests: int) -> float:
    """New tokens a second of one engine."""
    attention_s = requests * model.prefill(CONTEXT_TOKENS - NEW_TOKENS, NEW_TOKENS)
    return requests * NEW_TOKENS / model.prefill.step(attention_s, requests * NEW_TOKENS)


def _throughputs(model: ServedModel) -> list[tuple[float, float]]:
    most = _throughput(model, _BATCHES[-1])
    return [(batch, _throughput(model, batch) / most) for batch in _BATCHES]


def _fitting(model: ServedModel, layers: int) -> float:
    return model.prefill_kv_bytes / (layers * model.token_layer_bytes * CONTEXT_TOKENS)


def _trend_picture() -> Picture:
    first = NODES[_OLDEST]
    unchanged = Series("NIC unchanged", [(label, NODES[name].flops / first.flops) for label, name in _GENERATIONS.items()])
    ours = Series("the catalogue's NICs", [(label, _ratio(_OLDEST) / _ratio(name)) for label, name in _GENERATIONS.items()])
    paper = Series("paper", [("A100", 1.0), ("B200", _FALL)], paper=True)
    return Picture("Computation to I/O, A100 = 1", "GPU", "FLOPs a byte, relative", [unchanged, ours, paper])


def _batch_picture() -> Picture:
    series = [Series(label, _throughputs(_served(label, False))) for label in _BATCH_MODELS]
    series.append(Series("DS 660B, kernel tables alone", _throughputs(_served("DS 660B", True))))
    title = f"Prefill throughput, {CONTEXT_TOKENS:,} tokens of context, {NEW_TOKENS} new"
    return Picture(title, "requests an engine", "tokens/s, relative", series, log_x=True)


STATIC: Sequence[Experiment] = (
    Experiment("table1", "KV bytes read for each FLOP", _no_cases, _table1),
    Experiment("table2", "the generated data sets", _no_cases, _table2),
    Experiment("fig3", "hardware trend, and throughput by batch size", _no_cases, _fig3),
)
"""Those that need no cases."""
