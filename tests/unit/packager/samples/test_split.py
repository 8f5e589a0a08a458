"""Splitting: disjoint, complete, in proportion, and the same every time."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packager.errors import DataError
from packager.samples.arrays import MIN_SAMPLES
from packager.samples.named_labels import load_named
from packager.samples.parts import make_parts
from packager.samples.readers import SampleSource
from packager.samples.split import Division, Given, digests, divide
from packager.samples.store import load_inputs, load_labels
from wire.package.tensors import TensorSpec

SPEC = TensorSpec(name="input", datatype="FP32", shape=(-1, 3))
SMALL_SHARE = 0.25


def fresh(count: int, *, first: int = 0, classes: int = 0) -> Given:
    names = range(first, first + count)
    labels = np.array([i % classes for i in names]) if classes else None
    found = digests({"x": np.array(names, np.int64)[:, None]})
    return Given(found, labels)


def chosen(division: Division, part: str) -> list[int]:
    return {str(name): list(map(int, found[1])) for name, found in division.parts.items()}[part]


@st.composite
def sets(draw: st.DrawFn) -> Given:
    """A set with doubles, and labels or none."""
    contents = draw(st.lists(st.integers(0, 500), min_size=120, max_size=400))
    contents += list(range(1000, 1060))
    classes = draw(st.sampled_from([0, 1, 2, 10]))
    labels = np.array([c % classes for c in contents]) if classes else None
    return Given([c.to_bytes(16, "big") for c in contents], labels)


@settings(max_examples=50)
@given(sets())
def test_a_single_set_is_split_completely_and_doubles_stay_together(whole: Given) -> None:
    division = divide({"evaluation": whole})
    parts = [chosen(division, part) for part in ("calibration", "tuning", "gate")]
    assert sorted(chain(*parts)) == list(range(len(whole.digests)))
    contents = [{whole.digests[i] for i in part} for part in parts]
    assert sum(map(len, contents)) == len(set(whole.digests))
    assert all(part == sorted(part) for part in parts)


@settings(max_examples=50)
@given(sets(), st.randoms(use_true_random=False))
def test_the_order_in_the_file_does_not_matter(whole: Given, random: object) -> None:
    order = list(range(len(whole.digests)))
    random.shuffle(order)  # type: ignore[attr-defined]
    labels = None if whole.labels is None else whole.labels[order]
    moved = Given([whole.digests[i] for i in order], labels)
    for part in ("calibration", "tuning", "gate"):
        before = Counter(whole.digests[i] for i in chosen(divide({"a": whole}), part))
        after = Counter(moved.digests[i] for i in chosen(divide({"a": moved}), part))
        assert before == after


@settings(max_examples=50)
@given(st.integers(40, 2000), st.integers(1, 30))
def test_each_part_has_each_class_in_proportion(count: int, classes: int) -> None:
    whole = fresh(count, classes=classes)
    division = divide({"evaluation": whole})
    labels = whole.labels
    assert labels is not None
    for part, share in (("calibration", 0.25), ("tuning", 0.25), ("gate", 0.5)):
        found = labels[chosen(division, part)]
        assert abs(len(found) - share * count) <= 1
        for label in range(classes):
            ideal = share * int((labels == label).sum())
            assert abs(int((found == label).sum()) - ideal) < 2


def test_targets_are_spread_by_their_value() -> None:
    whole = fresh(400)
    targets = np.linspace(0, 1, 400)
    division = divide({"evaluation": Given(whole.digests, targets)})
    for part in ("calibration", "tuning", "gate"):
        assert np.mean(targets[chosen(division, part)]) == pytest.approx(0.5, abs=0.01)


def test_labels_that_cannot_be_ordered_are_not_stratified_by() -> None:
    whole = fresh(40)
    for labels in (np.zeros((40, 2)), np.full(40, np.nan)):
        division = divide({"a": Given(whole.digests, labels)})
        assert "by label" not in division.notes[0]


def test_the_split_is_told_in_one_line() -> None:
    whole = fresh(100).digests
    doubled = Given([*whole, *whole[:4]], np.array([*(i % 5 for i in range(100)), 0, 1, 2, 3]))
    note = divide({"evaluation": doubled}).notes[0]
    assert note == (
        "one set of 104 samples was split: 26 for calibration, 26 for tuning, 52 for gate, "
        "evenly by label, 4 doubles kept together"
    )


@settings(max_examples=50)
@given(st.integers(16, 600), st.integers(8, 600), st.integers(0, 3))
def test_tuning_samples_come_from_calibration_and_the_gate_is_the_evaluation_set(
    calibration: int, evaluation: int, classes: int
) -> None:
    given_sets = {
        "calibration": fresh(calibration, classes=classes),
        "evaluation": fresh(evaluation, first=10_000, classes=classes),
    }
    division = divide(given_sets)
    assert chosen(division, "gate") == list(range(evaluation))
    halves = [chosen(division, "calibration"), chosen(division, "tuning")]
    assert sorted(chain(*halves)) == list(range(calibration))
    assert abs(len(halves[0]) - len(halves[1])) <= 1
    assert division.parts["tuning"][0] == "calibration"
    assert division.overlap == 0.0


def test_three_given_sets_stay_as_they_are() -> None:
    division = divide(
        {
            "calibration": fresh(20),
            "tuning": fresh(30, first=100),
            "evaluation": fresh(40, first=200),
        }
    )
    lengths = {part: (name, len(found)) for part, (name, found) in division.parts.items()}
    assert lengths == {
        "calibration": ("calibration", 20), "tuning": ("tuning", 30), "gate": ("evaluation", 40),
    }  # fmt: skip


def test_a_few_doubles_are_taken_out_of_what_is_not_the_gate() -> None:
    calibration, evaluation = fresh(400), fresh(200, first=399)
    division = divide({"calibration": calibration, "evaluation": evaluation})
    assert division.overlap == 1 / 200
    assert len(chosen(division, "gate")) == 200
    others = chosen(division, "calibration") + chosen(division, "tuning")
    assert sorted(others) == list(range(399))
    tuning, evaluation = fresh(200, first=399), fresh(200, first=598)
    division = divide({"calibration": calibration, "tuning": tuning, "evaluation": evaluation})
    assert len(chosen(division, "tuning")) == 199
    assert sorted(chosen(division, "calibration")) == list(range(399))


@pytest.mark.parametrize(
    ("given_sets", "text"),
    [
        ({"evaluation": fresh(30)}, "the evaluation data leave 7 samples for tuning"),
        ({"a": Given([b"same"] * 1000)}, "leave 0 samples for calibration"),
        (
            {"calibration": fresh(15), "evaluation": fresh(20, first=50)},
            "the calibration data leave 7 samples for tuning",
        ),
        (
            {"calibration": fresh(100), "evaluation": fresh(100, first=98)},
            "2 of the 100 evaluation samples are also calibration samples",
        ),
        (
            {"calibration": fresh(50), "tuning": fresh(50), "evaluation": fresh(9, first=50)},
            "50 of the 50 tuning samples are also calibration samples",
        ),
        ({"calibration": fresh(50), "tuning": fresh(50, first=50)}, "no evaluation data"),
    ],
)
def test_what_cannot_be_split_is_refused(given_sets: dict[str, Given], text: str) -> None:
    with pytest.raises(DataError, match=text) as caught:
        divide(given_sets)
    assert "\n" not in str(caught.value)


def test_without_calibration_everything_is_the_gate() -> None:
    division = divide({"evaluation": fresh(MIN_SAMPLES)}, calibrated=False)
    assert chosen(division, "gate") == list(range(MIN_SAMPLES))
    assert set(division.parts) == {"gate"}
    both = {"calibration": fresh(50), "evaluation": fresh(9, first=50)}
    division = divide(both, calibrated=False)
    assert division.parts["gate"][0] == "evaluation"
    assert division.notes == ("calibration data are not used",)


def test_copies_among_the_samples_that_judge_are_told() -> None:
    few = Given([*fresh(200).digests, *fresh(2).digests])
    many = Given([*fresh(100).digests] * 3)
    assert not any("copies" in note for note in divide({"evaluation": few}, calibrated=False).notes)
    (note,) = divide({"evaluation": many}, calibrated=False).notes
    assert "200 of the 300 samples that judge are exact copies" in note


def test_digests_see_every_byte_of_every_input() -> None:
    first, second = np.arange(8.0).reshape(4, 2), np.arange(4)
    base = digests({"a": first, "b": second})
    assert len(set(base)) == 4
    assert digests({"b": second.copy(), "a": np.asfortranarray(first)}) == base
    changed = second.copy()
    changed[2] = 9
    assert [x == y for x, y in zip(digests({"a": first, "b": changed}), base, strict=True)] == [
        True, True, False, True,
    ]  # fmt: skip


def test_parts_lie_on_disk_with_their_own_samples_and_labels(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    values[:, 0] = np.arange(100)
    path = tmp_path / "one.npz"
    np.savez(path, x=values, y=np.arange(100) % 10)
    first, second = tmp_path / "first", tmp_path / "second"
    made = make_parts({"calibration": SampleSource(path)}, (SPEC,), first)
    assert made == make_parts({"calibration": SampleSource(path)}, (SPEC,), second)
    assert made.samples == {"calibration": 25, "tuning": 25, "gate": 50}
    assert len(made.notes) == 1
    seen: list[int] = []
    for part in made.samples:
        rows = load_inputs(first / part, (SPEC,))["input"]
        labels = load_labels(first / part)
        assert labels is not None
        assert np.array_equal(rows[:, 0] % 10, labels)
        seen += rows[:, 0].astype(int).tolist()
        for file in (first / part).iterdir():
            assert file.read_bytes() == (second / part / file.name).read_bytes()
    assert sorted(seen) == list(range(100))


def test_labels_of_further_metrics_lie_beside_the_samples_that_judge(tmp_path: Path) -> None:
    values = np.arange(300, dtype=np.float32).reshape(100, 3)
    path = tmp_path / "one.npz"
    np.savez(path, x=values, places=values[:, 0])
    source = {"evaluation": SampleSource(path)}
    make_parts(source, (SPEC,), tmp_path / "made", named=("places",))
    gate = tmp_path / "made" / "gate"
    labels = load_named(gate, "places", None)
    assert labels is not None
    assert np.array_equal(labels, load_inputs(gate, (SPEC,))["input"][:, 0])
    assert load_named(gate, "", labels) is None
    assert load_named(gate, "label", labels) is labels
    with pytest.raises(DataError, match="a further metric reads the labels 'y', but"):
        load_named(gate, "y", None)
    (tmp_path / "other").mkdir()
    with pytest.raises(DataError, match=r"one\.npz has no array 'spots', which a further metric"):
        make_parts(
            {"evaluation": SampleSource(path)},
            (SPEC,),
            tmp_path / "other",
            named=("places", "spots"),
        )
