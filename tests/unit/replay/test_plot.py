"""The picture of the storage NICs' load."""

import struct
import sys
import zlib
from pathlib import Path

import pytest

from dualpath.errors import SettingsError
from dualpath.replay.plot import SnicLoad, plot_snic_load, windowed_rates
from dualpath.types import Role

BUSY = [(0.0, 0), (5.0, 500), (10.0, 1000)]
IDLE = [(0.0, 0), (10.0, 0)]
ROLES = {"p": Role.PREFILL, "d": Role.DECODE}


def test_rates_interpolate_the_counter() -> None:
    assert windowed_rates([(0.0, 0), (2.0, 100), (4.0, 500)], 1.0) == [(0.5, 50.0), (1.5, 50.0), (2.5, 200.0), (3.5, 200.0)]


def test_the_last_window_ends_with_the_samples() -> None:
    assert windowed_rates([(0.0, 0), (2.5, 250)], 1.0) == [(0.5, 100.0), (1.5, 100.0), (2.25, 100.0)]


def test_a_first_sample_after_the_start_counts_from_zero() -> None:
    assert windowed_rates([(1.0, 10), (2.0, 10)], 1.0) == [(0.5, 10.0), (1.5, 0.0)]


def test_no_samples_no_rates() -> None:
    assert windowed_rates([], 1.0) == windowed_rates([(0.0, 0)], 1.0) == []


def test_bytes_are_neither_lost_nor_invented() -> None:
    samples = [(0.0, 0), (0.7, 30), (1.9, 31), (2.0, 500), (5.3, 900)]
    window_s = 0.4
    rates = windowed_rates(samples, window_s)
    widths = [window_s] * (len(rates) - 1) + [5.3 - window_s * (len(rates) - 1)]
    assert sum(rate * width for (_, rate), width in zip(rates, widths, strict=True)) == pytest.approx(900)


def pixels(path: Path) -> tuple[int, int, bytes]:
    """Width, height and unpacked image data of a PNG."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    body, position = b"", 8
    while position < len(data):
        (length,) = struct.unpack(">I", data[position : position + 4])
        if data[position + 4 : position + 8] == b"IDAT":
            body += data[position + 8 : position + 8 + length]
        position += 12 + length
    return width, height, zlib.decompress(body)


def test_picture_has_a_panel_a_system_and_shows_the_data(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    one = SnicLoad("basic", {"p": BUSY, "d": IDLE}, 100.0, ROLES)
    other = SnicLoad("dualpath", {"p": IDLE, "d": BUSY}, 100.0, ROLES)
    plot_snic_load([one], tmp_path / "new" / "one.png")
    plot_snic_load([one, other], tmp_path / "two.png")
    plot_snic_load([SnicLoad("basic", {"p": IDLE, "d": IDLE}, 100.0, ROLES)], tmp_path / "idle.png")
    single, double, idle = (pixels(tmp_path / name) for name in ("new/one.png", "two.png", "idle.png"))
    assert single[0] == double[0] > 600
    assert double[1] > single[1] + 100
    assert single[:2] == idle[:2]
    assert single[2] != idle[2]


def test_without_a_limit_the_picture_shows_bytes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot_snic_load([SnicLoad("basic", {f"node-{n}": BUSY for n in range(14)})], tmp_path / "free.png")
    assert pixels(tmp_path / "free.png")[0] > 600


def test_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no samples"):
        plot_snic_load([SnicLoad("basic", {})], tmp_path / "none.png")


def test_a_missing_matplotlib_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SettingsError, match=r"pip install 'dualpath\[plot\]'"):
        plot_snic_load([SnicLoad("basic", {"p": BUSY})], tmp_path / "none.png")
    assert not list(tmp_path.iterdir())
