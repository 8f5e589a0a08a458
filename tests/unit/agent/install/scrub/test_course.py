"""Which file is compared next: each once in a pass, whatever comes and goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.install.budget.ledger import SET_S
from agent.install.scrub.course import (
    END,
    Course,
    StoredFile,
    allowance_bytes,
    compared,
    next_file,
    under_way,
)
from agent.install.scrub.settings import ScrubSettings
from wire.durations import DAY_S

FILES = st.sets(
    st.builds(StoredFile, st.sampled_from(["a" * 64, "b" * 64]), st.text("abc/.", min_size=1)),
    max_size=8,
)
NOW_S = 1_750_000_000.0
BEGUN = Course(began_s=NOW_S, is_over=False)


def done(course: Course, files: set[StoredFile]) -> list[StoredFile]:
    """Return what a pass compares from here to its end."""
    found = []
    while (file := next_file(course, files)) is not None:
        found.append(file)
        course = compared(course, file, 10, is_whole=True)
    return found


@given(files=FILES)
def test_a_pass_compares_each_file_once(files: set[StoredFile]) -> None:
    assert done(BEGUN, files) == sorted(files)


@given(files=FILES, later=FILES, data=st.data())
def test_what_stays_is_compared_also_if_other_files_come_and_go(
    files: set[StoredFile], later: set[StoredFile], data: st.DataObject
) -> None:
    course, seen = BEGUN, []
    for _ in range(data.draw(st.integers(0, len(files)))):
        file = next_file(course, files)
        if file is None:
            break
        seen.append(file)
        course = compared(course, file, 10, is_whole=True)
    seen += done(course, later)
    assert len(seen) == len(set(seen))
    assert set(seen) >= files & later


@given(files=FILES, digest=st.sampled_from(["a" * 64, "b" * 64]))
def test_behind_the_end_of_a_package_come_the_others_alone(
    files: set[StoredFile], digest: str
) -> None:
    course = compared(BEGUN, StoredFile(digest, END), 0, is_whole=False)
    assert done(course, files) == sorted(file for file in files if file.digest > digest)
    assert course.damaged == 1


@given(now_s=st.floats(SET_S, 4e9), began_s=st.floats(1, 4e9), every_s=st.floats(1, 1e8))
def test_a_pass_is_due_if_the_last_one_began_long_enough_ago_or_in_the_future(
    now_s: float, began_s: float, every_s: float
) -> None:
    found = under_way(Course(began_s=began_s, is_over=True), now_s, every_s, 0.0)
    if now_s < began_s or now_s - began_s >= every_s:
        assert found == Course(began_s=now_s, is_over=False)
    else:
        assert found is None


@given(
    now_s=st.floats(0, SET_S, exclude_max=True),
    began_s=st.floats(1, 4e9),
    every_s=st.floats(1, 1e8),
    ran_s=st.floats(0, 1e8),
)
def test_a_clock_that_was_not_set_makes_a_pass_due_only_after_so_long_a_run(
    now_s: float, began_s: float, every_s: float, ran_s: float
) -> None:
    found = under_way(Course(began_s=began_s, is_over=True), now_s, every_s, ran_s)
    assert (found is not None) == (ran_s >= every_s)


@given(now_s=st.floats(0, 4e9), every_s=st.floats(1, 1e8), ran_s=st.floats(0, 1e8))
def test_a_pass_that_is_not_over_goes_on(now_s: float, every_s: float, ran_s: float) -> None:
    course = compared(BEGUN, StoredFile("a" * 64, "x"), 10, is_whole=True)
    assert under_way(course, now_s, every_s, ran_s) is course


@pytest.mark.parametrize("now_s", [NOW_S, 100.0])
def test_a_new_device_begins_with_a_pass(now_s: float) -> None:
    assert under_way(Course(), now_s, DAY_S, 0.0) == Course(began_s=now_s, is_over=False)


@given(rate=st.integers(1, 10**7), passed_s=st.floats(-10, 1e6), most_s=st.floats(0, 60))
def test_no_pause_is_made_up_for(rate: int, passed_s: float, most_s: float) -> None:
    assert 0 <= allowance_bytes(rate, passed_s, most_s) <= rate * most_s


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({}, None),
        ({"every_days": 0.0}, None),
        ({"every_days": -1.0}, "scrub.every_days is not within 0 to 366"),
        ({"every_days": float("nan")}, "scrub.every_days is not within 0 to 366"),
        ({"bytes_per_s": 0}, "scrub.bytes_per_s is not within 16384 to 8388608"),
    ],
)
def test_impossible_settings_are_faults(values: dict[str, float], fault: str | None) -> None:
    assert ScrubSettings(**values).faults() == ([] if fault is None else [fault])  # type: ignore[arg-type]
