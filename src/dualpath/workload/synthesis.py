"""Generated trajectories: sets with the five averages of Table 2 at once, and small ones for a demonstration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import NormalDist, fmean

from dualpath.workload.randomness import Random
from dualpath.workload.trajectory import Trajectory, Turn

SHARE_SPREAD, SHARE_TREND = 0.8, -0.4
"""Generated share: its spread between trajectories, and how it falls with their number of turns (in logits)."""
OUTPUT_SPREAD, APPEND_SPREAD = 0.9, 0.8
"""Spread (lognormal sigma) of a turn's output and appended tokens."""
SEGMENTS = 8
"""The appended tokens follow the growth curve exactly at so many points of a trajectory."""
LEAST_TURNS = 4
LEAST_FITTED = 100
FIT_ROUNDS = 60


@dataclass(frozen=True, slots=True)
class Averages:
    """A row of Table 2, tokens but for ``turns``: means over trajectories.

    ``append`` and ``generated`` are means over the turns first; ``total`` is all a trajectory appends and generates,
    ``context`` its prompts' mean.
    """

    turns: float
    append: float
    generated: float
    total: float
    context: float


@dataclass(frozen=True, slots=True)
class Shape:
    """Parameters of the generator.

    Attributes:
        max_len: longest context, tokens.
        turns_mu, turns_sigma: the number of turns is lognormal.
        fill: mean share of ``max_len`` that a trajectory fills.
        output_share: median share of generated tokens.
        growth: exponent p of the appended tokens' cumulative curve (j/T)^p.
    """

    max_len: int
    turns_mu: float
    turns_sigma: float
    fill: float
    output_share: float
    growth: float


TABLE_2 = {
    "32K": (Shape(32 * 1024, 3.867, 0.677, 0.874, 0.126, 0.640), Averages(60, 608, 148, 28_639, 17_183)),
    "48K": (Shape(48 * 1024, 4.429, 0.687, 0.867, 0.184, 0.638), Averages(106, 474, 172, 42_607, 25_120)),
    "64K": (Shape(64 * 1024, 4.794, 0.726, 0.854, 0.204, 0.643), Averages(157, 429, 176, 55_958, 32_721)),
}
"""The paper's data sets (500 trajectories each): parameters to start from, and the averages to meet."""


@dataclass(frozen=True, slots=True)
class _Outline:
    """A trajectory before its tokens are spread over its turns."""

    turns: int
    appended: int
    generated: int

    @property
    def total(self) -> int:
        return self.appended + self.generated

    def mean_context(self, growth: float) -> float:
        """Mean prompt length without noise: the curve's mean over the turns, by Euler and Maclaurin."""
        curve = 1 / (growth + 1) + 1 / (2 * self.turns) + growth / (12 * self.turns**2)
        return self.appended * curve + self.generated * (self.turns - 1) / (2 * self.turns)


@dataclass(frozen=True, slots=True)
class _Draws:
    """Stratified quantiles, one a trajectory: of its turns, of its share of ``max_len``, of its generated share."""

    turns: Sequence[float]
    fill: Sequence[float]
    share: Sequence[float]


def synthesise(name: str, count: int, random: Random) -> list[Trajectory]:
    """``count`` trajectories of the set ``name`` of ``TABLE_2``.

    From ``LEAST_FITTED`` trajectories on, the parameters are solved for this very draw, so that all five averages are
    met; fewer cannot hold them and use the tabulated parameters.
    """
    shape, averages = TABLE_2[name]
    draws = _drawn(count, random)
    if count >= LEAST_FITTED:
        shape = _fitted(shape, averages, draws)
    return [_spread(f"{name}-{index}", outline, shape.growth, random) for index, outline in enumerate(_outlines(shape, draws))]


def averages_of(trajectories: Sequence[Trajectory]) -> Averages:
    """Table 2's averages of any trajectories."""
    return Averages(
        turns=fmean(len(one.turns) for one in trajectories),
        append=fmean(fmean(turn.appended_tokens for turn in one.turns) for one in trajectories),
        generated=fmean(fmean(turn.output_tokens for turn in one.turns) for one in trajectories),
        total=fmean(one.total_tokens for one in trajectories),
        context=fmean(fmean(step.prompt_tokens for step in one.steps()) for one in trajectories),
    )


def _drawn(count: int, random: Random) -> _Draws:
    quantiles = [(index + 0.5) / count for index in range(count)]
    normal = [NormalDist().inv_cdf(quantile) for quantile in quantiles]
    return _Draws(_shuffled(normal, random), _shuffled(quantiles, random), _shuffled(normal, random))


def _shuffled(values: Sequence[float], random: Random) -> list[float]:
    shuffled = list(values)
    random.shuffle(shuffled)
    return shuffled


def _outlines(shape: Shape, draws: _Draws) -> list[_Outline]:
    return [_outline(shape, *draw) for draw in zip(draws.turns, draws.fill, draws.share, strict=True)]


