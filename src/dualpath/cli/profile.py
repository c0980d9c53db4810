"""``dualpath profile``: measure this machine for a model; the result makes seconds into tokens for the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.console import Console

from dualpath.cli.options import FiniteRange, Given
from dualpath.cli.outputs import check_output_file
from dualpath.cli.signals import signals_held_back
from dualpath.clock import MonotonicClock
from dualpath.costmodel.fit import relative_error
from dualpath.costmodel.hardware import EngineProfile
from dualpath.errors import StorageError
from dualpath.kvcache.layout import BlockGeometry
from dualpath.settings import Dtype, Settings


@click.command()
@click.argument("model", type=click.Path())
@click.option("--output", default="profile.json", show_default=True, type=click.Path(), help="JSON file to write.")
@click.option("--store", type=click.Path(), help="Directory on the file system whose speed counts; default: a temporary one.")
@click.option("--block-tokens", default=64, show_default=True, type=click.IntRange(1), help="Tokens in a KV block.")
@click.option("--max-len", default=4096, show_default=True, type=click.IntRange(2), help="Longest context to measure.")
@click.option("--prompt-tokens", default=1024, show_default=True, type=click.IntRange(2), help="A typical turn's prompt.")
@click.option("--hit-rate", default=0.95, show_default=True, type=FiniteRange(0, 1), help="Its share of cached tokens.")
@click.option("--storage-threads", default=2, show_default=True, type=click.IntRange(1), help="I/O threads of an engine.")
@click.option("--dtype", default="auto", type=click.Choice([one.value for one in Dtype]), help="As for `serve`.")
@click.option("--device", default="auto", help="As for `serve`.")
@click.option("--turns/--no-turns", default=True, help="Measure what a turn costs besides, on a small cluster.")
def profile(
    model: str,
    output: str,
    store: str | None,
    block_tokens: int,
    max_len: int,
    prompt_tokens: int,
    hit_rate: float,
    storage_threads: int,
    dtype: str,
    device: str,
    turns: bool,
) -> None:
    """Measure forward times, prefill rate, storage rate and turns for MODEL, one engine on one core or device."""
    check_output_file("--output", Path(output))
    console = Console()
    knobs = {"block_tokens": block_tokens, "storage_threads": storage_threads, "dtype": dtype, "device": device}
    workload = TypicalTurn(prompt_tokens, hit_rate, max_len)
    found = measured(Path(model), Given(knobs).settings(), workload, None if store is None else Path(store), console)
    if turns:
        found = with_turns(Path(model), Given(knobs).settings(), found, workload)
    try:
        Path(output).write_text(found.to_json())
    except OSError as error:
        raise StorageError(f"{error.filename}: {error.strerror}") from error
    console.print(f"use it with: dualpath serve {model} --profile {output}")


@dataclass(frozen=True, slots=True)
class TypicalTurn:
    """What the engine will mostly get: a prompt's tokens, their share that is cached; and the longest context to measure."""

    prompt_tokens: int
    hit_rate: float
    max_len: int


def measured(model: Path, settings: Settings, workload: TypicalTurn, store: Path | None, console: Console) -> EngineProfile:
    """One engine's own times and its storage's rate, measured in this process on one core or device.

    Raises:
        ModelError: the directory is no model that this project can run.
        StorageError: the store cannot be used.
    """
    with signals_held_back():
        import torch

        from dualpath.engine import profile as engine
        from dualpath.models.registry import load_model, resolve_device
    torch.set_num_threads(1)
    clock = MonotonicClock()
    section, block_tokens = settings.model, settings.cache.block_tokens
    loaded, device = load_model(model, section.dtype, section.device), resolve_device(section.device)
    shape = loaded.shape
    longest = min(workload.max_len, shape.max_positions)
    samples = engine.measure_attention(
        loaded,
        device,
        longest,
        clock,
        lambda one: console.print(f"cached {one.cached:6} new {one.new:5}  {one.seconds * 1e3:9.3f} ms"),
    )
    geometry = BlockGeometry(shape.layers, block_tokens, shape.token_layer_bytes)
    times = engine.engine_times(
        engine.measure_decode(loaded, device, longest, block_tokens, clock),
        engine.measure_forward(loaded, device, longest, clock),
        engine.measure_copies(geometry, device, clock),
    )
    try:
        rate = engine.measure_storage(geometry, store, settings.storage.storage_threads, clock)
    except OSError as error:
        raise StorageError(f"{error.filename}: {error.strerror}") from error
    found = engine.engine_profile(samples, rate, workload.prompt_tokens, workload.hit_rate, times)
    console.print(
        f"forward time fitted within {relative_error(found.attention, samples):.0%} (mean); "
        f"prefill {found.prefill_tokens_per_s:,.0f} prompt tokens/s at a hit rate of {workload.hit_rate:.0%}, "
        f"storage {rate:,.0f} tokens/s ({rate * geometry.token_bytes / 1e6:,.0f} MB/s from the page cache); "
        f"a decode step of one {times.step_s(1, workload.prompt_tokens) * 1e3:.1f} ms, "
        f"of eight {times.step_s(8, 8 * workload.prompt_tokens) * 1e3:.1f} ms"
    )
    return found


def with_turns(model: Path, settings: Settings, found: EngineProfile, workload: TypicalTurn) -> EngineProfile:
    """The profile with what a turn costs besides compute and bytes, measured on a cluster of two engines.

    Raises:
        SettingsError, ClusterError: the cluster cannot start.
    """
    with signals_held_back():
        from dualpath.replay.turn_times import measure_turns

    return replace(found, times=measure_turns(model, settings, found, workload.prompt_tokens))
