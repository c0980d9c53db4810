"""A picture of the storage NICs' load over time, one panel a system (paper Fig. 13)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualpath.errors import SettingsError
from dualpath.types import Role

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Samples = Sequence[tuple[float, int]]
"""``(t_s, read_bytes)``: seconds since the replay began, and all bytes read until then; ascending."""

WINDOWS = 60
"""The load is averaged over so many windows of the longest replay: fewer hide bursts, more are noise."""
COLOURS = {
    Role.PREFILL: ("#0b5fa5", "#4b9fe1", "#083a66", "#8cc4f0"),
    Role.DECODE: ("#d9590d", "#f29a4a", "#8f3606", "#f7c08a"),
}
UNKNOWN_ROLE = ("#3b3b3b", "#7a7a7a", "#aaaaaa")
LINE_STYLES = ("-", "--", ":", "-.")
PANEL_WIDTH_IN, PANEL_HEIGHT_IN = 9.0, 2.1


@dataclass(frozen=True, slots=True)
class SnicLoad:
    """One system's storage reads over a replay: samples and role by node, and the NICs' limit.

    Without ``bytes_per_s`` the picture shows MB/s instead of a share of the limit.
    """

    system: str
    samples: Mapping[str, Samples]
    bytes_per_s: float | None = None
    roles: Mapping[str, Role] = field(default_factory=dict)

    @property
    def end_s(self) -> float:
        return max((samples[-1][0] for samples in self.samples.values() if samples), default=0.0)


def windowed_rates(samples: Samples, window_s: float) -> list[tuple[float, float]]:
    """Bytes a second in consecutive windows from 0 on, each with its middle; the last window ends with the samples."""
    if not samples or not samples[-1][0]:
        return []
    end_s = samples[-1][0]
    windows = max(1, math.ceil(end_s / window_s - 1e-9))
    edges = [min(index * window_s, end_s) for index in range(windows + 1)]
    counts = [_counter(samples, edge_s) for edge_s in edges]
    return [
        ((start_s + stop_s) / 2, (after - before) / (stop_s - start_s))
        for (start_s, before), (stop_s, after) in pairwise(zip(edges, counts, strict=True))
    ]


def _counter(samples: Samples, t_s: float) -> float:
    """The counter at ``t_s``: 0 at the start, flat after the last sample."""
    before_s, before = 0.0, 0.0
    for sample_s, count in samples:
        if sample_s >= t_s:
            share = (t_s - before_s) / (sample_s - before_s) if sample_s > before_s else 1.0
            return before + (count - before) * share
        before_s, before = sample_s, count
    return before


def plot_snic_load(loads: Sequence[SnicLoad], path: Path) -> None:
    """Draw every system's panel on one time axis and save the picture as ``path`` (PNG).

    Raises:
        SettingsError: matplotlib is not installed.
        ValueError: there is nothing to draw.
    """
    if not any(load.samples for load in loads):
        raise ValueError("no samples of any storage NIC to draw")
    figure_class, canvas_class = _matplotlib()
    figure = figure_class(figsize=(PANEL_WIDTH_IN, 0.9 + PANEL_HEIGHT_IN * len(loads)), layout="constrained")
    panels = figure.subplots(len(loads), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    longest_s = max(load.end_s for load in loads) or 1.0
    for axes, load in zip(panels, loads, strict=True):
        _panel(axes, load, longest_s / WINDOWS)
    panels[-1].set_xlabel("time since the replay began, s")
    panels[-1].set_xlim(0, longest_s * 1.01)
    figure.suptitle("Storage NIC reads, by node", fontweight="bold")
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas_class(figure).print_png(path)


def _matplotlib() -> tuple[Any, Any]:
    """Figure and canvas classes; pyplot stays out of it, since it keeps figures in a global list."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise SettingsError("plot: drawing needs matplotlib; install it with: pip install 'dualpath[plot]'") from missing
    return Figure, FigureCanvasAgg


def _panel(axes: Axes, load: SnicLoad, window_s: float) -> None:
    unit = load.bytes_per_s or 1e6
    for (name, samples), (colour, line) in zip(load.samples.items(), _styles(load), strict=True):
        rates = windowed_rates(samples, window_s)
        label = f"{name} ({_average(load, samples)})"
        axes.plot([t_s for t_s, _ in rates], [rate / unit for _, rate in rates], label=label, color=colour, linestyle=line)
    axes.axvline(load.end_s, color="#777777", linewidth=1, linestyle=":")
    axes.set_title(f"{load.system}: {load.end_s:.1f} s", loc="left", fontsize=11)
    axes.set_ylabel("utilisation" if load.bytes_per_s else "MB/s")
    # Below 0, so that a node that reads nothing shows as a line and not as the frame.
    bottom, top = axes.get_ylim()
    axes.set_ylim(min(bottom, -0.03 * top), max(1.1, top) if load.bytes_per_s else top)
    axes.grid(alpha=0.25)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9, frameon=False)


def _average(load: SnicLoad, samples: Samples) -> str:
    rate = samples[-1][1] / load.end_s if samples and load.end_s else 0.0
    return f"mean {rate / load.bytes_per_s:.0%}" if load.bytes_per_s else f"mean {rate / 1e6:.1f} MB/s"


def _styles(load: SnicLoad) -> list[tuple[str, str]]:
    """Colour and line of each node: a colour family a role; within it shades, then line styles, tell nodes apart."""
    seen: dict[Role | None, int] = {}
    styles: list[tuple[str, str]] = []
    for name in load.samples:
        role = load.roles.get(name)
        number = seen.get(role, 0)
        seen[role] = number + 1
        shades = UNKNOWN_ROLE if role is None else COLOURS[role]
        styles.append((shades[number % len(shades)], LINE_STYLES[number // len(shades) % len(LINE_STYLES)]))
    return styles
