"""A replay's progress bar: agents done, turns a second, each node's storage NIC load."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from dualpath.replay.driver import Progress as ReplayState
from dualpath.settings import Settings


class ReplayProgress:
    """Shows one system's replay while it runs; context manager."""

    def __init__(self, settings: Settings, console: Console) -> None:
        self._bandwidth = settings.storage.snic_bandwidth
        self._name = settings.cluster.system
        self._bar = Progress(
            TextColumn("{task.description:>15}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("agents {task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._task: TaskID = self._bar.add_task(self._name, total=None, state="")

    def __enter__(self) -> ReplayProgress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def show(self, state: ReplayState) -> None:
        """Take the newest state."""
        turns = state.turns_done + state.turns_failed
        rate = turns / state.elapsed_s if state.elapsed_s > 0 else 0.0
        failed = f", {state.turns_failed} failed" if state.turns_failed else ""
        loads = " ".join(f"{_short(node)} {self._load(read)}" for node, read in sorted(state.snic_bytes_per_s.items()))
        self._bar.update(
            self._task,
            total=state.agents,
            completed=state.agents_done,
            state=f"{turns} turns {rate:.1f}/s{failed} SNIC {loads}",
        )

    def _load(self, bytes_per_s: float) -> str:
        if self._bandwidth is None:
            return f"{bytes_per_s / 1e6:.0f} MB/s"
        return f"{min(1.0, bytes_per_s / self._bandwidth):.0%}"


def _short(node: str) -> str:
    """``P0`` or ``D1`` for ``prefill-node-0`` or ``decode-node-1``."""
    return node[0].upper() + node.rsplit("-", 1)[-1]
