"""The choice of golden samples: sensitive, and passed by every kept variant."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.errors import DataError
from packager.judge.comparison import agreeing, compare
from packager.judge.golden import (
    GUARD,
    OTHER_GUARD,
    SAMPLES,
    VariantAnswers,
    errors,
    margins,
    pick,
)
from runtime_adapters.golden import compare as device_compare
from runtime_adapters.protocol import Tensors


def answered(
    answers: Tensors, reference: Tensors, metric: str, indices: list[int] | None = None
) -> VariantAnswers:
    total = len(next(iter(reference.values())))
    comparison = compare(answers, reference, None, metric, indices=indices)
    return VariantAnswers(answers, indices or range(total), comparison)


def noisy(reference: Tensors, scale: float, seed: int) -> Tensors:
    rng = np.random.default_rng(seed)
    return {
        name: (tensor + rng.normal(scale=scale, size=tensor.shape)).astype(np.float32)
        for name, tensor in reference.items()
    }


def scores(samples: int, seed: int = 0, shape: tuple[int, ...] = (10,)) -> Tensors:
    rng = np.random.default_rng(seed)
    return {"s": rng.normal(size=(samples, *shape)).astype(np.float32)}


def passed_by_all(chosen: list[int], reference: Tensors, variants: list[VariantAnswers]) -> bool:
    return all(
        device_compare(
            variant.answers[name][[list(variant.indices).index(index)]],
            tensor[[index]],
            variant.comparison.tolerances()[name],
        )[0]
        <= 1.0
        for variant in variants
        for name, tensor in reference.items()
        for index in chosen
    )


def test_other_kernels_keep_them_further_from_the_boundary() -> None:
    reference = scores(400)
    exact = answered(reference, reference, "agreement")
    others = answered(noisy(reference, 0.05, 1), reference, "agreement")
    others = others._replace(guard=OTHER_GUARD)
    chosen = pick(reference, [exact, others], "agreement").samples
    error = others.comparison.worst_errors["s"]
    assert min(margins(others.answers["s"])[chosen]) > OTHER_GUARD * error
    near = pick(reference, [exact], "agreement").samples
    assert min(margins(reference["s"])[near]) < OTHER_GUARD * error


def test_they_lie_near_the_decision_boundary() -> None:
    reference = scores(200)
    chosen = pick(reference, [answered(reference, reference, "agreement")], "agreement")
    gaps = margins(reference["s"])
    assert len(chosen.samples) == SAMPLES
    assert chosen.min_agreement == 1.0
    assert max(gaps[chosen.samples]) < np.median(gaps)


def test_they_are_those_on_which_all_variants_agree_with_room() -> None:
    reference = scores(300)
    variants = [answered(noisy(reference, 0.2, s), reference, "agreement") for s in range(3)]
    chosen = pick(reference, variants, "agreement")
    assert len(chosen.samples) == SAMPLES
    assert chosen.samples == sorted(chosen.samples)
    for variant in variants:
        assert agreeing(variant.answers, reference, "s")[chosen.samples].all()
        error = variant.comparison.worst_errors["s"]
        assert (margins(variant.answers["s"])[chosen.samples] > GUARD * error).all()
    assert passed_by_all(chosen.samples, reference, variants)


def test_few_safe_samples_are_filled_up() -> None:
    reference = {"s": np.tile(np.array([[0.0, 1e-6]], np.float32), (20, 1))}
    chosen = pick(reference, [answered(reference, reference, "agreement")], "agreement")
    assert len(chosen.samples) == SAMPLES
    assert chosen.min_agreement == 1.0


def test_where_nothing_agrees_everywhere_tolerances_decide() -> None:
    reference = scores(40, shape=(500, 4))
    variant = answered(noisy(reference, 0.3, 1), reference, "agreement")
    assert not agreeing(variant.answers, reference, "s").any()
    chosen = pick(reference, [variant], "agreement")
    assert chosen.min_agreement == 0.0
    assert len(chosen.samples) == SAMPLES
    assert passed_by_all(chosen.samples, reference, [variant])


def test_only_samples_that_all_answered_are_chosen() -> None:
    reference = scores(300)
    native = answered(noisy(reference, 0.05, 1), reference, "agreement")
    asked = list(range(299, -1, -7))
    done = asked[:20]
    rows = {"s": noisy(reference, 0.05, 2)["s"][done]}
    emulated = answered(rows, reference, "agreement", asked)
    chosen = pick(reference, [native, emulated], "agreement")
    assert len(chosen.samples) == SAMPLES
    assert set(chosen.samples) <= set(done)
    assert passed_by_all(chosen.samples, reference, [native, emulated])


def test_variants_without_a_common_sample_have_no_golden_one() -> None:
    reference = scores(40)
    one = answered({"s": reference["s"][:10]}, reference, "agreement", list(range(10)))
    other = answered({"s": reference["s"][20:30]}, reference, "agreement", list(range(20, 30)))
    with pytest.raises(DataError, match="different answers for every evaluation sample"):
        pick(reference, [one, other], "agreement")


@pytest.mark.parametrize("metric", ["mae", "cosine"])
def test_without_classes_they_are_where_variants_err_most(metric: str) -> None:
    reference = scores(200, shape=(3,))
    gains = np.linspace(0.1, 1.0, 200)[:, None]
    rough = {"s": (reference["s"] + gains * noisy(reference, 0.2, 1)["s"]).astype(np.float32)}
    fine = {"s": (reference["s"] + gains[::-1] * 1e-3).astype(np.float32)}
    variants = [answered(rough, reference, metric), answered(fine, reference, metric)]
    chosen = pick(reference, variants, metric)
    assert chosen.min_agreement == 0.0
    assert len(chosen.samples) == SAMPLES
    for variant in variants:  # each has its turns
        ratios = errors(variant.answers, reference, variant.comparison.tolerances())
        assert len(set(chosen.samples) & set(np.argsort(-ratios)[:SAMPLES])) >= SAMPLES // 2 - 1
        assert ratios.max() <= 1.0
    assert passed_by_all(chosen.samples, reference, variants)


def test_without_any_error_they_are_spread() -> None:
    values = {"y": np.zeros((80, 1), np.float32)}
    chosen = pick(values, [answered(values, values, "cosine")], "cosine")
    assert chosen.samples == [0, 10, 20, 30, 40, 50, 60, 70]


def test_infinite_answers_of_the_reference_do_not_disturb() -> None:
    reference = scores(60)
    reference["s"][::2, 3] = -np.inf
    variant = answered(noisy(reference, 0.05, 1), reference, "agreement")
    for metric in ("agreement", "cosine"):
        chosen = pick(reference, [variant], metric)
        assert len(chosen.samples) == SAMPLES
        assert passed_by_all(chosen.samples, reference, [variant])


@given(
    st.integers(0, 2**32 - 1),
    st.integers(10, 60),
    st.floats(0, 1),
    st.sampled_from(["agreement", "cosine"]),
)
def test_whatever_the_answers_every_variant_passes(
    seed: int, samples: int, scale: float, metric: str
) -> None:
    reference = scores(samples, seed)
    variants = [
        answered(reference, reference, metric),
        answered(noisy(reference, scale, seed + 1), reference, metric),
    ]
    chosen = pick(reference, variants, metric)
    assert len(chosen.samples) == SAMPLES == len(set(chosen.samples))
    assert passed_by_all(chosen.samples, reference, variants)
    if chosen.min_agreement:
        assert agreeing(variants[1].answers, reference, "s")[chosen.samples].all()
