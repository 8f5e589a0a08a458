"""Policies on the wire: objectives travel, and those who know none are understood."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.codec import from_json, from_msgpack, to_json, to_msgpack
from wire.errors import WireFormatError
from wire.policy import Objective, PolicySpec

finite = st.floats(allow_nan=False, allow_infinity=False)
objectives = st.builds(
    Objective, min_retention=finite, deadline_ms=st.none() | finite, deadline_probability=finite,
    battery_lasts_s=finite, battery_until=st.just(msgspec.UNSET) | st.text(max_size=6),
)  # fmt: skip
policies = st.builds(
    PolicySpec,
    kind=st.sampled_from(["rules", "adaptive"]),
    hot_headroom=finite,
    cool_headroom=finite,
    low_memory_bytes=st.integers(0, 2**50),
    dwell_s=finite,
    objective=st.just(msgspec.UNSET) | objectives,
)


class FirstPolicySpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the first release knew."""

    kind: str = "rules"
    hot_headroom: float = 0.85
    cool_headroom: float = 0.70
    low_battery_ratio: float = 0.20
    ok_battery_ratio: float = 0.30
    low_memory_bytes: int = 64 * 1024 * 1024
    dwell_s: float = 5.0


@given(policies)
def test_a_policy_comes_back_as_it_went(policy: PolicySpec) -> None:
    assert from_json(to_json(policy), PolicySpec) == policy
    assert from_msgpack(to_msgpack(policy), PolicySpec) == policy


def test_a_policy_without_an_objective_is_written_as_ever() -> None:
    rules = PolicySpec(kind="rules", dwell_s=2.0)
    assert to_json(rules) == to_json(FirstPolicySpec(dwell_s=2.0))


def test_a_policy_of_the_first_release_has_the_default_objective() -> None:
    policy = from_json(to_json(FirstPolicySpec()), PolicySpec)
    assert policy == PolicySpec(kind="rules")
    assert policy.aim == Objective()
    assert policy.aim.deadline_ms is None


def test_the_first_release_reads_a_policy_with_an_objective() -> None:
    policy = PolicySpec(kind="adaptive", objective=Objective(deadline_ms=50.0), dwell_s=3.0)
    old = from_json(to_json(policy), FirstPolicySpec)
    assert (old.kind, old.dwell_s) == ("adaptive", 3.0)


class FirstObjective(msgspec.Struct, frozen=True, kw_only=True):
    """What programs knew that have no `battery_until`."""

    min_retention: float = 0.0
    deadline_ms: float | None = None
    deadline_probability: float = 0.95
    battery_lasts_s: float = 4 * 3600.0


def test_a_time_of_day_for_the_battery_travels_and_is_no_fault_for_older_programs() -> None:
    aim = Objective(battery_until="18:00")
    assert from_json(to_json(aim), FirstObjective) == FirstObjective()
    assert to_json(Objective(deadline_ms=5.0)) == to_json(FirstObjective(deadline_ms=5.0))
    assert from_json(to_json(FirstObjective()), Objective) == Objective()
    assert from_json(to_json(aim), Objective).battery_until_s == 18 * 3600.0
    assert Objective().battery_until_s is None


@pytest.mark.parametrize(
    ("aim", "fault"),
    [
        (Objective(battery_until="00:00"), ""),
        (Objective(battery_until="23:59"), ""),
        (Objective(battery_until="24:00"), "objective.battery_until is not a time of day as 18:00"),
        (Objective(battery_until="6:00"), "objective.battery_until is not a time of day as 18:00"),
        (Objective(battery_until=""), "objective.battery_until is not a time of day as 18:00"),
        (
            Objective(battery_until="18:00", battery_lasts_s=3600.0),
            "objective.battery_until and objective.battery_lasts_s contradict each other",
        ),
    ],
)
def test_an_aim_for_the_battery_that_cannot_be_is_named(aim: Objective, fault: str) -> None:
    faults = PolicySpec(kind="adaptive", objective=aim).faults()
    assert faults == ((fault,) if fault else ())


def test_an_objective_may_leave_out_what_it_does_not_care_about() -> None:
    policy = from_json(b'{"kind":"adaptive","objective":{"deadline_ms":40}}', PolicySpec)
    assert policy.aim == Objective(deadline_ms=40.0)


@pytest.mark.parametrize(
    "data",
    [
        b'{"kind":"guess"}', b'{"objective":null}', b'{"objective":{"deadline_ms":"soon"}}',
        b'{"objective":[]}',
    ],
)  # fmt: skip
def test_what_is_no_policy_is_refused(data: bytes) -> None:
    with pytest.raises(WireFormatError):
        from_json(data, PolicySpec)
