"""Sampling: exact filters, keyed randomness, masked ends, log-probabilities, reasons to finish."""

from __future__ import annotations

import math

import pytest
import torch

from dualpath.control.turns import SamplingParams, finish_reason
from dualpath.engine.sampler import filtered_probabilities, sample, uniform

torch.set_num_threads(1)

EOS = (7, 3)


def tokens(logits: torch.Tensor, params: list[SamplingParams], positions: list[int], eos: tuple[int, ...] = ()) -> list[int]:
    return [one.token for one in sample(logits, params, positions, eos)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_greedy_is_the_argmax(dtype: torch.dtype) -> None:
    logits = torch.randn(5, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert tokens(logits, [SamplingParams()] * 5, list(range(5))) == logits.argmax(-1).tolist()


def test_frequencies_follow_the_distribution() -> None:
    """Each share of 20,000 draws lies within five standard deviations."""
    logits, draws = torch.tensor([0.0, 1.0, 2.0, -1.0, float("-inf")]), 20_000
    params = SamplingParams(temperature=0.7, seed=11)
    found = tokens(logits.expand(draws, -1), [params] * draws, list(range(draws)))
    expected = (logits.double() / 0.7).softmax(-1).tolist()
    for token, share in enumerate(expected):
        deviation = math.sqrt(share * (1 - share) / draws)
        assert abs(found.count(token) / draws - share) <= 5 * deviation


def test_a_draw_hangs_on_seed_and_position_only() -> None:
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(temperature=1.5, seed=seed, top_k=20 * (seed % 2)) for seed in range(6)]
    positions = [0, 5, 9, 5, 1, 0]
    together = tokens(logits, params, positions)
    alone = [tokens(logits[row : row + 1], [params[row]], [positions[row]])[0] for row in range(6)]
    greedy_between = tokens(logits.flip(0), params[::-1], positions[::-1])[::-1]
    assert together == alone == greedy_between


def test_seeds_and_positions_draw_differently() -> None:
    values = [uniform(seed, position) for seed in (-1, 0, 1, 2**60) for position in range(500)]
    assert len(set(values)) == 2000
    assert 0.0 <= min(values) < 0.01
    assert 0.99 < max(values) < 1.0
    assert abs(sum(values) / 2000 - 0.5) < 5 / math.sqrt(12 * 2000)


def test_the_draw_never_changes_between_versions() -> None:
    """Another attempt of a turn may run on another release."""
    assert uniform(0, 0) == 0.3859926107094096
    assert uniform(123, 45) == 0.2890264331359702


def test_top_k_keeps_the_k_likeliest() -> None:
    logits = torch.tensor([1.0, 5.0, 3.0, 5.0, 5.0, 0.0])
    kept = filtered_probabilities(logits, SamplingParams(temperature=2.0, top_k=2))
    assert kept.nonzero().flatten().tolist() == [1, 3], "ties go to the smaller ids"
    kept = filtered_probabilities(logits, SamplingParams(temperature=2.0, top_k=4))
    assert kept.nonzero().flatten().tolist() == [1, 2, 3, 4]
    assert torch.equal(kept, torch.where(kept > 0, (logits.double() / 2.0).softmax(-1), 0.0))
    assert torch.all(filtered_probabilities(logits, SamplingParams(temperature=1.0, top_k=100)) > 0)
    ties = filtered_probabilities(torch.zeros(5000), SamplingParams(temperature=1.0, top_k=3))
    assert ties.nonzero().flatten().tolist() == [0, 1, 2]


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    logits = torch.tensor([0.1, 0.5, 0.25, 0.15], dtype=torch.float64).log()

    def kept(top_p: float, top_k: int = 0) -> list[int]:
        found = filtered_probabilities(logits, SamplingParams(temperature=1.0, top_p=top_p, top_k=top_k))
        return [int(token) for token in found.nonzero().flatten()]

    assert kept(1e-9) == [1]
    assert kept(0.49) == [1]
    assert kept(0.51) == [1, 2]
    assert kept(0.76) == [1, 2, 3]
    assert kept(0.95) == [0, 1, 2, 3]
    assert kept(0.6, top_k=2) == [1], "0.5 of the 0.75 that top_k leaves is two thirds"
    halves = filtered_probabilities(torch.zeros(4), SamplingParams(temperature=1.0, top_p=0.5))
    assert halves.nonzero().flatten().tolist() == [0, 1], "two of four equal tokens reach a half exactly"


def test_filtered_tokens_are_never_drawn() -> None:
    draws = 3000
    logits = torch.linspace(-1, 1, 10).expand(draws, -1)
    found = tokens(logits, [SamplingParams(temperature=3.0, top_k=3, seed=5)] * draws, list(range(draws)))
    assert set(found) == {7, 8, 9}


@pytest.mark.parametrize(("draw", "token"), [(0.0, 2), (0.5, 4), (1 - 2.0**-52, 4)])
def test_the_ends_of_the_unit_interval(monkeypatch: pytest.MonkeyPatch, draw: float, token: int) -> None:
    """Tokens of probability 0 are not drawn there either: not before the first, between two, or after the last."""
    monkeypatch.setattr("dualpath.engine.sampler.uniform", lambda seed, position: draw)
    none = float("-inf")
    logits = torch.tensor([[none, none, 0.0, none, 0.0, none]])
    assert tokens(logits, [SamplingParams(temperature=1.0)], [0]) == [token]


@pytest.mark.parametrize("temperature", [1e-8, 1e-3, 100.0])
def test_extreme_temperatures(temperature: float) -> None:
    logits = torch.tensor([[0.0, 900.0, 899.0]])
    found = {tokens(logits, [SamplingParams(temperature=temperature)], [position])[0] for position in range(200)}
    assert found == ({1} if temperature < 1 else {1, 2})


def test_min_tokens_bars_every_ending_token() -> None:
    logits = torch.zeros(1, 10)
    logits[0, 7], logits[0, 5], logits[0, 3], logits[0, 2] = 9.0, 8.0, 7.0, 6.0
    before = logits.clone()
    params = SamplingParams(min_tokens=2, stop_token_ids=(5, 99))
    assert tokens(logits, [params], [0], EOS) == tokens(logits, [params], [1], EOS) == [2]
    assert tokens(logits, [params], [2], EOS) == [7]
    assert torch.equal(logits, before)
    sampled = SamplingParams(min_tokens=2, temperature=0.1, top_k=1)
    assert tokens(logits, [sampled], [0], EOS) == [5]


def test_min_tokens_bars_no_end_that_is_ignored() -> None:
    logits = torch.zeros(1, 10)
    logits[0, 7], logits[0, 5] = 9.0, 8.0
    assert tokens(logits, [SamplingParams(min_tokens=2, ignore_eos=True)], [0], EOS) == [7]
    assert tokens(logits, [SamplingParams(min_tokens=2)], [0], eos=()) == [7]
    assert tokens(logits, [SamplingParams(min_tokens=2, ignore_eos=True, stop_token_ids=(7,))], [0], EOS) == [5]


def test_logprobs_are_of_the_plain_distribution() -> None:
    logits = torch.randn(1, 30, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    params = SamplingParams(temperature=5.0, top_k=4, logprobs=3, min_tokens=1, seed=3)
    (found,) = sample(logits, [params], [0], (int(logits.argmax()),))
    expected = logits[0].log_softmax(-1)
    assert found.logprob == pytest.approx(expected[found.token].item())
    best = expected.topk(3)
    assert [token for token, _ in found.top_logprobs] == best.indices.tolist()
    assert [value for _, value in found.top_logprobs] == pytest.approx(best.values.tolist())


def test_logprobs_only_where_asked_for() -> None:
    logits = torch.randn(3, 5)
    plain, chosen, beyond = sample(logits, [SamplingParams(logprobs=count) for count in (None, 0, 20)], [0, 0, 0], ())
    assert (plain.logprob, plain.top_logprobs) == (None, ())
    assert chosen.logprob is not None
    assert chosen.top_logprobs == ()
    assert len(beyond.top_logprobs) == 5
    assert math.fsum(math.exp(value) for _, value in beyond.top_logprobs) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("token", "position", "params", "reason"),
    [
        (1, 0, SamplingParams(max_tokens=2), None),
        (1, 1, SamplingParams(max_tokens=2), "length"),
        (7, 0, SamplingParams(max_tokens=2), "stop"),
        (3, 1, SamplingParams(max_tokens=2), "stop"),
        (7, 0, SamplingParams(max_tokens=2, ignore_eos=True), None),
        (5, 0, SamplingParams(max_tokens=2, ignore_eos=True, stop_token_ids=(5,)), "stop"),
        (7, 0, SamplingParams(max_tokens=2, min_tokens=1), None),
        (7, 1, SamplingParams(max_tokens=3, min_tokens=1), "stop"),
    ],
)
def test_finish_reason(token: int, position: int, params: SamplingParams, reason: str | None) -> None:
    assert finish_reason(params, position, token, EOS) == reason
