"""Faulty requests do not fill the log."""

from __future__ import annotations

from controller.domain.faults import MAX_KNOWN, QUIET_S, Faults


def test_of_each_device_the_first_fault_in_a_while_is_logged() -> None:
    faults = Faults()
    assert [faults.is_first(device, 0.0) for device in ("a", "a", "b", "a")] == [
        True,
        False,
        True,
        False,
    ]
    assert not faults.is_first("a", QUIET_S - 1)
    assert faults.is_first("a", QUIET_S)


def test_what_is_known_of_devices_is_bounded() -> None:
    faults = Faults()
    for number in range(MAX_KNOWN + 1):
        faults.is_first(str(number), 0.0)
    assert faults.is_first("0", 1.0), "the oldest was forgotten"
    assert not faults.is_first(str(MAX_KNOWN), 1.0)
