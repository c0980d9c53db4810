"""Real traces as data sets, cut where no turn could be served any more."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from dualpath.errors import TraceError
from dualpath.workload.trace import read_trace
from dualpath.workload.trajectory import Trajectory, clipped

FILE = "file:"
"""A data set whose name begins so is a trace file."""
WINDOW_TOKENS = 163_840
"""Longest context of DeepSeek-V3.2: what a session says beyond it, no cluster can serve."""
VARIABLE, DEFAULT_FOLDER = "DUALPATH_TRACES", "../shared/traces"


class Cut(NamedTuple):
    """Trajectories within the window, and what was cut off: turns, and trajectories as a whole."""

    trajectories: list[Trajectory]
    turns_dropped: int
    dropped: int


def folder() -> Path:
    """Where real traces are, if anywhere."""
    return Path(os.environ.get(VARIABLE, DEFAULT_FOLDER))


@lru_cache(maxsize=4)
def trace(dataset: str) -> Cut:
    """A trace file's trajectories, each cut before its first turn beyond the window.

    Raises:
        TraceError: the file cannot be read, has holes, or nothing in it fits.
    """
    path = Path(dataset.removeprefix(FILE))
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    pairs = [clipped(one, WINDOW_TOKENS) for one in read_trace(lines, str(path))]
    kept = [one for one, _ in pairs if one is not None]
    if not kept:
        raise TraceError(f"{path}: no trajectory has a first turn within {WINDOW_TOKENS} tokens")
    return Cut(kept, sum(dropped for _, dropped in pairs), len(pairs) - len(kept))
