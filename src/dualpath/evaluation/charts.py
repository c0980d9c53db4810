"""Pictures as inline SVG that follows the page's text colour, in light and in dark (no section of the paper)."""

from __future__ import annotations

import hashlib
import math
import re
import textwrap
from collections.abc import Sequence
from io import StringIO
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from dualpath.errors import SettingsError
from dualpath.evaluation.columns import number
from dualpath.evaluation.section import Picture, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SVG = "http://www.w3.org/2000/svg"
INK = "#010203"
"""Stands for the page's text colour until the picture is drawn: matplotlib does not know ``currentColor``."""
COLOURS = ("#2f7fd1", "#e0701b", "#2b9a62", "#c4478f", "#8b70dc", "#9a8420", "#1b98a6", "#d24b4b")
"""Each has a contrast of at least 3 with white and with the dark page."""
MARKERS = "os^Dv<>P"
WIDTH_IN, HEIGHT_IN = 7.2, 3.7
LEGEND_CHARACTERS, CATEGORY_CHARACTERS, SLANTED_CHARACTERS = 84, 96, 24
MOST_MARKERS = 40
MOST_TICKS = 9
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 10,
    "hatch.linewidth": 1.2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), INK),
}


def require_matplotlib() -> None:
    """Fail early where pictures will be drawn.

    Raises:
        SettingsError: matplotlib is not installed.
    """
    _matplotlib()


