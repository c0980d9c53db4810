"""LocalCluster: a whole cluster on this machine, as a context manager for scripts, rollouts and tests."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from dualpath.clock import Clock, MonotonicClock
from dualpath.cluster.build import build_spec
from dualpath.cluster.launcher import Launcher
from dualpath.control.client import ClientProfile, ClusterClient
from dualpath.control.spec import ClusterSpec
from dualpath.control.turns import ClusterStatus, SamplingParams, TokenEvent, TurnFinished
from dualpath.errors import RequestFailed, SettingsError
from dualpath.knobs import with_knobs
from dualpath.models.registry import describe_model
from dualpath.scheduling.baselines import apply_system
from dualpath.settings import Settings
from dualpath.text.tokenizer import Tokenizer

T = TypeVar("T")

LAST_TASKS_S = 1.0
"""What still runs when everything is closed gets so long to notice."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One turn's outcome. ``text`` is None for a model without a tokenizer; times are seconds from the submission."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    events: tuple[TokenEvent, ...]
    text: str | None
    finished: TurnFinished
    token_times_s: tuple[float, ...]

    @property
    def finish_reason(self) -> str:
        return self.finished.finish_reason

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens whose KV came from the store."""
        return self.finished.cached_tokens


class LocalCluster:
    """A cluster of ``prefill`` + ``decode`` engines on this machine.

    ::

        with LocalCluster("models/tiny", prefill=1, decode=2, system="dualpath") as cluster:
            print(cluster.generate("Hello", max_tokens=8).text)

    Args:
        model: a Hugging Face directory.
        system: a preset (``basic``, ``dualpath``, ``dualpath-split``, ``oracle``), or None to take ``settings`` as they are.
        settings: all sections; ``knobs`` are single settings by name (``block_tokens=16``, ``snic_bandwidth="64MB/s"``) on
            top of them.
        processes: False runs the members as threads of this process: quick to start, for tests and small scripts.

    Raises:
        ModelError, SettingsError, ClusterError: on entry.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        system: str | None = "dualpath",
        settings: Settings | None = None,
        processes: bool = True,
        **knobs: Any,
    ) -> None:
        chosen = Settings() if settings is None else settings
        if system is not None:
            chosen = apply_system(chosen, system)
        self.settings = with_knobs(chosen, knobs)
        self._model = Path(model)
        self._processes = processes
        self._thread: threading.Thread | None = None
        self._open = False
        self._lock = threading.Lock()

    def __enter__(self) -> LocalCluster:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> LocalCluster:
        await asyncio.to_thread(self.open)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def open(self) -> None:
        """Start the cluster; returns when it serves."""
        self._run_directory = Path(tempfile.mkdtemp(prefix="dualpath-"))
        try:
            self.spec = self._build()
            self.tokenizer = self._tokenizer()
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="dualpath-cluster", daemon=True)
            self._thread.start()
            self._open = True
            self.run(self._start())
        except BaseException:
            self._clean_up()
            raise

    def close(self) -> None:
        """End every turn, then every process. Idempotent."""
        if self._thread is not None:
            self.run(self._stop())
        self._clean_up()

    def _build(self) -> ClusterSpec:
        store = self.settings.storage.store
        directory = self._run_directory / "store" if store is None else Path(store).absolute()
        return build_spec(self.settings, self._model.absolute(), self._run_directory, directory)

    def _tokenizer(self) -> Tokenizer | None:
        return Tokenizer.from_directory(self._model) if (self._model / "tokenizer.json").exists() else None

    async def _start(self) -> None:
        clock = MonotonicClock()
        self.launcher = Launcher(self.spec, clock, processes=self._processes)
        await self.launcher.start()
        try:
            await self._connect(clock)
        except BaseException:
            await self.launcher.close()
            raise

    async def _connect(self, clock: Clock) -> None:
        self.client = ClusterClient(client_profile(self.spec), clock)
        await self.client.start()
        try:
            await self.client.wait_ready(30.0)
        except BaseException:
            await self.client.close()
            raise

    async def _stop(self) -> None:
        await self.client.close()
        await self.launcher.close()

    def _clean_up(self) -> None:
        if self._thread is not None:
            with self._lock:
                self._open = False
            asyncio.run_coroutine_threadsafe(_end_tasks(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._thread = None
        shutil.rmtree(self._run_directory, ignore_errors=True)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the cluster's loop and wait for it; an exception here (Ctrl-C) cancels it, and still waits."""
        future = self._begin(work)
        try:
            return future.result()
        except BaseException:
            if future.cancel():
                self._begin(_cancelled_tasks_end()).result()
            raise

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the cluster's loop.

        Raises:
            RequestFailed: the cluster is closed.
        """
        with self._lock:
            if self._open:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise RequestFailed("the cluster is closed")

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the cluster's loop, from any thread or signal handler."""
        self._loop.call_soon_threadsafe(function)

    # --- turns --------------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams | None = None,
        *,
        timeout_s: float | None = None,
        **params: Any,
    ) -> Generation:
        """Run one turn and wait for it; ``params`` are fields of SamplingParams. May be called from several threads.

        Raises:
            InvalidRequest, Overloaded, DeadlineExceeded, RequestFailed: as ``TurnClient.generate``.
        """
        return self.run(self._generate(prompt, sampling or SamplingParams(**params), timeout_s))

    async def generate_async(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams | None = None,
        *,
        timeout_s: float | None = None,
        **params: Any,
    ) -> Generation:
        """As ``generate``, from any asyncio loop; cancelling it cancels the turn on both sides."""
        work = self._generate(prompt, sampling or SamplingParams(**params), timeout_s)
        return await asyncio.wrap_future(self._begin(work))

    async def _generate(self, prompt: str | Sequence[int], sampling: SamplingParams, timeout_s: float | None) -> Generation:
        tokens = self._encode(prompt)
        clock = MonotonicClock()
        started = clock.now()
        events: list[TokenEvent] = []
        times: list[float] = []
        stream = self.client.generate(tokens, sampling, timeout_s=timeout_s)
        try:
            async for event in stream:
                if isinstance(event, TurnFinished):
                    output = tuple(one.token for one in events)
                    text = None if self.tokenizer is None else self.tokenizer.decode(output)
                    return Generation(tuple(tokens), output, tuple(events), text, event, tuple(times))
                events.append(event)
                times.append(clock.now() - started)
        finally:
            await stream.aclose()
        raise AssertionError("a turn's last event is TurnFinished")

    def _encode(self, prompt: str | Sequence[int]) -> Sequence[int]:
        if not isinstance(prompt, str):
            return prompt
        if self.tokenizer is None:
            raise SettingsError(f"{self._model} has no tokenizer.json; give the prompt as token ids")
        return self.tokenizer.encode(prompt)

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return self.client.vocab_size

    def status(self) -> ClusterStatus:
        """The cluster as its scheduler sees it."""
        return self.run(self.client.status())


async def _end_tasks() -> None:
    """Let what still runs on this loop come to its end, or end it."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=LAST_TASKS_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)


async def _cancelled_tasks_end() -> None:
    """Until every task that has been cancelled has ended."""
    cancelled = [task for task in asyncio.all_tasks() if task.cancelling()]
    await asyncio.gather(*cancelled, return_exceptions=True)


def client_profile(spec: ClusterSpec) -> ClientProfile:
    """What a client has to know of the cluster of ``spec``."""
    shape = describe_model(Path(spec.model_directory), spec.settings.model.dtype)
    return ClientProfile(
        run_directory=Path(spec.run_directory),
        namespace=spec.namespace.digest,
        block_tokens=spec.geometry.block_tokens,
        vocab_size=shape.vocab_size,
        max_context_tokens=spec.max_context_tokens,
        eos_token_ids=shape.eos_token_ids,
        max_pending=spec.settings.server.max_pending,
        deadlines=spec.settings.deadlines,
    )
