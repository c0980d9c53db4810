"""The processes (or, for scripts and tests, threads) that a cluster consists of."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from dualpath.control.scheduler_main import serve_store
from dualpath.control.spec import ClusterSpec, EngineSpec, write_spec
from dualpath.engine.main import run_engine
from dualpath.errors import ClusterError, DualPathError

logger = logging.getLogger(__name__)

Spec = ClusterSpec | EngineSpec


def spec_name(spec: Spec) -> str:
    """``scheduler``, or the engine's name."""
    return spec.name if isinstance(spec, EngineSpec) else "scheduler"


class Worker(Protocol):
    """One member of the cluster that the launcher started."""

    @property
    def name(self) -> str: ...

    @property
    def pid(self) -> int | None:
        """Its process, if it has one of its own."""
        ...

    async def wait(self) -> str:
        """Until it has ended; why, in words."""
        ...

    def stop(self) -> None:
        """Ask it to end."""
        ...

    def kill(self) -> None:
        """End it without asking."""
        ...


class ProcessWorker:
    """A process of its own, that dies with ours."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, spec: Spec, run_directory: Path) -> ProcessWorker:
        """Start ``spec``'s program; its stderr goes to a log file in the run directory."""
        name = spec_name(spec)
        module = "dualpath.engine.main" if isinstance(spec, EngineSpec) else "dualpath.control.scheduler_main"
        path, log = run_directory / f"{name}.json", run_directory / f"{name}.log"
        write_spec(spec, path)
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, str(path), str(os.getpid())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is ours alone: we stop them in good order
            )
        return cls(name, process, log)

    @property
    def pid(self) -> int | None:
        return self._process.pid

    async def wait(self) -> str:
        status = await self._process.wait()
        if status < 0:
            return f"killed by {signal.Signals(-status).name}"
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines and status else f"exit status {status}"

    def stop(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            self._process.send_signal(number)


class ThreadWorker:
    """The same work on a thread of this process: quick to start, but it cannot be killed."""

    def __init__(self, name: str, work: Callable[[threading.Event], None]) -> None:
        self.name = name
        self._stop = threading.Event()
        self._ended = asyncio.Event()
        self._outcome = "ended"
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, args=(work, loop), name=name, daemon=True)
        self._thread.start()

    @classmethod
    def start(cls, spec: Spec) -> ThreadWorker:
        """Run ``spec``'s program on a thread."""
        if isinstance(spec, EngineSpec):
            engine = spec
            return cls(spec.name, lambda stop: run_engine(engine, stop))
        cluster = spec
        return cls("scheduler", lambda stop: serve_store(cluster, stop))

    def _run(self, work: Callable[[threading.Event], None], loop: asyncio.AbstractEventLoop) -> None:
        try:
            work(self._stop)
        except DualPathError as error:
            self._outcome = str(error)
        except Exception as error:
            logger.exception("%s", self.name)
            self._outcome = f"{type(error).__name__}: {error}"
        finally:
            loop.call_soon_threadsafe(self._ended.set)

    @property
    def pid(self) -> int | None:
        return None

    async def wait(self) -> str:
        await self._ended.wait()
        return self._outcome

    def stop(self) -> None:
        self._stop.set()

    def kill(self) -> None:
        self._stop.set()


async def start_worker(spec: Spec, run_directory: Path, processes: bool) -> Worker:
    """Start one member of the cluster.

    Raises:
        ClusterError: the process cannot be started.
    """
    if not processes:
        return ThreadWorker.start(spec)
    try:
        return await ProcessWorker.start(spec, run_directory)
    except OSError as error:
        raise ClusterError(f"cannot start {spec_name(spec)}: {error}") from error
