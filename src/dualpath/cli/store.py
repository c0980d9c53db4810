"""``dualpath store``: look at a block store, check it, empty it."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from dualpath.errors import StorageError
from dualpath.storage.maintenance import NamespaceStats, StoreReport, clear_store, store_stats, verify_store

_DIRECTORY = click.argument("directory", type=click.Path(path_type=Path))
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_SHOWN_BAD_FILES = 20
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@click.group()
def store() -> None:
    """Look at a block store, check it, empty it."""


@store.command()
@_DIRECTORY
@_JSON
def stats(directory: Path, as_json: bool) -> None:
    """Show how many blocks of which models DIRECTORY holds."""
    found = store_stats(directory)
    if as_json:
        click.echo(json.dumps([asdict(namespace) for namespace in found]))
        return
    table = Table("model fingerprint", "dtype", "block tokens", "blocks", "size", "oldest", "newest", title=str(directory))
    for namespace in found:
        table.add_row(*_stats_row(namespace))
    Console().print(table)


@store.command()
@_DIRECTORY
@_JSON
@click.option("--delete", is_flag=True, help="Delete what is bad (the store must not be in use).")
@click.pass_context
def verify(context: click.Context, directory: Path, as_json: bool, delete: bool) -> None:
    """Read all of DIRECTORY and check it. Exit status 1: it has bad files, and they were not deleted."""
    report = verify_store(directory, delete=delete)
    if as_json:
        click.echo(json.dumps(asdict(report) | {"is_clean": report.is_clean}))
    else:
        _show_report(report)
    context.exit(0 if report.is_clean else 1)


@store.command()
@_DIRECTORY
@_JSON
@click.option("--yes", is_flag=True, help="Do not ask.")
def clear(directory: Path, as_json: bool, yes: bool) -> None:
    """Delete all blocks of all models in DIRECTORY (the store must not be in use)."""
    if not yes:
        blocks = sum(namespace.blocks for namespace in store_stats(directory))
        if not click.confirm(f"Delete {blocks} blocks from {directory}?", err=True):
            raise StorageError(f"{directory}: nothing was deleted")
    deleted = clear_store(directory)
    click.echo(json.dumps({"deleted": deleted}) if as_json else f"{deleted} blocks deleted")


def _stats_row(namespace: NamespaceStats) -> tuple[str, ...]:
    about = namespace.description
    return (
        str(about.get("model_fingerprint", "?"))[:16],
        str(about.get("dtype", "?")),
        str(about.get("block_tokens", "?")),
        f"{namespace.blocks:,}",
        _size(namespace.file_bytes),
        _date(namespace.oldest_written_s),
        _date(namespace.newest_written_s),
    )


def _show_report(report: StoreReport) -> None:
    for bad in report.bad[:_SHOWN_BAD_FILES]:
        click.echo(f"bad: {bad.path}: {bad.reason}")
    if (more := len(report.bad) - _SHOWN_BAD_FILES) > 0:
        click.echo(f"… and {more} more (--json lists all)")
    click.echo(
        f"{report.blocks:,} good blocks ({_size(report.payload_bytes)}), {len(report.bad)} bad files, {report.deleted} deleted"
    )


def _size(length: float) -> str:
    for unit in _UNITS[:-1]:
        if length < 1024:
            return f"{length:.3g} {unit}" if unit != "B" else f"{length:.0f} B"
        length /= 1024
    return f"{length:.1f} {_UNITS[-1]}"


def _date(written_s: float | None) -> str:
    return "-" if written_s is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(written_s))
