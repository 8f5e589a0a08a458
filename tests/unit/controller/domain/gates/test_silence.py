"""Silence is compared within a stratum: servers that sleep at night say nothing of cameras."""

from __future__ import annotations

import pytest

from controller.domain.gates.silence import Coverage, Silence, Telling


def side(known: int, still: int) -> Telling:
    return Telling(devices=known, told=still, known=known, still=still)


def part(coverage: Coverage) -> float:
    silence, _ = coverage.silence()
    return silence.part()


def test_a_stratum_that_sleeps_does_not_hide_one_that_was_silenced() -> None:
    control = {"camera": side(10, 10), "server": side(90, 0)}
    treated = {"camera": side(40, 30), "server": side(10, 0)}
    found = Coverage(treated, control)
    silence, text = found.silence()
    assert silence == Silence(30, 40)
    assert (
        text == "20 of 50 devices with the new release that told enough before do not tell enough"
    )
    alike = Coverage(treated | {"camera": side(40, 40)}, control)
    assert part(alike) == 0.0


def test_devices_that_the_release_has_not_reached_are_not_compared() -> None:
    """A stage by selector: all others sleep."""
    found = Coverage({"chosen": side(30, 20)}, {"chosen": side(10, 10), "others": side(100, 1)})
    assert part(found) == pytest.approx(1 / 3)


def test_a_stratum_that_nobody_can_be_compared_with_does_not_count() -> None:
    control = {"camera": side(17, 8), "server": side(2, 0)}
    treated = {"camera": side(10, 5), "server": side(10, 5), "gateway": side(10, 0)}
    silence, _ = Coverage(treated, control).silence()
    assert silence.told == 5, "two servers of which none was to tell make up for nobody"
    assert silence.expected == pytest.approx(10 * 8 / 17)


def test_a_device_that_is_alone_in_the_control_group_makes_up_for_nobody() -> None:
    control = {"camera": side(20, 20), "server": side(1, 0)}
    treated = {"camera": side(40, 32), "server": side(20, 20)}
    assert part(Coverage(treated, control)) == pytest.approx(0.2)


def test_without_a_control_group_all_would_have_told() -> None:
    silence, _ = Coverage({"camera": side(30, 20)}, {}).silence()
    assert silence == Silence(20, 30)


def test_what_is_new_to_most_is_counted_of_all_within_each_stratum() -> None:
    treated = {
        "camera": Telling(devices=20, told=10, known=1, still=1),
        "server": Telling(devices=10, told=10),
    }
    control = {
        "camera": Telling(devices=20, told=10, known=1, still=1),
        "server": Telling(devices=10, told=10),
    }
    silence, text = Coverage(treated, control).silence()
    assert silence == Silence(20, 20)
    assert "10 of 30 devices with the new release do not tell enough" in text


def test_all_of_a_side_are_counted_together() -> None:
    found = Coverage({"a": side(3, 2), "b": side(4, 1)}, {})
    assert (found.new, found.old) == (side(7, 3), Telling())
