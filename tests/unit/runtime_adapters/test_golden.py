"""Golden samples come back as they were saved, and tell a right answer from a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from runtime_adapters.errors import InferenceError, InputError
from runtime_adapters.golden import (
    WORST_RATIO,
    GoldenResult,
    check_golden,
    compare,
    load_golden,
    save_golden,
)
from runtime_adapters.protocol import SessionDescription, Tensor, Tensors
from runtime_adapters.tensors import DTYPES, datatype_of
from wire.errors import WireFormatError
from wire.package.golden import Golden, Tolerance
from wire.package.paths import safe_path
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

SAMPLES = 4
EXACT = Tolerance(absolute=0.0, relative=0.0)
LOOSE = Tolerance(absolute=0.01, relative=0.001)
PLAIN_TYPES = st.sampled_from([dtype for dtype in DTYPES.values() if not dtype.hasobject])


class TableSession:
    """A session that knows its answers by heart: the first input's first element says which."""

    def __init__(self, outputs: Tensors, kernels: str = "") -> None:
        self._outputs = outputs
        self._kernels = kernels

    def infer(self, inputs: Tensors) -> Tensors:
        index = int(next(iter(inputs.values())).flat[0])
        if index < 0:
            raise InferenceError("the table has no such row")
        return {name: tensor[index : index + 1] for name, tensor in self._outputs.items()}

    def describe(self) -> SessionDescription:
        return SessionDescription(
            runtime="t", version="1", devices=(), kernels=self._kernels, inputs=(), outputs=()
        )

    def close(self) -> None:
        return


def scores(seed: int = 0) -> Tensor:
    return np.random.default_rng(seed).normal(size=(SAMPLES, 10)).astype(np.float32)


def spec(name: str, tensor: Tensor) -> TensorSpec:
    return TensorSpec(name=name, datatype=datatype_of(tensor.dtype), shape=(-1, *tensor.shape[1:]))


def verdict(
    directory: Path,
    answers: Tensors,
    reference: Tensors,
    *,
    golden: Golden | None = None,
    rows: Tensor | None = None,
    also: Callable[[Tensors], None] | None = None,
    kernels: str = "",
) -> GoldenResult:
    """Save the reference as golden samples and judge the answers."""
    inputs: Tensors = {"row": np.arange(SAMPLES) if rows is None else rows}
    for name, content in save_golden(inputs, reference).items():
        (directory / name).write_bytes(content)
    info = VariantInfo(
        runtime="table",
        precision="fp32",
        model_file="m",
        inputs=tuple(spec(name, tensor) for name, tensor in inputs.items()),
        outputs=tuple(spec(name, tensor) for name, tensor in reference.items()),
        size_bytes=1,
        golden=golden
        or Golden(asset="sha256:0", samples=SAMPLES, tolerances=dict.fromkeys(reference, LOOSE)),
    )
    return check_golden(TableSession(answers, kernels), info, directory, also=also)


def test_the_reference_itself_passes(tmp_path: Path) -> None:
    result = verdict(tmp_path, {"y": scores()}, {"y": scores()})
    assert result == GoldenResult(
        passed=True, samples=SAMPLES, agreement=1.0, worst_ratio=0.0, detail=""
    )


def test_what_cannot_be_done_with_an_answer_fails_it(tmp_path: Path) -> None:
    seen: list[Tensor] = []

    def also(outputs: Tensors) -> None:
        seen.append(outputs["y"])
        if len(seen) == SAMPLES:
            raise InferenceError("these are no boxes")

    result = verdict(tmp_path, {"y": scores()}, {"y": scores()}, also=also)
    assert not result.passed
    assert result.detail == "these are no boxes"
    assert np.array_equal(np.concatenate(seen), scores())


def test_one_element_out_of_tolerance_fails_and_is_named(tmp_path: Path) -> None:
    answers = scores()
    answers[2, 5] += 0.05
    result = verdict(tmp_path, {"y": answers}, {"y": scores()})
    assert not result.passed
    assert 4.0 < result.worst_ratio < 5.1
    assert result.detail.startswith("sample 2: output 'y' is off by")


