"""How far predictions of the share in time are off: learnt from counts, and soon unsure again."""

from __future__ import annotations

import itertools
import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.select.records import ALIKE, LASTS_S, LEAST_SHARE, PRIOR, STEEP, Record


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


def test_other_predictions_are_corrected_the_same_way_and_by_less_where_they_are_far() -> None:
    record = lived(0.9, 0.7, 300)
    shift = logit(record.corrected(0.9)) - logit(0.9)
    assert shift == pytest.approx(logit(0.7) - logit(0.9), abs=0.3)
    for share in (0.2, 0.5, 0.8):
        assert shift < logit(record.corrected(share)) - logit(share) < 0.0


def test_that_what_was_said_to_be_sure_is_sure_says_little_of_what_was_not() -> None:
    # Nothing is late for hours, as was said; of a variant that is said to be late that is no proof.
    record = lived(0.9996, 1.0, 3 * 3600)
    assert record.corrected(0.9996) > 0.998
    assert record.corrected(0.5) < 0.7


def test_one_late_answer_is_no_proof() -> None:
    record = Record().update(0.95, 0.0, 1.0, 1.0)
    assert 0.75 < record.corrected(0.95) < 0.95


def test_the_answers_of_one_period_share_their_fate() -> None:
    together = Record().update(0.9, 0.0, 40.0, 1.0)
    apart = Record()
    for _ in range(40):
        apart = apart.update(0.9, 0.0, 1.0, 0.025)
    assert apart.corrected(0.9) < together.corrected(0.9) < 0.9
    all_late = Record().update(0.9, 0.0, 1e6, 1.0)
    few_late = Record().update(0.9, 0.0, 1.0 / ALIKE, 1.0)
    assert all_late.corrected(0.9) == pytest.approx(few_late.corrected(0.9), rel=0.5)


def test_a_part_of_an_answer_tells_as_much_less() -> None:
    part = Record().update(0.5, 0.0, 0.1, 1.0)
    one = Record().update(0.5, 0.0, 1.0, 1.0)
    assert one.corrected(0.5) < part.corrected(0.5) < 0.5


def test_what_was_long_not_seen_is_forgotten() -> None:
    record = lived(0.9, 0.6, 300)
    quiet = record.update(0.9, 0.0, 0.0, LASTS_S)
    shift = logit(record.corrected(0.9)) - logit(0.9)
    assert logit(quiet.corrected(0.9)) - logit(0.9) == pytest.approx(shift / math.e)
    assert quiet.line.base_variance > record.line.base_variance
    assert record.update(0.9, 0.0, 0.0, 1e7).line == PRIOR


def test_what_is_surely_late_stays_so() -> None:
    good = lived(0.5, 0.99, 300)
    assert good.corrected(0.0) == 0.0
    assert good.corrected(1.0) < 1.0, "and nothing is quite sure"


def test_one_bad_hour_does_not_condemn_for_ever() -> None:
    record = lived(0.95, 0.0, 3600)
    assert record.corrected(0.95) < 0.05
    for _ in range(600):
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
        assert STEEP[0] <= record.line.slope <= STEEP[1]
        assert all(math.isfinite(number) for number in msgspec.structs.astuple(record.line))
    less, more = sorted((one, other))
    assert 0.0 <= record.corrected(less) <= record.corrected(more) <= 1.0


@given(st.floats(LEAST_SHARE, 1.0 - LEAST_SHARE), st.integers(1, 50))
def test_the_more_were_in_time_the_better_the_record(predicted: float, answered: int) -> None:
    found = [
        Record().update(predicted, float(in_time), float(answered), 1.0).corrected(predicted)
        for in_time in range(answered + 1)
    ]
    assert all(less < more for less, more in itertools.pairwise(found))
    assert found[0] < predicted < found[-1]
