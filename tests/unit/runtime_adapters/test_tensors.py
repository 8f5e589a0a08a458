"""Inputs are checked by name, type and shape, and copied only when they must be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from runtime_adapters.errors import InputError
from runtime_adapters.tensors import DTYPES, InputCheck, check_inputs, datatype_of, dtype_of
from wire.package.tensors import Datatype, TensorSpec

NAMES: tuple[Datatype, ...] = tuple(DTYPES)
SPECS = (
    TensorSpec(name="image", datatype="FP32", shape=(-1, 3, 4)),
    TensorSpec(name="scale", datatype="FP64", shape=()),
)


def good() -> dict[str, object]:
    return {"scale": np.array(2.0), "image": np.zeros((2, 3, 4), np.float32)}


@pytest.mark.parametrize("name", NAMES)
def test_types_go_there_and_back(name: Datatype) -> None:
    assert datatype_of(dtype_of(name)) == name


@pytest.mark.parametrize("dtype", [">f4", ">i8", "c8", "M8[s]", "U3", "S3", "V4"])
def test_a_type_without_a_name_is_refused(dtype: str) -> None:
    with pytest.raises(InputError, match="has no name"):
        datatype_of(np.dtype(dtype))


def test_inputs_come_out_in_declared_order_and_uncopied() -> None:
    given_inputs = good()
    checked = check_inputs(SPECS, given_inputs)
    assert list(checked) == ["image", "scale"]
    assert all(checked[name] is given_inputs[name] for name in checked)


@pytest.mark.parametrize("name", ["image", "scale"])
def test_a_missing_input_is_named(name: str) -> None:
    inputs = good()
    del inputs[name]
    with pytest.raises(InputError, match=f"input '{name}' is missing"):
        check_inputs(SPECS, inputs)


def test_a_misspelt_input_is_named_with_the_missing_one() -> None:
    inputs = good() | {"imgae": np.zeros(1)}
    del inputs["image"]
    with pytest.raises(InputError, match="input 'image' is missing and there is no input 'imgae'"):
        check_inputs(SPECS, inputs)


def test_nothing_declared_takes_nothing() -> None:
    assert check_inputs((), {}) == {}
    with pytest.raises(InputError, match="no input 'x'"):
        check_inputs((), {"x": np.zeros(1)})


@pytest.mark.parametrize("scalar", [1.0, np.float64(1.0), [1.0], None])
def test_only_arrays_are_inputs(scalar: object) -> None:
    with pytest.raises(InputError, match="'scale' is"):
        check_inputs(SPECS, good() | {"scale": scalar})


@pytest.mark.parametrize("element", [1, None, ["a"]])
def test_elements_of_a_bytes_tensor_are_bytes_or_text(element: object) -> None:
    check = InputCheck([TensorSpec(name="t", datatype="BYTES", shape=(-1,))])
    array = np.empty(2, np.object_)
    array[:] = [b"a", "b"]
    assert check({"t": array})["t"].tolist() == [b"a", "b"]
    array[1] = element
    with pytest.raises(InputError, match="neither bytes nor text"):
        check({"t": array})


@given(
    array=hnp.arrays(
        dtype=st.sampled_from([dtype for dtype in DTYPES.values() if not dtype.hasobject]),
        shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    ),
    order=st.permutations(range(4)),
)
def test_what_a_runtime_gets_is_the_same_array_in_plain_memory(
    array: np.ndarray, order: list[int]
) -> None:
    turned = array.transpose([axis for axis in order if axis < array.ndim])
    spec = TensorSpec(name="x", datatype=datatype_of(array.dtype), shape=turned.shape)
    checked = check_inputs([spec], {"x": turned})["x"]
    np.testing.assert_array_equal(checked, turned)
    assert checked.shape == turned.shape
    assert checked.flags.c_contiguous
    assert checked.flags.aligned


@given(
    declared=st.lists(st.sampled_from([-1, 0, 1, 2, 3]), max_size=4).map(tuple),
    actual=st.lists(st.integers(0, 3), max_size=4).map(tuple),
)
def test_a_shape_fits_or_is_refused(declared: tuple[int, ...], actual: tuple[int, ...]) -> None:
    fits = len(declared) == len(actual) and all(
        promised in {-1, size} for promised, size in zip(declared, actual, strict=True)
    )
    check = InputCheck([TensorSpec(name="x", datatype="INT8", shape=declared)])
    array = np.zeros(actual, np.int8)
    if fits:
        assert check({"x": array})["x"].shape == actual
    else:
        with pytest.raises(InputError, match="has shape"):
            check({"x": array})