FAST, OWN = "one: fast", "another: own"


@pytest.mark.parametrize(
    ("kernels", "off", "passed"),
    [
        (FAST, 0.009, True),
        (FAST, 0.05, False),  # wider tolerances are for other kernels alone
        (OWN, 0.05, True),
        (OWN, 0.2, False),
        ("", 0.05, True),
    ],
)
def test_a_device_is_held_to_the_tolerances_of_the_kernels_that_compute_there(
    tmp_path: Path, kernels: str, off: float, passed: bool
) -> None:
    golden = Golden(
        asset="sha256:0",
        samples=SAMPLES,
        tolerances={"y": LOOSE},
        kernels=FAST,
        other_tolerances={"y": Tolerance(absolute=0.1, relative=0.001)},
    )
    answers = scores() + np.float32(off)
    found = verdict(tmp_path, {"y": answers}, {"y": scores()}, golden=golden, kernels=kernels)
    assert found.passed == passed


@pytest.mark.parametrize("kernels", [FAST, OWN])
def test_other_kernels_never_narrow_a_tolerance(tmp_path: Path, kernels: str) -> None:
    golden = Golden(
        asset="sha256:0",
        samples=SAMPLES,
        tolerances={"y": LOOSE},
        kernels=FAST,
        other_tolerances={"y": EXACT},
    )
    answers = scores() + np.float32(0.009)
    assert verdict(tmp_path, {"y": answers}, {"y": scores()}, golden=golden, kernels=kernels).passed


def test_a_build_that_tried_no_other_kernels_asks_the_same_of_all(tmp_path: Path) -> None:
    answers = scores() + np.float32(0.05)
    assert not verdict(tmp_path, {"y": answers}, {"y": scores()}, kernels=OWN).passed


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_fails(tmp_path: Path, bad: float) -> None:
    answers = scores()
    answers[1, 1] = bad
    endless = Golden(
        asset="sha256:0",
        samples=SAMPLES,
        tolerances={"y": Tolerance(absolute=1e300, relative=1e300)},
        min_agreement=0.0,
    )
    result = verdict(tmp_path, {"y": answers}, {"y": scores()}, golden=endless)
    assert not result.passed
    assert result.worst_ratio == WORST_RATIO
    assert msgspec.json.decode(msgspec.json.encode(result), type=GoldenResult) == result


def test_another_first_answer_fails_within_tolerance(tmp_path: Path) -> None:
    reference = np.array([[0.500, 0.501]] * SAMPLES, np.float32)
    answers = reference.copy()
    answers[0] = [0.502, 0.501]
    result = verdict(tmp_path, {"y": answers}, {"y": reference})
    assert result.worst_ratio <= 1.0
    assert not result.passed
    assert result.agreement == 0.75
    assert result.detail == "agreement is 0.750, at least 1.000 is needed"


def test_the_declared_agreement_is_enough(tmp_path: Path) -> None:
    reference = np.array([[0.500, 0.501]] * SAMPLES, np.float32)
    answers = reference.copy()
    answers[0] = [0.502, 0.501]
    golden = Golden(asset="sha256:0", samples=SAMPLES, tolerances={"y": LOOSE}, min_agreement=0.75)
    assert verdict(tmp_path, {"y": answers}, {"y": reference}, golden=golden).passed


def test_every_output_counts(tmp_path: Path) -> None:
    reference = {"a": scores(1), "b": np.arange(SAMPLES * 2).reshape(SAMPLES, 2)}
    assert verdict(tmp_path, reference, reference).passed
    wrong = reference | {"b": reference["b"] + 1}
    assert not verdict(tmp_path, wrong, reference).passed


def test_an_answer_of_another_shape_fails(tmp_path: Path) -> None:
    result = verdict(tmp_path, {"y": scores()[:, :5]}, {"y": scores()})
    assert (result.passed, result.worst_ratio) == (False, WORST_RATIO)


