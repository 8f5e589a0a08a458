"""A policy that contradicts itself says what is wrong; every other one is accepted."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.policy import Objective, PolicySpec, changes, report_every_s

WRONG = [
    (PolicySpec(hot_headroom=0.5, cool_headroom=0.7), "cool_headroom is above hot_headroom"),
    (PolicySpec(hot_headroom=math.nan), "cool_headroom is above hot_headroom"),
    (
        PolicySpec(low_battery_ratio=0.5, ok_battery_ratio=0.4),
        "low_battery_ratio is above ok_battery_ratio",
    ),
    (PolicySpec(low_battery_ratio=-0.1), "low_battery_ratio is not within 0 to 1"),
    (PolicySpec(ok_battery_ratio=1.01), "ok_battery_ratio is not within 0 to 1"),
    (PolicySpec(low_memory_bytes=-1), "low_memory_bytes is negative"),
    (PolicySpec(dwell_s=-1.0), "dwell_s is negative or not a number"),
    (PolicySpec(dwell_s=math.inf), "dwell_s is negative or not a number"),
    (PolicySpec(report_every_s=0.5), "report_every_s is not within 1 to 3600"),
    (PolicySpec(report_every_s=math.nan), "report_every_s is not within 1 to 3600"),
]
WRONG_AIMS = [
    (Objective(min_retention=1.01), "objective.min_retention is not within 0 to 1"),
    (Objective(min_retention=-0.01), "objective.min_retention is not within 0 to 1"),
    (Objective(deadline_ms=0.0), "objective.deadline_ms is not positive"),
    (Objective(deadline_ms=-5.0), "objective.deadline_ms is not positive"),
    (Objective(deadline_ms=math.inf), "objective.deadline_ms is not positive"),
    (
        Objective(deadline_probability=1.0),
        "objective.deadline_probability is not within 0.5 to 1",
    ),
    (
        Objective(deadline_probability=0.49),
        "objective.deadline_probability is not within 0.5 to 1",
    ),
    (Objective(battery_lasts_s=-1.0), "objective.battery_lasts_s is negative or not a number"),
]
NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


@pytest.mark.parametrize(
    ("spec", "fault"),
    [*WRONG, *((PolicySpec(kind="adaptive", objective=aim), text) for aim, text in WRONG_AIMS)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_contradicts_itself_is_named(spec: PolicySpec, fault: str) -> None:
    assert spec.faults() == (fault,)


@pytest.mark.parametrize(
    "spec",
    [
        PolicySpec(),
        PolicySpec(low_battery_ratio=0.0, ok_battery_ratio=1.0, dwell_s=0.0, low_memory_bytes=0),
        PolicySpec(kind="adaptive", objective=Objective(min_retention=1.0, deadline_ms=0.001)),
        PolicySpec(kind="adaptive", objective=Objective(deadline_probability=0.5)),
    ],
)
def test_the_limits_themselves_are_possible(spec: PolicySpec) -> None:
    assert spec.faults() == ()


@given(*[NUMBERS] * 4, st.floats(allow_nan=True), NUMBERS, st.none() | NUMBERS, NUMBERS, NUMBERS)
def test_no_number_that_is_none_gets_through(  # noqa: PLR0913, PLR0917 - one for each field
    hot: float,
    cool: float,
    low: float,
    ok: float,
    dwell_s: float,
    retention: float,
    deadline_ms: float | None,
    probability: float,
    lasts_s: float,
) -> None:
    spec = PolicySpec(
        hot_headroom=hot,
        cool_headroom=cool,
        low_battery_ratio=low,
        ok_battery_ratio=ok,
        dwell_s=dwell_s,
        objective=Objective(
            min_retention=retention,
            deadline_ms=deadline_ms,
            deadline_probability=probability,
            battery_lasts_s=lasts_s,
        ),
    )
    given_numbers = (low, ok, dwell_s, retention, probability, lasts_s, deadline_ms or 1.0)
    if not spec.faults():
        assert all(math.isfinite(number) for number in given_numbers)
        assert not math.isnan(hot)
        assert not math.isnan(cool)


@pytest.mark.parametrize(
    ("policies", "found_s"),
    [
        ([], 10.0),
        ([PolicySpec()], 10.0),
        ([PolicySpec(report_every_s=60.0), PolicySpec()], 60.0),
        ([PolicySpec(report_every_s=60.0), PolicySpec(report_every_s=5.0)], 5.0),
        ([PolicySpec(report_every_s=math.nan), PolicySpec(report_every_s=1e9)], 10.0),
    ],
)
def test_the_shortest_interval_of_the_models_counts(
    policies: list[PolicySpec], found_s: float
) -> None:
    assert report_every_s(10.0, policies) == found_s


def test_another_interval_is_a_change_that_is_told() -> None:
    assert changes(PolicySpec(), PolicySpec(report_every_s=60.0)) == (
        {"report_every_s": None}, {"report_every_s": 60.0}
    )  # fmt: skip
