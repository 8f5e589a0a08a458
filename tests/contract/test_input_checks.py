"""A check that has seen other inputs decides as one that has seen none."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from runtime_adapters.errors import InputError
from runtime_adapters.tensors import InputCheck
from wire.package.tensors import TensorSpec

SPECS = (
    TensorSpec(name="x", datatype="FP32", shape=(-1, 2)),
    TensorSpec(name="n", datatype="INT64", shape=()),
)
ARRAYS: tuple[Any, ...] = (
    np.zeros((1, 2), np.float32),
    np.zeros((3, 2), np.float32),
    np.zeros((0, 2), np.float32),
    np.zeros((2, 3), np.float32).T,
    np.zeros((1, 3), np.float32),
    np.zeros((1, 2), ">f4"),
    np.zeros((1, 2), np.float64),
    np.broadcast_to(np.float32(1), (3, 2)),
    np.ma.zeros((1, 2), np.float32),
    np.array(1),
    np.array([1]),
    [[1.0, 2.0]],
    None,
)
REQUESTS = st.dictionaries(st.sampled_from(["x", "n", "z"]), st.sampled_from(ARRAYS))
GOOD = st.fixed_dictionaries({"x": st.sampled_from(ARRAYS[:4]), "n": st.sampled_from([ARRAYS[9]])})


def decided(check: InputCheck, request: dict[str, Any]) -> object:
    """Return what comes out, or the words of the refusal."""
    try:
        checked = check(request)
    except InputError as exc:
        return exc.message
    assert all(tensor.flags.c_contiguous for tensor in checked.values())
    return [(name, tensor.dtype, tensor.tobytes()) for name, tensor in checked.items()]


@given(st.lists(GOOD | REQUESTS, min_size=1, max_size=6))
def test_what_was_seen_before_changes_no_decision(requests: list[dict[str, Any]]) -> None:
    used = InputCheck(SPECS)
    for request in requests:
        assert decided(used, request) == decided(InputCheck(SPECS), request)
