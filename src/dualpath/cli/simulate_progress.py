"""A simulation's progress bar: agents done, turns a second, virtual time."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dualpath.sim.run import SimProgress


class SimulateProgress:
    """Shows one system's simulation while it runs; context manager."""

    def __init__(self, name: str, console: Console) -> None:
        self._bar = Progress(
            TextColumn("{task.description:>15}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("agents {task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._bar.add_task(name, total=None, state="")

    def __enter__(self) -> SimulateProgress:
        self._started_s = time.monotonic()
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def show(self, state: SimProgress) -> None:
        """Take the newest state."""
        elapsed_s = time.monotonic() - self._started_s
        rate = state.turns_done / elapsed_s if elapsed_s > 0 else 0.0
        text = f"{state.turns_done:,} turns {rate:,.0f}/s virtual {state.virtual_s:,.0f} s"
        self._bar.update(self._task, total=state.agents, completed=state.agents_done, state=text)
