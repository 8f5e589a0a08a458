"""The database selects the devices that a selector means in memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from controller.domain.attributes import DeviceValues
from controller.domain.device_groups import check_group
from controller.domain.paging import PageRequest
from controller.domain.selector_parser import MAX_NESTING, MAX_SELECTOR_CHARS, MAX_TERMS
from controller.domain.selector_tree import Node, text_of
from controller.domain.selectors import Selector
from controller.errors import InvalidRequestError, SelectorError
from controller.store import device_records, devices, groups
from controller.store.database import Database
from controller.store.device_values import steady_values
from controller.store.group_tables import DeviceGroupRow
from tests.selector_trees import VERSIONS, RandomDevice, fleets, trees
from tests.simulators.stored_fleet import NOW_S, add_device, add_release, add_told

UNKNOWN: Final = "f" * 64


def digest(model: str, version: str | None) -> str:
    if version is None:
        return UNKNOWN
    return f"{('digits', 'faces').index(model)}{VERSIONS.index(version):x}".ljust(64, "0")


def add(session: Session, name: str, device: RandomDevice) -> None:
    row = add_device(session, name)
    row.profile_name, row.architecture = device.profile_name, device.architecture
    row.state, row.agent_version, row.online = device.state, device.agent_version, device.online
    row.profile, row.runtimes = device.profile, device.runtimes
    row.last_seen_at_s = None if device.silent_s is None else NOW_S - device.silent_s
    devices.set_labels(session, row, device.labels)
    for model, version in device.models.items():
        add_told(session, row, digest(model, version), model)


def found(session: Session, selector: Selector) -> list[str]:
    return sorted(devices.chosen(session, selector))


ALL = PageRequest(key="id", descends=False, limit=100)


def shown(session: Session) -> dict[str, DeviceValues]:
    """Return all devices, with what the API shows of them."""
    return {
        record.row.id: DeviceValues(labels=record.labels, attributes=record.attributes(now_s=NOW_S))
        for record in device_records.records(session, Selector(), page=ALL)
    }


@pytest.fixture
def published(database: Database) -> Database:
    with database.transaction() as session:
        for model, version in product(("digits", "faces"), VERSIONS):
            add_release(session, digest(model, version), version, model)
    return database


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fleets, st.lists(trees, min_size=3, max_size=6))
def test_the_database_selects_as_the_expression_says(
    published: Database, fleet: list[RandomDevice], nodes: Sequence[Node]
) -> None:
    with published.transaction() as session:
        for number, device in enumerate(fleet):
            add(session, f"{'bB'[number % 2]}-{number}", device)
        session.flush()
        known = shown(session)
        for node in nodes:
            selector = Selector(node, text_of(node), NOW_S)
            meant = [name for name, values in sorted(known.items()) if selector.matches(values)]
            assert found(session, selector) == meant, text_of(node)
        session.rollback()


def test_what_policies_are_chosen_by_is_what_is_shown(database: Database) -> None:
    with database.transaction() as session:
        row = add_device(session, "cam-1", site="berlin")
        row.profile = {"cpu_count": 4, "runtimes": ["litert"], "isa_features": []}
    with database.reading() as session:
        (record,) = device_records.records(session, Selector(), page=ALL)
        assert steady_values(session, ["cam-1"]) == {"cam-1": record.steady_values}
    assert record.steady_values.attributes["runtimes"] == ("litert",)


def test_the_largest_selectors_are_no_more_than_the_database_takes(database: Database) -> None:
    deep = "(a or not " * (MAX_NESTING // 2) + "b" + ")" * (MAX_NESTING // 2)
    wide = " or ".join(f"(a{n}=*x and model.b<{n})" for n in range(MAX_TERMS // 2))
    sets = "a in ("
    sets += ",".join("*" * 8 for _ in range((MAX_SELECTOR_CHARS - len(sets)) // 9)) + ")"
    with database.transaction() as session:
        add_device(session, "cam-1")
        named: dict[str, str] = {}
        text = deep
        for number in range(20):  # until one more is refused
            name = f"g{number}"
            try:
                check_group(name, text, named)
            except InvalidRequestError:
                break
            named[name] = text
            session.add(DeviceGroupRow(name=name, selector=text, changed_at_s=NOW_S))
            text = f"not (x or group:{name})"
        session.flush()
        assert len(named) > 1
        last = f"group:{list(named)[-1]}"
        many = " or ".join([f"not (x and ({last}))", *[last] * (MAX_TERMS - 2)])
        for each in (deep, wide, sets, many):
            selector = groups.read_selector(session, each, now_s=NOW_S)
            values = DeviceValues(labels={}, attributes={})
            assert (found(session, selector) == ["cam-1"]) is selector.matches(values), each


def test_a_group_that_is_gone_is_a_fault(database: Database) -> None:
    with database.reading() as session, pytest.raises(SelectorError, match="no group 'x'"):
        groups.read_selector(session, "a and group:x", now_s=NOW_S)