def _outline(shape: Shape, turns_z: float, fill_u: float, share_z: float) -> _Outline:
    turns = max(LEAST_TURNS, round(math.exp(shape.turns_mu + shape.turns_sigma * turns_z)))
    unfilled = 2.5 * (1 - shape.fill) * fill_u**1.5
    total = max(2 * turns, round(shape.max_len * (1 - min(1.0, unfilled))))
    share = _sigmoid(_logit(shape.output_share) + SHARE_SPREAD * share_z + SHARE_TREND * turns_z)
    generated = min(max(turns, round(share * total)), total - turns)
    return _Outline(turns, total - generated, generated)


def _fitted(shape: Shape, averages: Averages, draws: _Draws) -> Shape:
    """Solve the five parameters by fixed point: each one mainly moves one average."""
    for _ in range(FIT_ROUNDS):
        outlines = _outlines(shape, draws)
        turns = fmean(one.turns for one in outlines)
        total = fmean(one.total for one in outlines)
        per_turn = fmean(one.total / one.turns for one in outlines)
        generated = fmean(one.generated / one.turns for one in outlines)
        context = fmean(one.mean_context(shape.growth) for one in outlines)
        # E[1/T]·E[T] is exp(σ²) for a lognormal T.
        uneven = math.log((averages.append + averages.generated) / per_turn * averages.turns / turns)
        sigma = math.sqrt(max(0.0, shape.turns_sigma**2 + uneven / 2))
        shape = replace(
            shape,
            turns_mu=shape.turns_mu + math.log(averages.turns / turns) / 2 - (sigma**2 - shape.turns_sigma**2) / 2,
            turns_sigma=sigma,
            fill=shape.fill + (averages.total - total) / shape.max_len,
            output_share=_sigmoid(_logit(shape.output_share) + math.log(averages.generated / generated) / 2),
            growth=shape.growth + (context - averages.context) / fmean(one.appended for one in outlines),
        )
    return shape


def _spread(identity: str, outline: _Outline, growth: float, random: Random) -> Trajectory:
    outputs = [random.lognormvariate(0, OUTPUT_SPREAD) for _ in range(outline.turns)]
    appended = apportioned(_growing(outline.turns, growth, random), outline.appended)
    turns = zip(appended, apportioned(outputs, outline.generated), strict=True)
    return Trajectory(identity, tuple(Turn(append, output) for append, output in turns))


def _growing(turns: int, growth: float, random: Random) -> list[float]:
    """Noisy increments of the curve (j/T)^p, put back on the curve at the end of every segment."""
    curve = [(turn / turns) ** growth for turn in range(turns + 1)]
    noisy = [(curve[turn + 1] - curve[turn]) * random.lognormvariate(0, APPEND_SPREAD) for turn in range(turns)]
    bounds = sorted({turns * segment // SEGMENTS for segment in range(SEGMENTS + 1)})
    weights: list[float] = []
    for start, end in pairwise(bounds):
        factor = (curve[end] - curve[start]) / sum(noisy[start:end])
        weights += [factor * weight for weight in noisy[start:end]]
    return weights


def apportioned(weights: Sequence[float], total: int) -> list[int]:
    """Whole numbers in proportion to ``weights`` that sum to ``total``, each at least 1.

    Raises:
        ValueError: ``total`` is less than one each.
    """
    rest = total - len(weights)
    if rest < 0:
        raise ValueError(f"{total} cannot be shared among {len(weights)}, at least 1 each")
    scale = rest / sum(weights)
    shares: list[int] = []
    reached = 0.0
    for weight in weights:
        before, reached = round(reached * scale), reached + weight
        shares.append(1 + round(reached * scale) - before)
    return shares


def demo_trajectories(
    random: Random,
    agents: int = 36,
    turns: int = 22,
    first_tokens: int = 300,
    append_tokens: int = 24,
    output_tokens: int = 6,
    spread: float = 0.15,
) -> list[Trajectory]:
    """Short agents of one shape for a small machine: a first prompt, then turns that append little and generate less.

    With the defaults a context grows from about 300 to 1,000 tokens. The number of turns and the first prompt vary
    evenly by ``spread``, a share of their mean, single turns by twice as much: no straggler decides the whole run.
    """
    demo = _Demo(turns, first_tokens, append_tokens, output_tokens, spread)
    return [demo.trajectory(f"demo-{agent}", random) for agent in range(agents)]


@dataclass(frozen=True, slots=True)
class _Demo:
    turns: int
    first_tokens: int
    append_tokens: int
    output_tokens: int
    spread: float

    def trajectory(self, identity: str, random: Random) -> Trajectory:
        later_turns = _around(self.turns, self.spread, random) - 1
        prompts = [_around(self.first_tokens, self.spread, random)]
        prompts += [_around(self.append_tokens, 2 * self.spread, random) for _ in range(later_turns)]
        return Trajectory(identity, tuple(self._turn(prompt, random) for prompt in prompts))

    def _turn(self, appended_tokens: int, random: Random) -> Turn:
        return Turn(appended_tokens, _around(self.output_tokens, 2 * self.spread, random))


def _around(mean: int, spread: float, random: Random) -> int:
    return max(1, round(mean * random.uniform(1 - spread, 1 + spread)))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _logit(x: float) -> float:
    return math.log(x / (1 - x))