def test_a_failing_runtime_is_a_failed_test(tmp_path: Path) -> None:
    rows = np.array([0, 1, -1, 3])
    result = verdict(tmp_path, {"y": scores()}, {"y": scores()}, rows=rows)
    assert (result.passed, result.detail) == (False, "the table has no such row")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"samples": SAMPLES + 1}, "4 samples, but the variant declares 5"),
        ({"samples": 0}, "4 samples, but the variant declares 0"),
        ({"tolerances": {}}, "no tolerance for output 'y'"),
    ],
)
def test_a_test_that_does_not_fit_its_declaration_fails(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    golden = Golden(asset="sha256:0", samples=SAMPLES, tolerances={"y": LOOSE})
    changed = msgspec.structs.replace(golden, **change)
    result = verdict(tmp_path, {"y": scores()}, {"y": scores()}, golden=changed)
    assert not result.passed
    assert words in result.detail


def test_without_golden_samples_nothing_is_passed(tmp_path: Path) -> None:
    info = VariantInfo(
        runtime="t", precision="p", model_file="m", inputs=(), outputs=(), size_bytes=1
    )
    result = check_golden(TableSession({}), info, tmp_path)
    assert (result.passed, result.detail) == (False, "the variant has no golden samples")


def test_a_missing_asset_is_a_failed_test(tmp_path: Path) -> None:
    golden = Golden(asset="sha256:0", samples=1, tolerances={})
    info = VariantInfo(
        runtime="t",
        precision="p",
        model_file="m",
        inputs=(),
        outputs=(),
        size_bytes=1,
        golden=golden,
    )
    assert not check_golden(TableSession({}), info, tmp_path / "none").passed


@given(
    array=hnp.arrays(
        dtype=PLAIN_TYPES,
        shape=hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4),
    ),
    name=st.text(min_size=1, max_size=20),
)
def test_samples_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, array: np.ndarray, name: str
) -> None:
    directory = tmp_path_factory.mktemp("golden")
    files = save_golden({name: array}, {name: array})
    assert files == save_golden({name: np.asfortranarray(array)}, {name: array.copy()})
    for file_name, content in files.items():
        assert safe_path(file_name) == file_name
        (directory / file_name).write_bytes(content)
    inputs, outputs = load_golden(directory)
    assert list(inputs) == list(outputs) == [name]
    for tensor in (inputs[name], outputs[name]):
        assert tensor.dtype == array.dtype
        assert tensor.shape == array.shape
        assert tensor.tobytes() == array.tobytes()


@given(
    position=st.integers(0, 127),
    value=st.integers(0, 255),
    cut=st.integers(0, 200),
    tail=st.binary(max_size=4),
)
def test_damaged_files_are_refused_or_read_never_worse(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int, cut: int, tail: bytes
) -> None:
    directory = tmp_path_factory.mktemp("damaged")
    files = save_golden({"x": np.arange(8.0)}, {"y": np.arange(8.0)})
    (directory / "output.y.npy").write_bytes(files["output.y.npy"])
    damaged = bytearray(files["input.x.npy"])
    damaged[position] = value
    (directory / "input.x.npy").write_bytes(bytes(damaged[: len(damaged) - cut]) + tail)
    try:
        inputs, _ = load_golden(directory)
    except WireFormatError:
        return
    assert inputs["x"].nbytes <= len(damaged) + len(tail)


@pytest.mark.parametrize("name", ["other.npy", "input.npy", "input..npy", "inputs.x.npy"])
def test_a_file_of_no_role_is_refused(tmp_path: Path, name: str) -> None:
    for file_name, content in save_golden({"x": np.ones(1)}, {"y": np.ones(1)}).items():
        (tmp_path / file_name).write_bytes(content)
    (tmp_path / name).write_bytes((tmp_path / "input.x.npy").read_bytes())
    with pytest.raises(WireFormatError, match="is not an input or output"):
        load_golden(tmp_path)


