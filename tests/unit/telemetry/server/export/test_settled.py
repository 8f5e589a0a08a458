"""Each minute of a device is handed on once, in order, when it will change no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from telemetry.server.export.settled import (
    MAX_DEVICE_MINUTES,
    MAX_DEVICES,
    MAX_MINUTES,
    SILENT_MINUTES,
    Window,
    settled_until,
    windows,
)

NOW = 1000


def test_a_minute_is_settled_when_the_device_has_gone_on() -> None:
    assert settled_until(NOW, NOW) == NOW - 1
    assert settled_until(NOW - 5, NOW) == NOW - 6, "its last minutes may still grow"


def test_the_last_minutes_of_a_silent_device_are_settled_in_the_end() -> None:
    newest = NOW - SILENT_MINUTES
    assert settled_until(newest, NOW) == newest
    assert settled_until(newest - 1, NOW) == newest


def test_a_clock_that_is_ahead_settles_nothing_that_has_not_come() -> None:
    assert settled_until(NOW + 1440, NOW) == settled_until(NOW, NOW) == NOW - 1


def test_what_was_measured_offline_is_handed_on_when_it_comes() -> None:
    done = {"away": 501, "here": NOW - 2}
    newest = {"away": 500, "here": NOW - 1}
    assert list(windows(newest, done, 0, NOW)) == [], "nothing new"
    newest = {"away": NOW - 1, "here": NOW}
    late = Window(("away",), 501, NOW - 2)
    assert set(windows(newest, done, 0, NOW)) == {late, Window(("here",), NOW - 2, NOW - 1)}


def test_devices_that_are_alike_share_a_window_of_bounded_size() -> None:
    newest = {f"cam-{number}": NOW for number in range(MAX_DEVICES + 1)} | {"slow": NOW - 1}
    found = list(windows(newest, {}, NOW - 3, NOW))
    assert [len(window.devices) for window in found] == [MAX_DEVICES, 1, 1]
    assert found[-1] == Window(("slow",), NOW - 3, NOW - 2)


def test_nothing_from_before_the_start() -> None:
    assert list(windows({"cam": NOW - 200}, {}, NOW, NOW)) == []


@given(st.lists(st.integers(0, 300), min_size=1, max_size=40))
def test_every_minute_is_handed_on_once_however_time_passes(steps: list[int]) -> None:
    done: dict[str, int] = {}
    handed: list[int] = []
    newest = now = 0
    for step in steps:
        newest, now = newest + step, now + step + 1
        while found := list(windows({"cam": newest}, done, 0, now)):
            (window,) = found
            assert window.until - window.since <= MAX_MINUTES
            handed += range(window.since, window.until)
            done["cam"] = window.until
    assert handed == list(range(len(handed)))
    assert len(handed) >= newest - 1


def test_a_window_of_many_devices_is_shorter() -> None:
    (alone,) = windows({"cam": 10 * MAX_MINUTES}, {}, 0, 10 * MAX_MINUTES)
    assert (alone.since, alone.until) == (0, MAX_MINUTES)
    many = {f"cam-{number}": MAX_MINUTES for number in range(MAX_DEVICES)}
    (together,) = windows(many, {}, 0, MAX_MINUTES)
    assert (together.since, together.until) == (0, MAX_DEVICE_MINUTES // MAX_DEVICES)
