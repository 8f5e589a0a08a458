"""Which policy holds for a device, and what no device could keep."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from controller.domain.attributes import DeviceValues
from controller.domain.names import checked_name
from controller.domain.policy_choice import FleetPolicy, checked_spec, choose_policy
from controller.domain.selectors import parse_selector
from controller.errors import InvalidRequestError
from controller.policy_schemas import (
    PolicyObjective,
    PolicyRequest,
    PolicySettings,
    PolicySharing,
)
from controller.schemas import given_fields
from wire.codec import from_json, to_json
from wire.policy import Objective, PolicySpec, Sharing

DEVICE = DeviceValues(
    labels={"site": "berlin"},
    attributes={"id": "cam-1", "profile": "rpi4", "arch": "aarch64"},
)


def policy(
    name: str, selector: str = "", priority: int = 0, model: str | None = None
) -> FleetPolicy:
    return FleetPolicy(
        name=name,
        selector=parse_selector(selector),
        model=model,
        priority=priority,
        spec=PolicySpec(),
    )


def chosen(*policies: FleetPolicy) -> str | None:
    found = choose_policy(policies, DEVICE, "digits")
    return found.name if found is not None else None


def test_without_a_policy_that_means_it_a_device_gets_the_default() -> None:
    assert chosen() is None
    assert chosen(policy("a", "site=paris"), policy("b", "!site", 9)) is None


def test_the_highest_priority_holds_among_those_that_mean_the_device() -> None:
    everyone, berlin = policy("everyone"), policy("berlin", "site=berlin", 10)
    assert chosen(everyone, berlin) == "berlin"
    assert chosen(everyone, berlin, policy("paris", "site=paris", 99)) == "berlin"
    assert chosen(policy("low", priority=-1), everyone) == "everyone"


def test_of_equal_priorities_the_first_by_name_holds() -> None:
    assert chosen(policy("b", "site=berlin"), policy("a"), policy("c", "id=cam-1")) == "a"


def test_of_equal_priorities_one_that_names_the_model_goes_first() -> None:
    everyone, digits = policy("a"), policy("z", model="digits")
    assert chosen(everyone, digits) == "z"
    assert chosen(policy("a", priority=1), digits) == "a"
    assert chosen(everyone, policy("b", priority=9, model="faces")) == "a"


def test_a_device_is_meant_by_its_own_data_too() -> None:
    assert chosen(policy("a", "profile=rpi4,arch in (aarch64),id!=cam-2")) == "a"


def means(item: FleetPolicy) -> bool:
    return item.model in {None, "digits"} and item.selector.matches(DEVICE)


SELECTORS = ("", "site=berlin", "site!=berlin", "profile=rpi4", "!rack", "id=cam-9", "canary")
fleets = st.lists(
    st.builds(
        policy,
        st.sampled_from("abcdefgh"),
        st.sampled_from(SELECTORS),
        st.integers(-2, 2),
        st.sampled_from((None, "digits", "faces")),
    ),
    unique_by=lambda item: item.name,
)


@given(fleets, st.randoms())
def test_the_choice_does_not_depend_on_the_order_and_nothing_goes_before_it(
    policies: list[FleetPolicy], random: Any
) -> None:
    found = choose_policy(policies, DEVICE, "digits")
    shuffled = list(policies)
    random.shuffle(shuffled)
    assert choose_policy(shuffled, DEVICE, "digits") == found
    meant = [item for item in policies if means(item)]
    if found is None:
        assert not meant
        return
    assert found in meant
    for other in meant:
        assert other.priority <= found.priority
        if other.priority == found.priority and other.model == found.model:
            assert other.name >= found.name
        if other.priority == found.priority and found.model is None:
            assert other.model is None


@given(fleets, fleets)
def test_a_policy_that_does_not_mean_a_device_changes_nothing_for_it(
    policies: list[FleetPolicy], others: list[FleetPolicy]
) -> None:
    names = {item.name for item in policies}
    strangers = [item for item in others if item.name not in names and not means(item)]
    assert choose_policy([*strangers, *policies], DEVICE, "digits") == choose_policy(
        policies, DEVICE, "digits"
    )


@pytest.mark.parametrize("name", ["a", "lab.night_2-x", "0", "x" * 63])
def test_names(name: str) -> None:
    assert checked_name(name, "a policy") == name


@pytest.mark.parametrize("name", ["", "A", "a b", "-a", "x" * 64, "a\n", "../a", "a\0"])
def test_names_that_no_policy_can_have(name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        checked_name(name, "a policy")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"hot_headroom": 0.5}, "cool_headroom is above hot_headroom"),
        ({"hot_headroom": math.nan}, "cool_headroom is above hot_headroom"),
        ({"dwell_s": math.inf}, "dwell_s is negative or not a number"),
        ({"low_memory_bytes": -1}, "low_memory_bytes is negative"),
        ({"objective": {"min_retention": 1.5}}, "objective.min_retention"),
        ({"objective": {"deadline_ms": math.nan}}, "objective.deadline_ms"),
        ({"kind": "clever"}, "clever"),
        ({"objective": 3}, "objective"),
    ],
)
def test_what_no_device_could_keep(values: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        checked_spec(values)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"hot_headroom": math.inf},
        {"hot_headroom": math.nan},
        {"hot_headrom": 0.9},
        {"objective": {"deadline": 10.0}},
        {"low_memory_bytes": 2**53 + 1},
        {"low_memory_bytes": 0.5},
        {"dwell_s": True},
        {"dwell_s": "5"},
        {"kind": "clever"},
    ],
)
def test_what_the_door_refuses(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(PolicyRequest).validate_python({"policy": settings})


def test_the_api_knows_every_field_and_its_default() -> None:
    for model, struct in (
        (PolicySettings, PolicySpec),
        (PolicyObjective, Objective),
        (PolicySharing, Sharing),
    ):
        assert tuple(field.name for field in fields(model)) == struct.__struct_fields__
    assert checked_spec(given_fields(PolicySettings())) == PolicySpec()
    aims = given_fields(PolicySettings(objective=PolicyObjective()))
    assert checked_spec(aims) == PolicySpec(objective=Objective())
    shared = given_fields(PolicySettings(sharing=PolicySharing()))
    assert checked_spec(shared) == PolicySpec(sharing=Sharing())


ratios = st.floats(0.0, 1.0)
settings = st.builds(
    PolicySettings,
    kind=st.sampled_from(("rules", "adaptive")),
    hot_headroom=st.floats(-10, 10),
    cool_headroom=st.floats(-10, 10),
    low_battery_ratio=ratios,
    low_memory_bytes=st.integers(-5, 2**53),
    dwell_s=st.floats(-1, 1e300),
    objective=st.none()
    | st.builds(
        PolicyObjective,
        min_retention=st.floats(-1, 2),
        deadline_ms=st.none() | st.floats(-1, 1e300),
        deadline_probability=ratios,
    ),
)


@given(settings)
def test_what_is_accepted_arrives_at_a_device_as_it_was_set(given: PolicySettings) -> None:
    try:
        spec = checked_spec(given_fields(given))
    except InvalidRequestError:
        return
    arrived = from_json(to_json(spec), PolicySpec)
    assert arrived == spec
    assert not arrived.faults()
    assert msgspec.convert(msgspec.to_builtins(arrived), PolicySettings) == given