def test_pickled_objects_are_never_read(tmp_path: Path) -> None:
    np.save(tmp_path / "input.x.npy", np.array([{"a": 1}], object), allow_pickle=True)
    (tmp_path / "output.y.npy").write_bytes(
        save_golden({"x": np.ones(1)}, {"y": np.ones(1)})["output.y.npy"]
    )
    with pytest.raises(WireFormatError, match="does not hold what its header says"):
        load_golden(tmp_path)


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ({}, {"y": np.ones(1)}),
        ({"x": np.ones(1)}, {}),
        ({"x": np.ones(2)}, {"y": np.ones(3)}),
        ({"x": np.ones((0, 2))}, {"y": np.ones((0, 2))}),
        ({"x": np.array(1.0)}, {"y": np.ones(1)}),
        ({"x": np.array([b"a"], object)}, {"y": np.ones(1)}),
        ({"x": np.array([1j])}, {"y": np.ones(1)}),
        ({"": np.ones(1)}, {"y": np.ones(1)}),
        ({"n" * 300: np.ones(1)}, {"y": np.ones(1)}),
    ],
)
def test_what_cannot_be_golden_is_not_saved(inputs: Tensors, outputs: Tensors) -> None:
    with pytest.raises(InputError, match="golden"):
        save_golden(inputs, outputs)


finite = hnp.arrays(np.float64, (3, 4), elements=st.floats(-1e6, 1e6))


@given(
    reference=finite,
    tolerance=st.builds(Tolerance, absolute=st.floats(0, 10), relative=st.floats(0, 1)),
)
def test_an_array_compares_equal_with_itself(reference: Tensor, tolerance: Tolerance) -> None:
    assert compare(reference.copy(), reference, tolerance) == (0.0, True)


@given(reference=finite, share=st.floats(-3, 3), where=st.integers(0, 11))
def test_the_ratio_is_the_error_over_the_tolerance(
    reference: Tensor, share: float, where: int
) -> None:
    tolerance = Tolerance(absolute=0.5, relative=0.01)
    answer = reference.copy()
    allowed = 0.5 + 0.01 * abs(float(reference.flat[where]))
    answer.flat[where] += share * allowed
    ratio, _ = compare(answer, reference, tolerance)
    assert ratio == pytest.approx(abs(share), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("answer", "reference", "ratio"),
    [
        ([np.inf], [np.inf], 0.0),
        ([-np.inf], [np.inf], WORST_RATIO),
        ([1.0], [np.inf], WORST_RATIO),
        ([np.nan], [np.nan], WORST_RATIO),
        ([0.0], [0.0], 0.0),
        ([1e-30], [0.0], WORST_RATIO),
    ],
)
def test_edges_of_the_comparison(answer: list[float], reference: list[float], ratio: float) -> None:
    assert compare(np.array(answer), np.array(reference), EXACT)[0] == ratio


@pytest.mark.parametrize("bad", [-1.0, np.nan])
def test_an_impossible_tolerance_lets_nothing_pass(tmp_path: Path, bad: float) -> None:
    tolerance = Tolerance(absolute=bad, relative=0.0)
    assert compare(np.array([1.5]), np.array([1.0]), tolerance)[0] == WORST_RATIO
    golden = Golden(
        asset="sha256:0", samples=SAMPLES, tolerances={"y": LOOSE}, min_agreement=np.nan
    )
    assert not verdict(tmp_path, {"y": scores()}, {"y": scores()}, golden=golden).passed


def test_great_integers_are_not_equal_because_floats_are() -> None:
    great = np.array([2**60], np.int64)
    assert compare(great, great, EXACT)[0] == 0.0
    assert compare(great + 1, great, Tolerance(absolute=0.5, relative=0.0))[0] == 2.0


def test_an_empty_output_and_a_scalar_compare() -> None:
    assert compare(np.ones((1, 0)), np.ones((1, 0)), EXACT) == (0.0, True)
    assert compare(np.array(1.0), np.array(1.0), EXACT) == (0.0, True)
    assert compare(np.array([True]), np.array([False]), EXACT)[0] == WORST_RATIO
