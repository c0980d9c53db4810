"""The tables of a report: systems side by side, each beside its ratio to the first; their nodes; resources over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

from rich.table import Table

Entry = Mapping[str, Any]
MARK = "*"
RATIO = "vs first"
BLOCKS = "▁▂▃▄▅▆▇█"
SPARKLINE_CHARACTERS = 24


class Row(NamedTuple):
    """A line of the table: where the value is (None: there is none), and how it is written."""

    label: str
    value: Callable[[Entry], float | None]
    text: Callable[[float], str]
    compared: bool = True


def _seconds(value: float) -> str:
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _plain(value: float) -> str:
    return f"{value:,.0f}"


def _fine(value: float) -> str:
    return f"{value:.3g}" if value < 1 else f"{value:.2f}"


def _mebibytes(value: float) -> str:
    return f"{value / 2**20:,.1f} MiB"


def _of(*path: str) -> Callable[[Entry], float | None]:
    def value(entry: Entry) -> float | None:
        found: Any = entry
        for key in path:
            found = found[key]
        return None if found is None else float(found)

    return value


def _busiest_snic(entry: Entry) -> float | None:
    return max(
        (node["storage_utilization"] for node in entry["nodes"] if node["storage_utilization"] is not None), default=None
    )


def _read_bytes(entry: Entry) -> float:
    return float(sum(node["storage_read_bytes"] for node in entry["nodes"]))


ROWS = (
    Row("JCT", _of("jct_s"), _seconds),
    Row("agents/s", _of("agents_per_s"), _fine),
    Row("output tokens/s", _of("output_throughput"), _fine),
    Row("TTFT mean", _of("ttft_s", "mean"), _seconds),
    Row("TTFT p99", _of("ttft_s", "p99"), _seconds),
    Row("  scheduling", _of("ttft_breakdown_s", "scheduling"), _seconds),
    Row("  allocation", _of("ttft_breakdown_s", "allocation"), _seconds),
    Row("  read", _of("ttft_breakdown_s", "read"), _seconds),
    Row("  prefill", _of("ttft_breakdown_s", "prefill"), _seconds),
    Row("TTST mean", _of("ttst_s", "mean"), _seconds),
    Row("TPOT mean", _of("tpot_s", "mean"), _seconds),
    Row("hit rate", _of("hit_rate"), _percent, compared=False),
    Row("theoretical hit rate", _of("theoretical_hit_rate"), _percent, compared=False),
    Row("storage read", _read_bytes, _mebibytes),
    Row("busiest SNIC", _busiest_snic, _percent, compared=False),
    Row("SNIC max/mean", _of("storage_max_over_mean"), _fine, compared=False),
    Row("attention max/mean", _of("attention_time_max_over_mean"), _fine, compared=False),
    Row("transfer hidden", _of("transfer_hidden_share"), _percent, compared=False),
    Row("peak prefill KV", _of("prefill_peak_kv_bytes"), _mebibytes),
    Row("turns completed", _of("completed"), _plain, compared=False),
    Row("turns failed", _of("failed"), _plain, compared=False),
    Row("identical turns", _of("identical_turns"), _plain, compared=False),
)


def render_table(report: Mapping[str, Any], width: int | None = None) -> Table:
    """All systems of a report, one a column, every further one followed by its ratio to the first.

    Systems whose tokens mean nothing are marked. Where it would be wider than ``width``, the ratios are left out.
    """
    systems: Sequence[Entry] = report["systems"]
    cells = [_cells(row, systems) for row in ROWS]
    names = [entry["system"] + ("" if entry["tokens_valid"] else MARK) for entry in systems]
    headers = [names[0], *(header for name in names[1:] for header in (name, RATIO))]
    columns = [("", [row.label for row in ROWS]), *zip(headers, zip(*cells, strict=True), strict=True)]
    if width is not None and sum(3 + max(map(len, (header, *column))) for header, column in columns) + 1 > width:
        columns = [column for column in columns if column[0] != RATIO]
    table = Table(caption=_caption(systems))
    for header, _ in columns:
        table.add_column(header, justify="right" if header else "left", style="dim" if header == RATIO else None, no_wrap=True)
    for line in zip(*(column for _, column in columns), strict=True):
        table.add_row(*line)
    return table


def render_nodes(report: Mapping[str, Any]) -> Table:
    """What each node's storage NIC has read in each system, and its utilisation: bytes / (rate · JCT)."""
    systems: Sequence[Entry] = report["systems"]
    table = Table(title="storage NIC: MiB read, and bytes read / (rate x JCT)")
    table.add_column("node")
    for entry in systems:
        table.add_column(entry["system"], justify="right", no_wrap=True)
    for nodes in zip(*(entry["nodes"] for entry in systems), strict=True):
        table.add_row(nodes[0]["name"], *(_node(node) for node in nodes))
    return table


