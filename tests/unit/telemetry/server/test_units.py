"""Which devices are one observation."""

from __future__ import annotations

import numpy as np
import pytest

from telemetry.errors import QueryError
from telemetry.server.drift import drift
from telemetry.server.units import Units, values_of

SITES = 12
OF_SITE = 6


def test_devices_with_one_value_are_summed_and_others_stay_alone() -> None:
    units = Units(["a", "b", "c", "d"], {"a": "berlin", "c": "berlin", "b": "", "d": "d"})
    table = np.array([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0], [0.5, 0.5]])
    assert units.summed(table).tolist() == [[101.0, 202.0], [10.0, 20.0], [0.5, 0.5]]
    assert units.summed(table[:, 0]).tolist() == [101.0, 10.0, 0.5]
    assert Units([], {}).summed(np.zeros((0, 3))).shape == (0, 3)


def test_a_unit_must_be_known_of_some_device() -> None:
    known = {"site": {"a": "berlin"}}
    assert values_of(known, "site") == {"a": "berlin"}
    assert values_of(known, "") == {}
    with pytest.raises(QueryError, match="no device has a label 'floor'") as caught:
        values_of(known, "floor")
    assert "fleet device list" in caught.value.remedy


def test_sites_that_see_the_same_are_no_drift_when_they_are_the_unit() -> None:
    """What devices of a site see alike is chance of the site, not of each of its devices."""
    chance = np.random.default_rng(5)
    reference = np.full(4, 250.0)
    devices = [f"{site}-{n}" for site in range(SITES) for n in range(OF_SITE)]
    units = Units(devices, {device: device.split("-")[0] for device in devices})
    alarms = {"devices": 0, "sites": 0}
    fleets = 60
    for _ in range(fleets):
        own = np.repeat(chance.dirichlet(np.full(4, 10.0), SITES), OF_SITE, axis=0)
        counts = np.array([chance.multinomial(300, shares) for shares in own], float)
        alarms["devices"] += drift(reference, counts).chance < 0.05
        alarms["sites"] += drift(reference, units.summed(counts)).chance < 0.05
    assert alarms["sites"] <= 0.15 * fleets < alarms["devices"]
