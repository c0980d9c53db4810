"""Least squares for the times of prefill and decode, in plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from dualpath.costmodel.attention import AttentionTime, pairs

_SINGULAR = 1e-12


class AttentionSample(NamedTuple):
    """One measurement: attention over all layers took ``seconds`` for ``new`` tokens behind ``cached`` ones."""

    cached: int
    new: int
    seconds: float


class DecodeSample(NamedTuple):
    """One measurement: a decode step of ``requests`` sequences with ``context_tokens`` in all took ``seconds``."""

    requests: int
    context_tokens: int
    seconds: float


def fit(samples: Sequence[AttentionSample]) -> AttentionTime:
    """The non-negative coefficients with the least squared relative error; ``floor_s`` is the shortest time seen.

    Relative, because a batch is filled from requests of very unequal sizes and each prediction should be off by few
    percent. With three coefficients the non-negative optimum is the best feasible solution over their subsets.

    Raises:
        ValueError: no samples, or one without a positive time.
    """
    rows = [[1.0, new, pairs(cached, new)] for cached, new, _ in samples]
    fixed, token, pair = _fitted(rows, [sample.seconds for sample in samples])
    return AttentionTime(fixed, token, pair, floor_s=min(sample.seconds for sample in samples))


def fit_decode(samples: Sequence[DecodeSample]) -> tuple[float, float, float]:
    """Seconds of a decode step: fixed, a sequence, and a token of context, fitted as ``fit`` does.

    Raises:
        ValueError: no samples, or one without a positive time.
    """
    rows = [[1.0, requests, context] for requests, context, _ in samples]
    step, request, context = _fitted(rows, [sample.seconds for sample in samples])
    return step, request, context


def relative_error(attention: AttentionTime, samples: Sequence[AttentionSample]) -> float:
    """Mean of ``|predicted − measured| / measured``."""
    errors = (abs(attention(one.cached, one.new) - one.seconds) / one.seconds for one in samples)
    return sum(errors) / len(samples)


def _fitted(rows: Iterable[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Non-negative coefficients of the rows' columns, with the least squared relative error."""
    if not seconds or min(seconds) <= 0.0:
        raise ValueError("a fit needs samples with positive times")
    relative = [[value / time for value in row] for row, time in zip(rows, seconds, strict=True)]
    scales = [max(column) or 1.0 for column in zip(*relative, strict=True)]
    scaled = [[value / scale for value, scale in zip(row, scales, strict=True)] for row in relative]
    return [value / scale for value, scale in zip(_non_negative(scaled), scales, strict=True)]


def _non_negative(rows: Sequence[Sequence[float]]) -> list[float]:
    """``x >= 0`` that minimises ``|rows · x − 1|``."""
    width = len(rows[0])
    candidates = [[0.0] * width]
    for size in range(1, width + 1):
        for columns in combinations(range(width), size):
            solution = _least_squares([[row[column] for column in columns] for row in rows])
            if solution is not None and min(solution) >= 0.0:
                weights = dict(zip(columns, solution, strict=True))
                candidates.append([weights.get(column, 0.0) for column in range(width)])
    return min(candidates, key=lambda candidate: _squared_error(rows, candidate))


def _squared_error(rows: Sequence[Sequence[float]], solution: Sequence[float]) -> float:
    return sum((sum(a * x for a, x in zip(row, solution, strict=True)) - 1.0) ** 2 for row in rows)


def _least_squares(rows: Sequence[Sequence[float]]) -> list[float] | None:
    """The solution of the normal equations of ``rows · x = 1``; None if they have no unique one."""
    width = len(rows[0])
    matrix = [
        [sum(row[i] * row[j] for row in rows) for j in range(width)] + [sum(row[i] for row in rows)] for i in range(width)
    ]
    largest = max(matrix[i][i] for i in range(width))
    for column in range(width):
        pivot = max(range(column, width), key=lambda row: abs(matrix[row][column]))
        if abs(matrix[pivot][column]) <= _SINGULAR * largest:
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        for row in range(width):
            if row != column:
                factor = matrix[row][column] / matrix[column][column]
                matrix[row] = [a - factor * b for a, b in zip(matrix[row], matrix[column], strict=True)]
    return [matrix[row][width] / matrix[row][row] for row in range(width)]
