"""A policy that a person wrote: what would have no effect is refused, in a message it is not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.codec import convert, to_builtins
from wire.errors import PolicyFileError
from wire.policy import Objective, PolicySpec, Sharing, changes
from wire.policy_file import LIMITS, checked_policy, read_policy

POLICIES = st.builds(
    PolicySpec,
    kind=st.sampled_from(("rules", "adaptive")),
    dwell_s=st.floats(0.0, 60.0),
    low_memory_bytes=st.integers(0, 2**40),
    report_every_s=st.just(msgspec.UNSET) | st.floats(1.0, 3600.0),
    objective=st.builds(
        Objective,
        min_retention=st.floats(0.0, 1.0),
        deadline_ms=st.none() | st.floats(1.0, 1e4),
        battery_until=st.sampled_from(("00:00", "18:00", "23:59")),
    ),
)


def test_an_objective_that_rules_would_ignore_is_refused_in_a_file_alone() -> None:
    values = {"kind": "rules", "objective": dict[str, Any]()}
    with pytest.raises(PolicyFileError, match="only the adaptive policy has an objective"):
        checked_policy(values)
    assert convert(values, PolicySpec).faults() == (), "agents and stored policies go on"


@given(POLICIES)
def test_what_is_written_is_what_holds(spec: PolicySpec) -> None:
    written: dict[str, Any] = to_builtins(spec)
    if spec.kind == "rules":
        del written["objective"]
    assert checked_policy(written) == convert(written, PolicySpec)


@given(POLICIES, POLICIES)
def test_changes_lead_from_one_policy_to_the_other(before: PolicySpec, after: PolicySpec) -> None:
    old, new = changes(before, after)
    assert old.keys() == new.keys()
    kept = {name: value for name, value in before.settings.items() if name not in new}
    assert kept | {n: v for n, v in new.items() if v is not None} == {
        n: v for n, v in after.settings.items() if v is not None or n in kept
    }
    assert changes(after, after) == ({}, {})


def test_the_limits_of_every_key_are_known() -> None:
    aims = {f"objective.{name}" for name in Objective.__struct_fields__}
    shared = {f"sharing.{name}" for name in Sharing.__struct_fields__}
    known = {*PolicySpec.__struct_fields__, *aims, *shared}
    assert LIMITS.keys() == known - {"kind", "objective", "sharing"}


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b'{"kind": "adaptive"}', "policy.json"),
        (b' {"kind": "adaptive"}', "policy"),
        (b'kind = "adaptive"', "policy.toml"),
        (b'kind = "adaptive"', "policy"),
    ],
)
def test_toml_and_json_have_the_same_keys(data: bytes, name: str) -> None:
    assert read_policy(data, name) == {"kind": "adaptive"}


@given(st.dictionaries(st.text(max_size=12), st.none() | st.booleans() | st.floats() | st.text()))
def test_no_keys_of_any_kind_do_harm(values: dict[str, Any]) -> None:
    spec, fault = None, None
    try:
        spec = checked_policy(values)
    except PolicyFileError as exc:
        fault = exc
    if spec is not None:
        assert spec.faults() == ()
    if fault is not None:
        assert fault.remedy
        assert "\n" not in str(fault)
