"""How far predictions of the share in time are off: learnt from counts, and soon unsure again."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.select.records import DRIFT_PER_S, MOST_OFF, MOST_VARIANCE, PRIOR_VARIANCE, Record


def logit(share: float) -> float:
    return math.log(share / (1.0 - share))


def lived(predicted: float, true: float, seconds: int, answers: int = 5, seed: int = 1) -> Record:
    """Return the record after periods in which answers are in time with another probability."""
    chance, record = random.Random(seed), Record()
    for _ in range(seconds):
        in_time = sum(chance.random() < true for _ in range(answers))
        record = record.update(predicted, in_time, answers, 1.0)
    return record


def test_without_a_record_theory_is_believed() -> None:
    for share in (0.01, 0.5, 0.95, 0.99):
        assert Record().corrected(share) == pytest.approx(share)


@pytest.mark.parametrize(("predicted", "true"), [(0.95, 0.7), (0.6, 0.95), (0.9, 0.9)])
def test_a_wrong_prediction_is_corrected_within_minutes(predicted: float, true: float) -> None:
    record = lived(predicted, true, 300)
    assert record.corrected(predicted) == pytest.approx(true, abs=0.04)


def test_other_predictions_are_corrected_by_as_much_on_the_scale_of_the_logit() -> None:
    record = lived(0.9, 0.7, 300)
    shift = logit(record.corrected(0.9)) - logit(0.9)
    for share in (0.2, 0.5, 0.99):
        assert logit(record.corrected(share)) - logit(share) == pytest.approx(shift)


def test_one_late_answer_is_no_proof() -> None:
    record = Record().update(0.95, 0.0, 1.0, 1.0)
    assert 0.85 < record.corrected(0.95) < 0.95


def test_the_answers_of_one_period_share_their_fate() -> None:
    together = Record().update(0.9, 0.0, 40.0, 1.0)
    apart = Record()
    for _ in range(40):
        apart = apart.update(0.9, 0.0, 1.0, 0.025)
    assert together.variance > apart.variance
    assert together.off < 0.0


def test_a_part_of_an_answer_tells_as_much_less() -> None:
    part = Record().update(0.5, 0.0, 0.1, 1.0)
    one = Record().update(0.5, 0.0, 1.0, 1.0)
    assert one.off < part.off < 0.0
    assert one.variance < part.variance


def test_what_was_long_not_seen_is_uncertain_again_and_remembered() -> None:
    record = lived(0.9, 0.6, 300)
    quiet = record.update(0.9, 0.0, 0.0, 600.0)
    assert quiet.off == record.off
    assert quiet.variance == pytest.approx(record.variance + 600.0 * DRIFT_PER_S)
    assert record.update(0.9, 0.0, 0.0, 1e7).variance == MOST_VARIANCE == PRIOR_VARIANCE


def test_what_is_surely_late_stays_so() -> None:
    good = lived(0.5, 0.99, 300)
    assert good.corrected(0.0) == 0.0
    assert good.corrected(1.0) < 1.0, "and nothing is quite sure"


def test_one_bad_hour_does_not_condemn_for_ever() -> None:
    record = lived(0.95, 0.0, 3600)
    assert record.off == -MOST_OFF
    assert record.corrected(0.95) > 0.4
    for _ in range(300):
        record = record.update(0.95, 5.0, 5.0, 1.0)
    assert record.corrected(0.95) > 0.9


shares = st.floats(0.0, 1.0)
counts = st.floats(0.0, 1e6)
seen = st.lists(st.tuples(shares, shares, counts, st.sampled_from([0.0, 1e-6, 1.0, 60.0, 1e7])))


@given(seen, shares, shares)
def test_whatever_is_seen_shares_are_shares_and_keep_their_order(
    seen_: list[tuple[float, float, float, float]], one: float, other: float
) -> None:
    record = Record()
    for predicted, share, answered, period_s in seen_:
        record = record.update(predicted, share * answered, answered, period_s)
        assert 0.0 < record.variance <= MOST_VARIANCE
        assert -MOST_OFF <= record.off <= MOST_OFF
    less, more = sorted((one, other))
    assert 0.0 <= record.corrected(less) <= record.corrected(more) <= 1.0


@given(shares, st.integers(1, 50))
def test_the_more_were_in_time_the_better_the_record(predicted: float, answered: int) -> None:
    found = [
        Record().update(predicted, float(in_time), float(answered), 1.0).off
        for in_time in range(answered + 1)
    ]
    within = [off for off in found if abs(off) < MOST_OFF]
    assert found == sorted(found)
    assert all(less < more for less, more in itertools.pairwise(within))
