"""``dualpath model``: make model directories."""

from __future__ import annotations

from pathlib import Path

import click

from dualpath.errors import ModelError
from dualpath.settings import Dtype


@click.group()
def model() -> None:
    """Make model directories."""


@model.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--architecture", default="Qwen2ForCausalLM", show_default=True, help="architecture, as config.json names it")
@click.option("--layers", default=4, show_default=True, type=click.IntRange(1), help="decoder layers")
@click.option("--hidden", default=128, show_default=True, type=click.IntRange(1), help="hidden size")
@click.option("--heads", default=8, show_default=True, type=click.IntRange(1), help="query heads")
@click.option("--kv-heads", default=8, show_default=True, type=click.IntRange(1), help="key and value heads")
@click.option("--head-dim", default=16, show_default=True, type=click.IntRange(2), help="size of a head")
@click.option("--intermediate", default=256, show_default=True, type=click.IntRange(1), help="size of the MLP")
@click.option("--vocab", default=512, show_default=True, type=click.IntRange(1), help="tokens in the vocabulary")
@click.option("--max-positions", default=32_768, show_default=True, type=click.IntRange(1), help="longest context")
@click.option("--tied/--untied", default=True, show_default=True, help="head shares the embedding's weights")
@click.option(
    "--dtype",
    default=Dtype.FLOAT32.value,
    show_default=True,
    type=click.Choice([dtype.value for dtype in Dtype if dtype is not Dtype.AUTO]),
    help="precision of the weights",
)
@click.option("--seed", default=0, show_default=True, help="seed of the weights")
def init(
    directory: Path,
    architecture: str,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    intermediate: int,
    vocab: int,
    max_positions: int,
    tied: bool,
    dtype: str,
    seed: int,
) -> None:
    """Write a small random model, with tokenizer and chat template, to DIRECTORY.

    The defaults make much KV for little compute: agents on it are bound by storage, as large models are.
    """
    # Imported here so that --help does not wait for torch.
    from dualpath.models.create import create_model

    try:
        created = create_model(
            directory,
            architecture=architecture,
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate=intermediate,
            vocab=vocab,
            max_positions=max_positions,
            tied=tied,
            dtype=Dtype(dtype),
            seed=seed,
        )
    except ModelError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"cannot write {error.filename or directory}: {error.strerror}") from error
    click.echo(f"wrote {created.directory}: {architecture}, {created.parameters:,} parameters in {dtype}")
    click.echo(f"KV: {created.token_bytes:,} bytes a token over {layers} layers")
    click.echo(f"next: dualpath serve {created.directory}")
