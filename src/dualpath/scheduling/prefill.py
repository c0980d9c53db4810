"""Which prefill engine gets the next request: Algorithm 1 (paper section 6)."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from dualpath.scheduling.readside import ReadQueue


class PrefillCandidate(Protocol):
    """A prefill engine as Algorithm 1 sees it.

    ``tokens`` is ``tok_e``; ``allowance`` the most requests it may hold at once (unlimited but for one that has just
    come back).
    """

    tokens: int
    requests: int
    allowance: int
    read_queue: ReadQueue


_tokens = attrgetter("tokens")
PrefillEngine = TypeVar("PrefillEngine", bound=PrefillCandidate)


class PrefillChoice(Generic[PrefillEngine]):
    """Algorithm 1 over the engines of one group, for one fetch.

    Engines above ``beta_tokens`` (C1) get nothing. The engine with the fewest tokens is chosen among those whose node's
    read queue is at most α (C2), else among the others (C3). Engines are kept in order of their tokens, so that a
    choice looks at few of them; of equal ones the one that came to its tokens first.
    """

    def __init__(self, engines: Iterable[PrefillEngine], alpha_s: float, beta_tokens: float) -> None:
        self._alpha_s = alpha_s
        self._beta_tokens = beta_tokens
        open_engines = [engine for engine in engines if engine.tokens <= beta_tokens and engine.requests < engine.allowance]
        self._engines = sorted(open_engines, key=_tokens)

    def engine(self) -> PrefillEngine | None:
        """The engine for the next request; None if all are in C1."""
        alpha_s = self._alpha_s
        for engine in self._engines:
            queue = engine.read_queue
            if queue.unread_tokens <= alpha_s * queue.tokens_per_s:
                return engine
        return self._engines[0] if self._engines else None

    def assigned(self, engine: PrefillEngine) -> None:
        """``engine`` has got a request and its tokens have grown; one that has passed β, or is at its allowance, leaves."""
        engines, tokens = self._engines, engine.tokens
        engines.remove(engine)
        if tokens <= self._beta_tokens and engine.requests < engine.allowance:
            position = len(engines)  # bisection with a key would take longer than this loop, which starts near the place
            while position and engines[position - 1].tokens > tokens:
                position -= 1
            engines.insert(position, engine)


def prefill_engine(engines: Iterable[PrefillEngine], alpha_s: float, beta_tokens: float) -> PrefillEngine | None:
    """What ``PrefillChoice(engines, alpha_s, beta_tokens).engine()`` gives, for a fetch that places one request only."""
    short: PrefillEngine | None = None
    long: PrefillEngine | None = None
    for engine in engines:
        tokens = engine.tokens
        if tokens <= beta_tokens and engine.requests < engine.allowance:
            queue = engine.read_queue
            if queue.unread_tokens <= alpha_s * queue.tokens_per_s:
                if short is None or tokens < short.tokens:
                    short = engine
            elif long is None or tokens < long.tokens:
                long = engine
    return long if short is None else short
