"""What every process of a cluster does: die with its parent, log with its name, and say in one line why it ends."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from dualpath.errors import DualPathError

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent``, which started it, ends, however that happens (Linux)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already: importing takes seconds
        os.kill(os.getpid(), signal.SIGKILL)


def exit_now() -> NoReturn:
    """End a process that has released everything; an interpreter with PyTorch in it takes a second to come down."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def log_to_stderr(name: str) -> None:
    """Log lines carry the process's name; the launcher sends stderr to the run directory."""
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {name} %(levelname)s %(message)s", stream=sys.stderr)


def run_to_end(work: Callable[[], None]) -> None:
    """Run a process's work; an error that this project raises on purpose becomes the last line of its log."""
    try:
        work()
    except DualPathError as error:
        sys.exit(str(error))
