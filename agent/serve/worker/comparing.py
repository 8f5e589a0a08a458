"""Compares the answer of a shadow with that of the release that serves.

Runs in the worker process. The two agree if every sample has the same class. Where a model tells no
classes apart, or the client did not ask for them, every number must be within the tolerance of the
golden test.

Rules:
- Only tensors as the model gives them are compared. What is made of them for a client, such as the
  names of the best classes, or what lies in his shared memory, is not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from agent.serve.worker.processing import Wanted
from agent.serve.worker.tensors import InputTensor, from_raw, from_values
from runtime_adapters.distributions import rows_of, values
from runtime_adapters.errors import InputError
from runtime_adapters.golden import compare, for_kernels
from runtime_adapters.protocol import Tensor, Tensors
from wire.package.distribution import CLASS
from wire.package.golden import Tolerance
from wire.package.scores import classes_of
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

NOT_TENSORS: Final = "the client asked for another form than tensors"
OTHER_OUTPUTS: Final = "the answer has other outputs than this release"
_EXACT: Final = Tolerance(absolute=0.0, relative=0.0)


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON part of an answer, as far as it is read."""

    outputs: tuple[InputTensor, ...]


class Comparer:
    """Compares answers with those of one variant.

    Args:
        info: What the variant declares.
        kernels: Whose kernels compute here.
    """

    def __init__(self, info: VariantInfo, kernels: str) -> None:
        classes = classes_of(info)
        self._classes = classes.output if classes is not None else None
        self._specs = {spec.name: spec for spec in info.outputs}
        golden = None if info.golden is None else for_kernels(info.golden, kernels)
        self._tolerances: Mapping[str, Tolerance] = golden.tolerances if golden is not None else {}
        self._decoder = msgspec.json.Decoder(_Answer)

    def read(
        self, wanted: Sequence[Wanted], body: memoryview, header_length: int | None
    ) -> Tensors | str:
        """Read an answer of another release.

        Args:
            wanted: The outputs that the client asked for.
            body: The answer.
            header_length: Length of the JSON at its start; None when all of it is JSON.

        Returns:
            Its tensors, or why there are none to compare.
        """
        if any(each.classes or each.processed or each.place is not None for each in wanted):
            return NOT_TENSORS
        end = len(body) if header_length is None else header_length
        raw, found = body[end:], {}
        try:
            for tensor in self._decoder.decode(body[:end]).outputs:
                # The other release may compute with other numbers.
                spec = msgspec.structs.replace(
                    self._specs[tensor.name], datatype=tensor.datatype, shape=tensor.shape
                )
                if len(tensor.shape) != len(self._specs[tensor.name].shape):
                    return OTHER_OUTPUTS
                size = tensor.parameters.get("binary_data_size")
                if size is None:
                    found[tensor.name] = from_values(tensor, spec)
                else:
                    found[tensor.name] = from_raw(tensor, spec, size, raw)
                    raw = raw[size:]
        except (InputError, msgspec.DecodeError, KeyError, ValueError, TypeError):
            return OTHER_OUTPUTS
        return found

    def compare(self, outputs: Tensors, live: Tensors) -> tuple[bool, float | None]:
        """Compare what the variant answers.

        Args:
            outputs: What it answers.
            live: What the other release has answered.

        Returns:
            Whether they agree, and the greatest difference of any two numbers.
        """
        spec = self._specs.get(self._classes or "")
        if spec is not None and spec.name in live:
            agrees = _same_classes(spec, outputs[spec.name], live[spec.name])
        else:
            agrees = all(
                _same(outputs[name], tensor, self._tolerances.get(name, _EXACT))
                for name, tensor in live.items()
            )
        differences = [_difference(outputs[name], tensor) for name, tensor in live.items()]
        return agrees, max((each for each in differences if each is not None), default=None)


def _same_classes(spec: TensorSpec, one: Tensor, other: Tensor) -> bool:
    found = values(CLASS, rows_of(one, spec)), values(CLASS, rows_of(other, spec))
    return np.array_equal(*found)


def _same(one: Tensor, other: Tensor, tolerance: Tolerance) -> bool:
    if one.dtype.hasobject or other.dtype.hasobject:  # texts
        return np.array_equal(one, other)
    return compare(one, other, tolerance)[0] <= 1.0


def _difference(one: Tensor, other: Tensor) -> float | None:
    """Return the greatest difference; None for texts, other shapes, and what is no number."""
    if one.dtype.hasobject or other.dtype.hasobject or one.shape != other.shape or not one.size:
        return None
    with np.errstate(all="ignore"):
        greatest = float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max())
    return greatest if math.isfinite(greatest) else None