def svg(picture: Picture, prefix: str = "") -> str:
    """The picture without its title, for an HTML page; always the same for the same picture.

    ``prefix`` begins every id, so that pictures on one page do not share any; without it, one is made from the content.

    Raises:
        SettingsError: matplotlib is not installed.
    """
    matplotlib, figure_class, canvas_class = _matplotlib()
    prefix = prefix or "chart-" + hashlib.sha256(repr(picture).encode()).hexdigest()[:12]
    drawn = StringIO()
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": prefix}):
        figure = figure_class(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        figure.patch.set_visible(False)
        _draw(figure.subplots(), picture)
        _legend(figure, picture)
        canvas_class(figure).print_svg(drawn, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return _inline(drawn.getvalue(), prefix, _description(picture))


def _matplotlib() -> tuple[Any, Any, Any]:
    """matplotlib, figure and canvas classes; pyplot stays out of it, since it keeps figures in a global list."""
    try:
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise SettingsError("page: charts need matplotlib; install it with: pip install 'dualpath[plot]'") from missing
    return matplotlib, Figure, FigureCanvasSVG


def _draw(axes: Axes, picture: Picture) -> None:
    axes.set_facecolor("none")
    axes.set(xlabel=picture.x_label, ylabel=picture.y_label)
    axes.set_axisbelow(True)
    axes.grid(axis="y", alpha=0.18)
    if not any(series.points for series in picture.series):
        axes.text(0.5, 0.5, "no data", ha="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
    elif _has_categories(picture):
        _bars(axes, picture)
    else:
        _lines(axes, picture)


def _has_categories(picture: Picture) -> bool:
    return any(isinstance(x, str) for series in picture.series for x, _ in series.points)


def _lines(axes: Axes, picture: Picture) -> None:
    columns: list[tuple[list[float], list[float]]] = []
    for series, (colour, marker) in zip(picture.series, _looks(picture), strict=True):
        points = [(float(x), y) for x, y in series.points if _drawable(float(x), picture.log_x) and _drawable(y, picture.log_y)]
        xs, ys = [x for x, _ in points], [y for _, y in points]
        columns.append((xs, ys))
        axes.plot(
            xs,
            ys,
            color=colour,
            marker=marker,
            markersize=5.5,
            markevery=max(1, len(xs) // MOST_MARKERS * 4),
            markerfacecolor="none" if series.paper else colour,
            linestyle=(0, (4, 3)) if series.paper else "-",
            linewidth=1.4 if series.paper else 1.9,
        )
    _scale(axes, "x", [x for xs, _ in columns for x in xs], picture.log_x)
    _scale(axes, "y", [y for _, ys in columns for y in ys], picture.log_y)


def _drawable(value: float, logarithmic: bool) -> bool:
    return math.isfinite(value) and (value > 0 or not logarithmic)


def _bars(axes: Axes, picture: Picture) -> None:
    categories = list(dict.fromkeys(_category(x) for series in picture.series for x, _ in series.points))
    width = 0.8 / len(picture.series)
    heights: list[float] = []
    for place, (series, (colour, _)) in enumerate(zip(picture.series, _looks(picture), strict=True)):
        offset = (place - (len(picture.series) - 1) / 2) * width
        points = [(categories.index(_category(x)) + offset, y) for x, y in series.points if _drawable(y, picture.log_y)]
        heights += [y for _, y in points]
        look: dict[str, Any] = {"facecolor": "none", "hatch": "////"} if series.paper else {"facecolor": colour}
        axes.bar([x for x, _ in points], [y for _, y in points], width * 0.92, edgecolor=colour, **look)
    _scale(axes, "y", heights, picture.log_y)
    _name_categories(axes, categories)


def _name_categories(axes: Axes, categories: Sequence[str]) -> None:
    """Below the bars: in lines as wide as there is room for, slanting where there are many."""
    axes.tick_params(axis="x", length=0)
    if len(categories) <= MOST_TICKS:
        characters = max(8, CATEGORY_CHARACTERS // len(categories))
        axes.set_xticks(range(len(categories)), [textwrap.fill(one, characters) for one in categories])
        return
    names = [textwrap.shorten(one, SLANTED_CHARACTERS, placeholder=" …") for one in categories]
    axes.set_xticks(range(len(categories)), names, rotation=40, ha="right", rotation_mode="anchor", fontsize=9)


def _category(x: float | str) -> str:
    return x if isinstance(x, str) else number(x)


def _scale(axes: Axes, which: str, values: Sequence[float], logarithmic: bool) -> None:
    """Plain numbers at the ticks; a linear axis begins at 0 unless that would flatten the curves."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    if logarithmic and values:
        axes.set(**{f"{which}scale": "log"})
        axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=MOST_TICKS))
        if which == "x" and _far_apart(values):
            axis.set_ticks(sorted(set(values)))
        axis.set_minor_locator(NullLocator())
    elif values and 0 <= min(values) < max(values) / 2:
        axes.set(**{f"{which}lim": (0, None)})
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def _far_apart(values: Sequence[float]) -> bool:
    """Whether every value can have its own tick on a logarithmic axis."""
    logs = sorted({math.log(value) for value in values})
    span = logs[-1] - logs[0]
    return 1 < len(logs) <= MOST_TICKS and all(b - a > span / 14 for a, b in pairwise(logs))


def _looks(picture: Picture) -> list[tuple[str, str]]:
    """Colour and marker of each series; the paper's are those of ours with the same name."""
    return [(COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]) for place in _places(picture)]


def _places(picture: Picture) -> list[int]:
    """Of each series' name among all names."""
    names = list(dict.fromkeys(series.name for series in picture.series))
    return [names.index(series.name) for series in picture.series]


def _label(series: Series) -> str:
    if not series.paper or "paper" in series.name.lower():
        return series.name
    return f"{series.name} (paper)" if series.name else "paper"


def _legend(figure: Any, picture: Picture) -> None:
    """Above the axes; the paper's series beside ours of the same name."""
    axes = figure.axes[0]
    places = _places(picture)
    entries = sorted(zip(places, axes.containers or axes.lines, map(_label, picture.series), strict=False), key=itemgetter(0))
    labels = [label for _, _, label in entries]
    if not any(labels):
        return
    fitting = max(1, LEGEND_CHARACTERS // (max(map(len, labels)) + 8))
    columns = min(len(labels) if len(labels) <= fitting else len(set(places)), fitting)
    handles = [handle for _, handle, _ in entries]
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, frameon=False, fontsize=9, handlelength=3)


def _description(picture: Picture) -> str:
    kind = "bars" if _has_categories(picture) else "lines"
    names = ", ".join(filter(None, map(_label, picture.series)))
    return f"{picture.title}: {picture.y_label} over {picture.x_label}, {kind}" + (f" of {names}" if names else "")


def _inline(text: str, prefix: str, description: str) -> str:
    """matplotlib's file as an element of a page: no metadata, no style sheet, ids with the prefix where they are used."""
    drawn = ElementTree.fromstring(text)
    used = set(re.findall(r"#([\w-]+)", " ".join(value for one in drawn.iter() for value in one.attrib.values())))
    look = "width:100%;height:auto;stroke-linejoin:round;font-family:system-ui,sans-serif"
    root = ElementTree.Element(
        "svg",
        {"xmlns": SVG, "viewBox": drawn.attrib["viewBox"], "role": "img", "aria-label": description, "style": look},
    )
    root.extend(_cleaned(child, prefix, used) for child in drawn if _kept(child))
    return ElementTree.tostring(root, encoding="unicode")


def _kept(element: ElementTree.Element) -> bool:
    return not element.tag.endswith("}metadata") and not any(child.tag.endswith("}style") for child in element)


def _cleaned(element: ElementTree.Element, prefix: str, used: set[str]) -> ElementTree.Element:
    cleaned = ElementTree.Element(element.tag.rpartition("}")[2])
    cleaned.text = element.text and (element.text if element.text.strip() else None)
    for name, value in element.attrib.items():
        if name == "id":
            if value in used:
                cleaned.set("id", f"{prefix}-{value}")
        else:
            cleaned.set(name.rpartition("}")[2], _cleaned_value(value, prefix))
    cleaned.extend(_cleaned(child, prefix, used) for child in element)
    return cleaned


def _cleaned_value(value: str, prefix: str) -> str:
    """With the page's text colour and fonts, and references to the ids with the prefix."""
    value = value.replace(INK, "currentColor")
    value = re.sub(r"font: ([\d.]+px) [^;]*", r"font-size: \1", value)
    return re.sub(r"^#|(?<=url\()#", f"#{prefix}-", value)