def render_utilisation(report: Mapping[str, Any]) -> list[Table]:
    """For each system that has it, how busy its resources were, those of one kind ("prefill SNIC read") together.

    The mean over all of a kind and the whole run, the mean of the busiest one, the most that one had in an interval, and
    the mean over the kind in time. The report itself has every single one.
    """
    return [_utilisation(entry["system"], entry["utilisation"]) for entry in report["systems"] if "utilisation" in entry]


def _utilisation(system: str, utilisation: Entry) -> Table:
    kinds: dict[str, list[Sequence[float]]] = {}
    for name, shares in utilisation["series"].items():
        if shares:
            kinds.setdefault(_kind(name), []).append(shares)
    run_s = utilisation["interval_s"] * max((len(one) for of_kind in kinds.values() for one in of_kind), default=0)
    table = Table(title=f"{system}: share of the capacity used, over {_seconds(run_s)}")
    table.add_column("resource", no_wrap=True)
    for header in ("mean", "busiest", "peak"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("over time", no_wrap=True)
    for kind, of_kind in kinds.items():
        means = [fmean(shares) for shares in of_kind]
        numbers = fmean(means), max(means), max(map(max, of_kind))
        over_time = [fmean(at) for at in zip(*of_kind, strict=False)]
        table.add_row(f"{kind} ({len(of_kind)})", *map(_percent, numbers), sparkline(over_time))
    return table


def _kind(name: str) -> str:
    """``prefill SNIC read`` of ``prefill-node-0 SNIC read``."""
    owner, _, resource = name.partition(" ")
    return f"{owner.split('-')[0]} {resource}"


def sparkline(shares: Sequence[float]) -> str:
    """A block for each share of 1, or, beyond 40 of them, for each stretch's mean; full height is 1 or more."""
    characters = min(len(shares), SPARKLINE_CHARACTERS)
    edges = [len(shares) * number // characters for number in range(characters + 1)] if characters else []
    return "".join(_block(fmean(shares[start:end])) for start, end in pairwise(edges))


def _block(share: float) -> str:
    return BLOCKS[min(max(0, int(share * len(BLOCKS))), len(BLOCKS) - 1)]


def _node(node: Entry) -> str:
    used = node["storage_utilization"]
    return f"{node['storage_read_bytes'] / 2**20:,.0f}" + ("" if used is None else f"  {used:.0%}")


def _caption(systems: Sequence[Entry]) -> str | None:
    if all(entry["tokens_valid"] for entry in systems):
        return None
    return f"{MARK} moves no KV bytes; its tokens mean nothing"


def _cells(row: Row, systems: Sequence[Entry]) -> list[str]:
    values = [row.value(entry) for entry in systems]
    cells: list[str] = []
    for position, value in enumerate(values):
        cells.append("–" if value is None else row.text(value))
        if position:
            cells.append(_ratio(value, values[0]) if row.compared else "")
    return cells


def _ratio(value: float | None, first: float | None) -> str:
    return "" if value is None or not first else f"{value / first:.2f}×"
