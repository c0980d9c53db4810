"""The attention-time model and its fit."""

from __future__ import annotations

import json
import random

import pytest

from dualpath.costmodel.attention import AttentionTime, pairs
from dualpath.costmodel.fit import AttentionSample, fit, relative_error
from dualpath.costmodel.hardware import EngineProfile
from dualpath.errors import SettingsError

GRID = [(cached, new) for cached in (0, 64, 1000, 20_000) for new in (1, 30, 512, 4096)]


def samples(truth: AttentionTime, noise: float = 0.0, seed: int = 0) -> list[AttentionSample]:
    draw = random.Random(seed)
    return [AttentionSample(c, n, truth(c, n) * (1 + noise * draw.uniform(-1, 1))) for c, n in GRID]


@pytest.mark.parametrize(
    "truth",
    [
        AttentionTime(2e-4, 3e-5, 4e-9),
        AttentionTime(0.0, 1e-5, 2e-8),
        AttentionTime(1e-3, 0.0, 5e-9),
        AttentionTime(1e-3, 2e-6, 0.0),
        AttentionTime(5e-3, 0.0, 0.0),
    ],
)
def test_exact_times_give_their_coefficients_back(truth: AttentionTime) -> None:
    found = fit(samples(truth))
    for name, value in truth.to_dict().items():
        if name != "floor_s":
            assert found.to_dict()[name] == pytest.approx(value, rel=1e-6, abs=1e-15)
    assert found.floor_s == min(sample.seconds for sample in samples(truth))


def test_noisy_times_are_predicted_within_the_noise() -> None:
    truth = AttentionTime(2e-4, 3e-5, 4e-9)
    found = fit(samples(truth, noise=0.1))
    assert relative_error(found, samples(truth)) < 0.06
    assert relative_error(found, samples(truth, noise=0.1)) < 0.1


def test_coefficients_are_never_negative() -> None:
    """Times that shrink with the context would give a negative slope."""
    shrinking = [AttentionSample(cached, new, 1.0 / (1 + cached + new)) for cached, new in GRID]
    assert all(value >= 0.0 for value in fit(shrinking).to_dict().values())


@pytest.mark.parametrize("one", [AttentionSample(0, 10, 0.5), AttentionSample(100, 1, 0.25)])
def test_one_sample_is_enough_to_be_right_there(one: AttentionSample) -> None:
    assert fit([one])(one.cached, one.new) == pytest.approx(one.seconds)


@pytest.mark.parametrize("bad", [[], [AttentionSample(0, 1, 0.0)]])
def test_samples_without_times_are_refused(bad: list[AttentionSample]) -> None:
    with pytest.raises(ValueError, match="positive times"):
        fit(bad)


def test_pairs_are_those_of_a_causal_mask() -> None:
    """Up to half a diagonal: ``n`` queries behind ``c`` tokens see ``c · n + n (n + 1) / 2`` keys."""
    for cached, new in GRID:
        exact = sum(cached + index + 1 for index in range(new))
        assert pairs(cached, new) == exact - new / 2


def test_the_prediction_grows_with_both_and_keeps_its_floor() -> None:
    model = AttentionTime(floor_s=2e-3)
    assert model(0, 1) == 2e-3
    times = [model(5000, new) for new in range(100, 2000, 100)]
    assert times == sorted(set(times))
    assert model(6000, 500) > model(5000, 500)


def test_json_round_trip() -> None:
    profile = EngineProfile(AttentionTime(1e-4, 2e-5, 3e-9, 4e-4), 12_345.0, 678.0)
    assert EngineProfile.from_json(profile.to_json()) == profile
    assert EngineProfile.from_dict(json.loads(json.dumps(EngineProfile().to_dict()))) == EngineProfile()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "no JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "prefill_tokens_per_s must be a number, not None"),
        (
            '{"prefill_tokens_per_s": 1, "storage_tokens_per_s": 0, "attention": ATTENTION}',
            "storage_tokens_per_s must be a positive",
        ),
        ('{"prefill_tokens_per_s": 1, "storage_tokens_per_s": 1}', "attention must be an object"),
        ('{"prefill_tokens_per_s": 1, "storage_tokens_per_s": 1, "attention": {"fixed_s": 1}}', "attention must hold numbers"),
    ],
)
def test_broken_profiles_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        EngineProfile.from_json(text.replace("ATTENTION", json.dumps(AttentionTime().to_dict())))


@pytest.mark.parametrize("bad", [-1e-9, float("nan"), float("inf")])
def test_times_that_are_none_are_refused(bad: float) -> None:
    with pytest.raises(SettingsError, match=r"attention\.pair_s"):
        AttentionTime(pair_s=bad)
