"""The scheduler of a live cluster, with or without a log of its decisions (paper section 6)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dualpath.clock import Clock
from dualpath.control.spec import ClusterSpec
from dualpath.errors import SettingsError
from dualpath.scheduling.central import CentralScheduler
from dualpath.scheduling.limits import scheduler_limits
from dualpath.scheduling.log import RecordingScheduler


@contextmanager
def open_scheduler(spec: ClusterSpec, clock: Clock) -> Iterator[CentralScheduler | RecordingScheduler]:
    """The central scheduler that ``spec`` asks for; its log, if any, is closed with it.

    Raises:
        SettingsError: the decision log cannot be written.
    """
    limits = scheduler_limits(
        spec.settings, storage_tokens_per_s=spec.storage_tokens_per_s, prefill_tokens_per_s=spec.prefill_tokens_per_s
    )
    path = spec.settings.cluster.decision_log
    if path is None:
        yield CentralScheduler(limits, clock)
        return
    try:
        log = open(path, "w", encoding="utf-8")  # noqa: SIM115 - closed below, after the scheduler's life
    except OSError as error:
        raise SettingsError(f"decision_log: cannot write {path}: {error.strerror}") from error
    with log:
        yield RecordingScheduler(limits, clock, lambda line: print(line, file=log))
