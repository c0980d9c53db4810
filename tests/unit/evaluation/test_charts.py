"""Pictures as SVG."""

import math
import re
import sys
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from dualpath.errors import SettingsError
from dualpath.evaluation.charts import COLOURS, require_matplotlib, svg
from dualpath.evaluation.section import Picture, Series

LINES = Picture(
    "JCT <by> agents",
    "agents",
    "JCT (s) & more, $x_1$",
    [
        Series("Basic", [(512, 2900.0), (2048, 10100.0), (4096, 19500.0)]),
        Series("Basic", [(512, 2800.0), (4096, 19000.0)], paper=True),
        Series("<DualPath>", [(512, 2100.0), (4096, 10400.0)]),
    ],
)
BARS = Picture(
    "Ablation",
    "system",
    "share",
    [Series("JCT", [("Basic", 1.0), ("all", 0.55)]), Series("JCT", [("Basic", 1.0), ("other", 0.5)], paper=True)],
)
PICTURES = [
    LINES,
    BARS,
    replace(LINES, log_x=True, log_y=True),
    replace(BARS, log_y=True),
    Picture("no series", "x", "y", []),
    Picture("no points", "x", "y", [Series("", []), Series("empty", [])]),
    Picture("nothing to draw", "x", "y", [Series("a", [(0.0, math.nan), (1.0, -1.0)])], log_x=True, log_y=True),
    Picture("one point", "x", "y", [Series("a", [(3.0, 4.0)]), Series("b", [(1.0, 2.0), (2.0, math.inf)])], log_x=True),
    Picture("no bar", "x", "y", [Series("a", [("one", 0.0)])], log_y=True),
    Picture("many", "t", "y", [Series(f"{n}" * 30, [(float(t), t % 7 + n) for t in range(300)]) for n in range(12)]),
    Picture("many bars", "t", "y", [Series("a", [(f"a long category {t}" * 3, float(t)) for t in range(20)])]),
    Picture("mixed", "t", "y", [Series("a", [(1024, 1.0), ("no limit", 2.0)])]),
]


def texts(drawn: str) -> list[str]:
    return ["".join(one.itertext()) for one in ElementTree.fromstring(drawn).iter() if one.tag.endswith("}text")]


def ids(drawn: str) -> set[str]:
    return set(re.findall(r' id="([^"]*)"', drawn))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.title)
def test_every_picture_is_well_formed_and_the_same_again(picture: Picture) -> None:
    drawn = svg(picture, "p")
    assert ElementTree.fromstring(drawn).attrib["role"] == "img"
    assert svg(picture, "p") == drawn


@pytest.mark.parametrize("picture", PICTURES[:2], ids=lambda picture: picture.title)
def test_references_lead_to_ids_of_the_picture_itself(picture: Picture) -> None:
    drawn = svg(picture, "fig7-1")
    assert set(re.findall(r'(?:href="|url\()#([^")]*)', drawn)) == ids(drawn)
    assert all(one.startswith("fig7-1-") for one in ids(drawn))


def test_pictures_share_no_ids() -> None:
    assert ids(svg(LINES))
    assert not ids(svg(LINES)) & ids(svg(replace(LINES, title="other")))
    assert not ids(svg(LINES, "a-1")) & ids(svg(LINES, "a-2"))


def test_texts_stay_texts() -> None:
    found = texts(svg(LINES))
    assert {"agents", "JCT (s) & more, $x_1$", "Basic", "Basic (paper)", "<DualPath>", "20,000"} <= set(found)


def test_a_series_that_says_paper_is_not_told_twice() -> None:
    series = [Series("the paper's", [(1, 1.0)], paper=True), Series("", [(2, 2.0)], paper=True)]
    assert {"the paper's", "paper"} <= set(texts(svg(Picture("t", "x", "y", series))))


def test_the_papers_lines_are_dashed_in_the_colour_of_ours() -> None:
    lines = [
        one for one in re.findall(r'style="([^"]*)"', svg(LINES)) if f"stroke: {COLOURS[0]}" in one and "fill: none" in one
    ]
    assert {"stroke-dasharray" in one for one in lines} == {False, True}
    assert any(f"stroke: {COLOURS[1]}" in one for one in re.findall(r'style="([^"]*)"', svg(LINES)))


def test_the_papers_bars_are_hatched() -> None:
    assert svg(BARS).count("<pattern") == 1
    assert "<pattern" not in svg(replace(BARS, series=BARS.series[:1]))


def test_bars_have_their_categories_in_order() -> None:
    assert [text for text in texts(svg(BARS)) if text in ("Basic", "all", "other")] == ["Basic", "all", "other"]


def test_a_logarithmic_axis_names_its_points_if_they_are_few() -> None:
    assert {"512", "2,048", "4,096"} <= set(texts(svg(replace(LINES, log_x=True))))


def test_it_takes_the_pages_text_colour_and_brings_no_style_sheet() -> None:
    drawn = svg(LINES)
    assert "currentColor" in drawn
    assert not re.search(r"<style|<metadata|<\?xml|<!DOCTYPE|#000000|#010203|font:", drawn)


def test_it_says_what_it_shows() -> None:
    label = ElementTree.fromstring(svg(LINES)).attrib["aria-label"]
    assert label.startswith("JCT <by> agents: JCT (s)")
    assert label.endswith("lines of Basic, Basic (paper), <DualPath>")


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    require_matplotlib()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SettingsError, match=r"dualpath\[plot\]"):
        require_matplotlib()
