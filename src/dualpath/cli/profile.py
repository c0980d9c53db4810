"""``dualpath profile``: measure this machine for a model; the result makes seconds into tokens for the scheduler."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from dualpath.cli.options import FiniteRange
from dualpath.cli.outputs import check_output_file
from dualpath.cli.signals import signals_held_back
from dualpath.clock import MonotonicClock
from dualpath.costmodel.fit import relative_error
from dualpath.errors import StorageError
from dualpath.kvcache.layout import BlockGeometry
from dualpath.settings import Dtype


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
) -> None:
    """Measure forward times, prefill rate and storage rate for MODEL, one engine on one core or device."""
    check_output_file("--output", Path(output))
    console = Console()
    with signals_held_back():
        import torch

        from dualpath.engine.profile import engine_profile, measure_attention, measure_storage
        from dualpath.models.registry import load_model, resolve_device
    torch.set_num_threads(1)
    clock = MonotonicClock()
    loaded = load_model(model, Dtype(dtype), device)
    shape = loaded.shape
    longest = min(max_len, shape.max_positions)
    samples = measure_attention(
        loaded,
        resolve_device(device),
        longest,
        clock,
        lambda one: console.print(f"cached {one.cached:6} new {one.new:5}  {one.seconds * 1e3:9.3f} ms"),
    )
    geometry = BlockGeometry(shape.layers, block_tokens, shape.token_layer_bytes)
    try:
        rate = measure_storage(geometry, None if store is None else Path(store), storage_threads, clock)
        found = engine_profile(samples, rate, prompt_tokens, hit_rate)
        Path(output).write_text(found.to_json())
    except OSError as error:
        raise StorageError(f"{error.filename}: {error.strerror}") from error
    console.print(
        f"forward time fitted within {relative_error(found.attention, samples):.0%} (mean); "
        f"prefill {found.prefill_tokens_per_s:,.0f} prompt tokens/s at a hit rate of {hit_rate:.0%}, "
        f"storage {rate:,.0f} tokens/s ({rate * geometry.token_bytes / 1e6:,.0f} MB/s from the page cache)"
    )
    console.print(f"use it with: dualpath serve {model} --profile {output}")
