"""An adapter without a runtime: a small fixed function of the inputs, for tests and dry runs.

The model file is a JSON document such as `{"seed": 7}`. Each output element comes from the sample
that it answers: two weighted sums of the sample's elements, rotated by an angle that depends on the
seed and the element's position. Inputs and outputs whose first dimension varies are batches; a
sample's answer does not depend on the others of its batch.

Options: `delay_ms` (time of one inference), `most_rows` (larger batches fail), `wrong` = `1` (the
answers are wrong), `fail` = `load`, `infer`, `crash` (the process ends) or `hang` (no answer ever
comes), and `fail_after` (inferences that succeed before `fail` acts).

Rules:
- Equal inputs give equal outputs on every machine of one byte order.
- It obeys all rules of an adapter, so that a test with it holds for the other adapters too.
- `Limits.threads` and `Limits.memory_bytes` have no effect: it works in the calling thread.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from runtime_adapters.batches import batch_rows, is_batch
from runtime_adapters.checks import CLOSED, REBUILD, load_fault, model_path
from runtime_adapters.errors import InferenceError, LoadError
from runtime_adapters.protocol import (
    Adapter,
    Limits,
    Session,
    SessionDescription,
    Tensor,
    Tensors,
)
from runtime_adapters.tensors import ANY, DTYPES, InputCheck
from wire.clock import Clock, SystemClock
from wire.codec import convert, from_json
from wire.errors import WireFormatError
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

VERSION: Final = "1"
DEVICE: Final = "null"
MAX_MODEL_BYTES: Final = 64 * 1024
_BIG: Final = 1e30
"""Greatest input element that counts, so that no sum overflows."""


class NullModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a model file."""

    seed: int = 0


class _Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    delay_ms: float = 0.0
    most_rows: int | None = None
    wrong: bool = False
    fail: Literal["", "load", "infer", "crash", "hang"] = ""
    fail_after: int = 0


class NullSession:
    """A loaded null model.

    Args:
        info: The variant's declaration.
        model: The content of its model file.
        options: How it misbehaves.
        clock: Waits for the time of a delay.
    """

    def __init__(
        self, info: VariantInfo, model: NullModel, options: _Options, clock: Clock
    ) -> None:
        self._info = info
        self._seed = model.seed
        self._options = options
        self._clock = clock
        self._check = InputCheck(info.inputs)
        self._lock = threading.Lock()
        self._calls = 0
        self._closed = False

    def infer(self, inputs: Tensors) -> Tensors:
        """Run the model once.

        Args:
            inputs: One array per declared input.

        Returns:
            One array per declared output.

        Raises:
            InferenceError: The session is closed, or was told to fail.
        """
        if self._closed:
            raise InferenceError(CLOSED)
        checked = self._check(inputs)
        with self._lock:
            self._calls += 1
            failing = self._calls > self._options.fail_after
        if self._options.delay_ms > 0:
            self._clock.sleep(self._options.delay_ms / 1000)
        if failing:
            _fail(self._options.fail)
        sums = _sums(self._info.inputs, checked)
        if self._options.most_rows is not None and len(sums) > self._options.most_rows:
            raise InferenceError(f"the null model cannot take {len(sums)} samples at once")
        return {
            spec.name: self._answer(position, spec, sums)
            for position, spec in enumerate(self._info.outputs)
        }

    def describe(self) -> SessionDescription:
        """Say what the session is."""
        return SessionDescription(
            runtime="null",
            version=VERSION,
            devices=(DEVICE,),
            inputs=self._info.inputs,
            outputs=self._info.outputs,
        )

    def close(self) -> None:
        """Refuse further calls."""
        self._closed = True

    def _answer(self, position: int, spec: TensorSpec, sums: NDArray[np.float64]) -> Tensor:
        batched = is_batch(spec)
        rows = sums if batched else sums.sum(axis=0, keepdims=True)
        rest = tuple(1 if size == ANY else size for size in spec.shape[batched:])
        angles = np.arange(math.prod(rest)) * 0.7 + self._seed + position
        values = rows @ np.stack([np.cos(angles), np.sin(angles)])
        answer = _cast(values, DTYPES[spec.datatype], wrong=self._options.wrong)
        return answer.reshape((len(rows), *rest) if batched else rest)


class NullAdapter:
    """The adapter for null models.

    Args:
        clock: Waits for the delays of sessions.
    """

    name = "null"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def version(self) -> str:
        """Return the version of the null model's definition."""
        return VERSION

    def load(self, directory: Path, info: VariantInfo, limits: Limits) -> Session:
        """Load a null model.

        Args:
            directory: The variant's directory.
            info: The variant's declaration.
            limits: What the session may use.

        Returns:
            A session that is ready.

        Raises:
            LoadError: Not a null model, unknown options, a type it cannot make, or told to fail.
        """
        path = model_path(directory, info, limits)
        try:
            model = from_json(path.read_bytes(), NullModel, limit_bytes=MAX_MODEL_BYTES)
            options = _options(info)
        except (WireFormatError, OSError) as exc:
            raise LoadError(load_fault(info, str(exc)), remedy=REBUILD) from exc
        if any(spec.datatype == "BYTES" for spec in (*info.inputs, *info.outputs)):
            raise LoadError(load_fault(info, "it has no BYTES tensors"), remedy=REBUILD)
        if options.fail == "load":
            raise LoadError("the null model was told to fail when it is loaded")
        return NullSession(info, model, options, self._clock)


def _options(info: VariantInfo) -> _Options:
    """Read the options, which are texts.

    Raises:
        WireFormatError: An unknown option or value.
    """
    texts: dict[str, object] = dict(info.options)
    try:
        if "delay_ms" in texts:
            texts["delay_ms"] = float(info.options["delay_ms"])
        for name in {"fail_after", "most_rows"} & texts.keys():
            texts[name] = int(info.options[name])
        if "wrong" in texts:
            texts["wrong"] = bool(int(info.options["wrong"]))
    except ValueError as exc:
        raise WireFormatError(f"an option is not a number: {exc}") from exc
    return convert(texts, _Options)


def _sums(specs: Iterable[TensorSpec], inputs: Tensors) -> NDArray[np.float64]:
    """Return two weighted sums of each sample's elements, a row per sample.

    Raises:
        InferenceError: The inputs are batches of unequal sizes.
    """
    batches = {spec.name for spec in specs if is_batch(spec)}
    sums = np.ones((batch_rows(inputs, batches), 2))
    for name, tensor in inputs.items():
        shape = (len(sums), math.prod(tensor.shape[1:])) if name in batches else (1, tensor.size)
        angles = np.arange(1.0, shape[1] + 1.0)
        elements = np.clip(np.nan_to_num(tensor.reshape(shape).astype(np.float64)), -_BIG, _BIG)
        sums += elements @ np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return sums


def _cast(values: NDArray[np.float64], dtype: np.dtype[Any], *, wrong: bool) -> Tensor:
    answer: Tensor
    if dtype.kind == "b":
        answer = (values > 0.0) != wrong
    elif dtype.kind in "iu":
        answer = np.mod(np.floor(values) + wrong, 100.0)
    else:
        bound = float(np.finfo(dtype).max)
        answer = np.clip(-values - 1.0 if wrong else values, -bound, bound)
    return answer.astype(dtype)


def _fail(how: str) -> None:
    if how == "infer":
        raise InferenceError("the null model was told to fail when it is run")
    if how == "crash":
        signal.raise_signal(signal.SIGKILL)
    if how == "hang":
        threading.Event().wait()


ADAPTER: Final[Adapter] = NullAdapter(SystemClock())
