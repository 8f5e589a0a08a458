"""The distributions that a package carries: made of the evaluation, and used alike on a device."""

from __future__ import annotations

import numpy as np
import pytest

from packager.judge.distributions import LEAST_SAMPLES, distributions
from runtime_adapters.distributions import MOST_ELEMENTS, bins, is_known, rows_of, values
from runtime_adapters.protocol import Tensor
from wire.codec import to_json
from wire.package.distribution import MAX_BINS, MAX_DISTRIBUTIONS, Distribution
from wire.package.tensors import TensorSpec

CHANCE = np.random.Generator(np.random.PCG64(3))
SAMPLES = 400


def scores(classes: int, samples: int = SAMPLES) -> Tensor:
    return CHANCE.normal(size=(samples, classes)).astype(np.float32)


def made(name: str, tensor: Tensor) -> list[Distribution]:
    return list(distributions({}, {name: tensor}))


def test_scores_have_classes_and_low_margins() -> None:
    tensor = scores(5)
    by_class, by_margin = made("scores", tensor)
    assert (by_class.measure, by_class.of, by_class.tensor) == ("class", "output", "scores")
    assert by_class.classes == (0, 1, 2, 3, 4)
    assert by_class.counts == (*np.bincount(tensor.argmax(axis=1)).tolist(), 0)
    assert by_margin.measure == "margin"
    assert by_margin.counts == (SAMPLES // 10, SAMPLES - SAMPLES // 10)


def test_rare_classes_are_others() -> None:
    tensor = np.zeros((2000, 300), np.float32)
    answers = np.minimum(CHANCE.geometric(0.05, 2000), 299)
    tensor[np.arange(2000), answers] = 1
    by_class = made("scores", tensor)[0]
    assert len(by_class.counts) == MAX_BINS
    assert sum(by_class.counts) == 2000
    assert by_class.counts[-1] == (~np.isin(answers, by_class.classes)).sum() > 0


def test_other_numbers_have_the_tenths_of_their_mean_and_spread() -> None:
    found = distributions({"image": CHANCE.integers(0, 255, (SAMPLES, 8, 8, 3), np.uint8)}, {})
    assert [(each.of, each.measure) for each in found] == [("input", "mean"), ("input", "spread")]
    for each in found:
        assert list(each.edges) == sorted(each.edges)
        assert sum(each.counts) == SAMPLES
        assert max(each.counts) - min(each.counts) <= 2


@pytest.mark.parametrize(
    "tensor",
    [
        np.ones((SAMPLES, 4), np.int32),
        np.full((SAMPLES, 4), "text"),
        np.full((SAMPLES, 4), np.nan),
        np.zeros((SAMPLES, 0)),
        scores(5, LEAST_SAMPLES - 1),
    ],
    ids=["constant", "texts", "not a number", "empty", "few"],
)
def test_what_tells_nothing_has_no_distribution(tensor: Tensor) -> None:
    assert made("x", tensor) == []


def test_their_number_and_size_are_bounded() -> None:
    many = {f"scores{at}": scores(100, 3000) for at in range(MAX_DISTRIBUTIONS)}
    found = distributions(many, many)
    assert len(found) == MAX_DISTRIBUTIONS
    assert {each.of for each in found} == {"output"}
    assert len(to_json(list(found))) <= 16 * 1024


def test_one_request_falls_into_the_bin_of_its_sample() -> None:
    spec = TensorSpec(name="scores", datatype="FP32", shape=(-1, 5))
    tensor = scores(5)
    for each in made("scores", tensor):
        assert is_known(each)
        counts = np.zeros(len(each.counts), int)
        for request in np.split(tensor, [1, 2, 150]):  # of one sample, and of several
            np.add.at(counts, bins(each, rows_of(request, spec)), 1)
        assert tuple(counts.tolist()) == each.counts


def test_a_tensor_without_a_batch_is_one_sample() -> None:
    spec = TensorSpec(name="x", datatype="FP32", shape=(3, 4))
    assert rows_of(np.zeros((3, 4)), spec).shape == (1, 12)
    scalar = TensorSpec(name="x", datatype="FP32", shape=())
    assert rows_of(np.array(1.0), scalar).shape == (1, 1)


def test_a_class_beyond_the_known_and_a_value_that_is_no_number_are_in_the_last_bin() -> None:
    by_class = Distribution(
        of="output", tensor="x", measure="class", classes=(1, 3), counts=(1, 1, 1)
    )
    one_hot = np.eye(5)[[3, 4, 1, 0, 2]]
    assert bins(by_class, one_hot).tolist() == [1, 2, 0, 2, 2]
    by_mean = Distribution(
        of="input", tensor="x", measure="mean", edges=(0.0, 1.0), counts=(1, 1, 1)
    )
    assert bins(by_mean, np.array([[0.0], [0.5], [1.0], [1.5], [np.nan]])).tolist() == [
        0,
        1,
        1,
        2,
        2,
    ]


def test_a_large_tensor_is_measured_by_some_elements_of_all_channels() -> None:
    image = np.tile(np.array([0.0, 30.0, 60.0]), 224 * 224).reshape(1, -1)
    assert values("mean", image)[0] == pytest.approx(30.0, abs=0.1)
    assert image.size > 10 * MOST_ELEMENTS


def test_what_a_later_version_may_write_is_not_known() -> None:
    assert not is_known(Distribution(of="input", tensor="x", measure="kurtosis", counts=(1,)))
    wrong = Distribution(of="input", tensor="x", measure="mean", edges=(1.0,), counts=(1,))
    assert not is_known(wrong)
