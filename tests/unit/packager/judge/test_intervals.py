"""Bounds of quality: known values, what they cover, and how many samples a gate needs."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.judge.intervals import (
    ALPHA,
    MOST_SAMPLES,
    certainty,
    computes_the_same,
    mean_kept,
    ratio_of_right,
    ratio_score,
    student,
    wilson,
)
from packager.judge.metrics import MAX_RETENTION
from packager.plan.figures import Comparison, Evidence
from wire.package.accuracy import Accuracy

counts = st.tuples(*(st.integers(0, 60) for _ in range(4))).filter(lambda c: c[0] + c[2] > 0)
Counts = tuple[int, int, int, int]


def compared(
    right: Counts | None, *, metric: str = "top1", error: float | None = None, samples: int = 0,
    agreed: int | None = None,
) -> Comparison:  # fmt: skip
    both, ours, theirs, neither = right or (0, 0, 0, 0)
    total = samples or both + ours + theirs + neither
    value, reference = ((both + ours) / total, (both + theirs) / total) if right else (0.9, 0.9)
    return Comparison(
        accuracy=Accuracy(
            metric=metric,
            value=value,
            reference=reference,
            retention=value / reference,
            agreement=1.0 if agreed is None else agreed / total,
            sqnr_db=None,
            worst_error=0.0,
            samples=total,
        ),
        evidence=Evidence(
            right=right, standard_error=error, degrees=max(total - 1, 0), agreed=agreed
        ),
        worst_errors={},
    )


def needed(comparison: Comparison, *, of: int = 1, same: bool = False) -> int:
    return certainty(
        comparison,
        compared=of,
        least_retention=0.99,
        most_disagreement=0.05,
        same=same,
    ).samples_needed


def test_known_bounds_of_a_share() -> None:
    # R. G. Newcombe, "Two-sided confidence intervals for the single proportion", Statistics in
    # Medicine 17 (1998), 857-872, table I, method 3.
    for successes, trials, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        assert wilson(successes, trials, 0.975) == pytest.approx((low, high), abs=5e-5)


def test_known_bounds_of_a_ratio() -> None:
    # M. W. Fagerland, S. Lydersen, P. Laake, "Recommended tests and confidence intervals for paired
    # binomial proportions", Statistics in Medicine 33 (2014), 2850-2875: the score interval of the
    # ratio for the study of airway hyper-responsiveness.
    assert ratio_of_right((1, 1, 7, 12), 0.975) == pytest.approx((0.065, 0.907), abs=5e-4)


def test_known_quantiles_of_students_distribution() -> None:
    for degrees, quantile in ((1, 12.7062), (2, 4.3027), (7, 2.3646), (19, 2.0930), (500, 1.9647)):
        assert student(0.975, degrees) == pytest.approx(quantile, abs=5e-5)
    assert student(0.975, 200) == pytest.approx(student(0.975, 201), abs=1e-4)


@given(counts, st.floats(0.5, 1.5))
def test_the_score_has_the_variance_of_the_most_likely_table(right: Counts, ratio: float) -> None:
    both, ours, theirs, neither = right
    total = both + ours + theirs + neither
    share = (both + ours + theirs) / total
    # All tables of this ratio, by the share of "only the variant is right".
    only_ours = np.linspace(
        max(0.0, share * (ratio - 1) / ratio), share * ratio / (1 + ratio), 20001
    )
    only_theirs = ratio * only_ours - (ratio - 1) * share
    shared = share - only_ours - only_theirs
    with np.errstate(divide="ignore", invalid="ignore"):
        likelihood = sum(
            (np.where(n == 0, 0.0, n * np.log(np.maximum(p, 0.0)))
             for n, p in ((both, shared), (ours, only_ours), (theirs, only_theirs))),
            start=np.zeros_like(only_ours),
        )  # fmt: skip
    best = int(np.nanargmax(likelihood))
    variance = total * ratio * (only_ours[best] + only_theirs[best])
    gain = (both + ours) - ratio * (both + theirs)
    found = ratio_score(right, ratio)
    if variance > 1e-2:
        assert found == pytest.approx(gain / math.sqrt(variance), rel=2e-2, abs=2e-2)


@given(counts, st.floats(0.9, 0.999))
def test_bounds_of_a_ratio_are_around_it_and_wider_with_more_confidence(
    right: Counts, confidence: float
) -> None:
    both, ours, theirs, _ = right
    ratio = (both + ours) / (both + theirs)
    low, high = ratio_of_right(right, confidence)
    assert 0.0 <= low <= high <= MAX_RETENTION
    assert low <= ratio + 1e-9
    assert high >= min(ratio, MAX_RETENTION) - 1e-9
    lower, higher = ratio_of_right(right, (1 + confidence) / 2)
    assert lower <= low + 1e-9
    assert higher >= high - 1e-9


def test_the_lower_bound_holds_as_often_as_it_says() -> None:
    # The probability of every possible table of 40 samples, whose true ratio is 0.85 / 0.9.
    shares = {"both": 0.83, "ours": 0.02, "theirs": 0.07, "neither": 0.08}
    truth = (shares["both"] + shares["ours"]) / (shares["both"] + shares["theirs"])
    total = 40
    covered = all_tables = 0.0
    for ours, theirs, neither in itertools.product(range(8), range(14), range(14)):
        both = total - ours - theirs - neither
        table = (both, ours, theirs, neither)
        logs = math.lgamma(total + 1) - sum(math.lgamma(n + 1) for n in table)
        logs += sum(n * math.log(p) for n, p in zip(table, shares.values(), strict=True))
        all_tables += math.exp(logs)
        if ratio_of_right(table, 0.95)[0] <= truth:
            covered += math.exp(logs)
    assert all_tables > 0.999
    assert covered / all_tables == pytest.approx(0.95, abs=0.02)


def test_without_any_difference_the_bound_is_that_of_wilson() -> None:
    for right in (8, 30, 600):
        low, _ = ratio_of_right((right, 0, 0, 0), 0.95)
        assert low == pytest.approx(wilson(right, right, 0.95)[0])


def test_few_samples_cannot_show_what_many_can() -> None:
    assert needed(compared((30, 0, 0, 0))) == pytest.approx(270, abs=10)
    assert needed(compared((270, 0, 0, 0))) == 0
    assert needed(compared((510, 30, 25, 35))) > 600, "1.01 of 600 samples"
    assert needed(compared((30, 0, 0, 0)), same=True) == 0


def test_to_choose_among_many_needs_more_samples() -> None:
    table = compared((400, 0, 0, 0))
    assert needed(table) == 0
    assert needed(table, of=20) > 400
    many = certainty(table, compared=20, least_retention=0.99, most_disagreement=None)
    assert many.confidence == 1 - ALPHA / 20
    assert many.compared == 20


@given(counts, st.integers(1, 50))
def test_the_number_of_samples_that_is_named_would_do(right: Counts, of: int) -> None:
    comparison = compared(right)
    found = needed(comparison, of=of)
    if 0 < found < MOST_SAMPLES and comparison.accuracy.retention >= 0.99:
        factor = found / comparison.accuracy.samples
        scaled = tuple(factor * n for n in right)
        low, _ = ratio_of_right((scaled[0], scaled[1], scaled[2], scaled[3]), 1 - ALPHA / of)
        assert low >= 0.99 - 1e-9


def test_disagreement_has_a_bound_of_its_own() -> None:
    table = compared((5000, 0, 0, 0), agreed=4765)
    found = certainty(table, compared=1, least_retention=0.99, most_disagreement=0.05)
    assert found.agreement_low == pytest.approx(0.9478, abs=1e-4)
    assert found.samples_needed > 5000
    assert needed(compared((5000, 0, 0, 0), agreed=4800)) == 0


def test_a_metric_of_numbers_has_the_bounds_of_its_standard_error() -> None:
    comparison = compared(None, metric="mae", error=0.1, samples=8)
    found = certainty(comparison, compared=1, least_retention=0.99, most_disagreement=None)
    unseen = 1.6449**2 / 8
    spread = ((1.8946 * 0.1) ** 2 + unseen**2 / 4) ** 0.5
    low = (1.0 + unseen / 2 - spread) / (1 + unseen)
    assert found.retention_low == pytest.approx(low, abs=1e-4)
    assert found.retention_high == pytest.approx(1.0 + 1.8946 * 0.1, abs=1e-4)
    assert (found.agreement_low, found.agreement_high) == (None, None)
    assert found.samples_needed > 1000
    unknown = compared(None, metric="my:own", samples=8)
    found = certainty(unknown, compared=1, least_retention=0.99, most_disagreement=None)
    assert found.retention_low is None
    assert found.samples_needed == MOST_SAMPLES


@given(st.integers(1, 400), st.integers(0, 400))
def test_where_each_sample_keeps_all_or_nothing_the_bounds_are_wilsons(
    kept: int, lost: int
) -> None:
    samples = kept + lost
    share = kept / samples
    half = NormalDist().inv_cdf(0.995) * math.sqrt(share * (1 - share) / samples)
    low, high = mean_kept(share, half, samples, 0.995)
    best_low, best_high = wilson(kept, samples, 0.995)
    # Below the interval of a normal mean it never goes, so few losses may only widen it.
    assert low == pytest.approx(min(best_low, share - half) if share > half else low)
    assert high == pytest.approx(max(best_high, share + half))


def test_samples_that_lost_nothing_do_not_show_that_nothing_is_lost() -> None:
    for metric in ("cer", "mae", "my:own"):
        few = compared(None, metric=metric, error=0.0, samples=2)
        found = certainty(few, compared=10, least_retention=0.99, most_disagreement=None)
        assert found.retention_low == pytest.approx(2 / (2 + 2.5758**2), abs=1e-4)
        assert found.samples_needed == pytest.approx(660, abs=10), "as for right and wrong answers"
        many = compared(None, metric=metric, error=0.0, samples=660)
        found = certainty(many, compared=10, least_retention=0.99, most_disagreement=None)
        assert found.samples_needed == 0


@pytest.mark.few(4)
@pytest.mark.parametrize("samples", [20, 50, 200, 1000])
@pytest.mark.parametrize("lost_share", [0.005, 0.012, 0.03])
def test_rare_losses_of_whole_samples_are_not_missed(samples: int, lost_share: float) -> None:
    rng = np.random.default_rng(samples)
    missed = 0
    for _ in range(1000):
        kept = np.where(rng.random(samples) < lost_share, 0.0, 1.0 - 0.001 * rng.random(samples))
        error = float(kept.std(ddof=1)) / math.sqrt(samples)
        half = student(0.995, samples - 1) * error
        truth = (1 - lost_share) * (1 - 0.0005)
        missed += mean_kept(float(kept.mean()), half, samples, 0.995)[0] > truth
    assert missed <= 15, "5 of 1000 are allowed"


def test_as_many_samples_as_a_gate_asks_for_mostly_suffice() -> None:
    rng = np.random.default_rng(404)
    passed = asked = 0
    shares = (0.893, 0.003, 0.004, 0.1)  # the true retention is 0.9989
    for _ in range(60):
        table = compared(tuple(int(count) for count in rng.multinomial(900, shares)))  # type: ignore[arg-type]
        number = needed(table, of=4)
        if 0 < number < 20_000:
            again = compared(tuple(int(n) for n in rng.multinomial(number, shares)))  # type: ignore[arg-type]
            asked += 1
            passed += needed(again, of=4) == 0
    assert asked > 20
    assert passed / asked > 0.6


def test_another_order_of_sums_is_the_same_and_float16_is_not() -> None:
    def found(error: float, sqnr_db: float | None) -> Comparison:
        table = compared((30, 0, 0, 0))
        accuracy = msgspec.structs.replace(table.accuracy, sqnr_db=sqnr_db, worst_error=error)
        return msgspec.structs.replace(table, accuracy=accuracy, worst_errors={"s": error})

    assert computes_the_same(found(0.0, None))
    assert computes_the_same(found(2e-6, 135.0))
    assert not computes_the_same(found(3e-3, 130.0))
    large = msgspec.structs.replace(found(3e-3, 130.0), greatest={"s": 5000.0})
    assert computes_the_same(large), "scores of raw pixels are in the thousands"
    assert not computes_the_same(found(3e-3, 68.0)), "float16"
    assert not computes_the_same(found(1e-6, 40.0)), "small outputs, and much noise"
