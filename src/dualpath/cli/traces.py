"""Where the command line gets trajectories from: a trace file, or a generated set of the paper's."""

from __future__ import annotations

import random
from pathlib import Path

from dualpath.errors import TraceError
from dualpath.knobs import did_you_mean
from dualpath.workload.synthesis import TABLE_2, synthesise
from dualpath.workload.trace import read_trace
from dualpath.workload.trajectory import Trajectory

GENERATED = "table2:"
"""A source that begins so names one of the paper's sets: ``table2:64K``."""
GENERATED_TRAJECTORIES = 500


def read_trajectories(source: str, seed: int = 0) -> list[Trajectory]:
    """The trajectories of a trace file in any known format, or of a generated set.

    Raises:
        TraceError: the file cannot be read or has holes; or there is no such set.
    """
    if source.startswith(GENERATED):
        name = source.removeprefix(GENERATED)
        if name not in TABLE_2:
            raise TraceError(f"{source}: no such set{did_you_mean(name, TABLE_2)}; there are {', '.join(TABLE_2)}")
        return synthesise(name, GENERATED_TRAJECTORIES, random.Random(seed))
    path = Path(source)
    try:
        lines = path.read_text().splitlines(keepends=True)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8 text: {error}") from error
    return read_trace(lines, str(path))
