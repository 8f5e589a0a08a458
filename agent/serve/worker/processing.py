"""What a client may ask for besides plain tensors: raw inputs, declared answers, classification.

Runs in the worker process.

Rules:
- An input with the parameter `raw` has the type and shape that its preprocessing takes.
- An output with the parameter `processed` is answered as its postprocessing declares. An output
  with `classification` is answered with the greatest values of each row as text: value, index, and
  label if there is one.
- With both parameters, the answer has the greatest of the declared scores.
- Scores that hold NaN have no greatest values, and infinity is none: both are errors, never a text.

Source:
    Triton's classification extension of the Open Inference Protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from agent.serve.worker.shared_memory import Place
from runtime_adapters.batches import is_batch
from runtime_adapters.errors import InferenceError, InputError
from runtime_adapters.processing import kernels, numpy_forms
from runtime_adapters.processing.anchors import anchors_of
from runtime_adapters.processing.answers import Answers
from runtime_adapters.processing.declared import Preprocessor
from runtime_adapters.processing.numpy_forms import Floats
from runtime_adapters.protocol import Tensor, Tensors
from wire.package.processing import Postprocessing, Preprocessing
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

MAX_CLASSES: Final = 100_000
"""Texts that one answer may hold; each takes some hundred bytes until it is sent."""

_NO_CLASSES: Final = frozenset({"BOOL", "BYTES"})
_NONE: Final[Mapping[str, Postprocessing]] = {}


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """An output that a client asks for."""

    name: str
    binary: bool
    """Whether it is sent as raw bytes."""

    classes: int = 0
    """How many of the greatest values to send as text; 0 to send the tensor."""

    processed: bool = False
    place: Place | None = None
    """Where in shared memory it is put; None to send it."""


class Processing:
    """The declared processing of one variant.

    Args:
        inputs: The variant's inputs.
        outputs: Its outputs.
        preprocessing: Declarations by input.
        postprocessing: Declarations by output.
        anchors: The anchors that they name, by output.

    Raises:
        DeclarationError: A declaration does not fit its input or output.
    """

    def __init__(
        self,
        inputs: Iterable[TensorSpec],
        outputs: Iterable[TensorSpec],
        preprocessing: Mapping[str, Preprocessing] | None = None,
        postprocessing: Mapping[str, Postprocessing] | None = None,
        anchors: Mapping[str, Floats] | None = None,
    ) -> None:
        declared = preprocessing or {}
        self._inputs = {
            spec.name: Preprocessor(spec, declared[spec.name])
            for spec in inputs
            if spec.name in declared
        }
        self._outputs = {spec.name: spec for spec in outputs}
        self._answers = Answers(self._outputs.values(), postprocessing or _NONE, anchors)

    @classmethod
    def ready(cls, info: VariantInfo, directory: Path) -> Processing:
        """Return a variant's processing after a first run, so that no request waits for a compiler.

        Args:
            info: What the variant declares.
            directory: The variant's directory, whose files have been verified.

        Returns:
            The processing.

        Raises:
            DeclarationError: A declaration does not fit, or its anchors cannot be read.
            WireFormatError: A path in it is not safe.
        """
        after = info.postprocessing or _NONE
        made = cls(
            info.inputs, info.outputs, info.preprocessing, after, anchors_of(directory, after)
        )
        for preprocessor in made._inputs.values():
            preprocessor.warm()
        made._answers.warm()
        return made

    def describe(self) -> dict[str, str]:
        """Name what runs the processing."""
        return kernels.describe()

    def try_out(self, outputs: Tensors) -> None:
        """Try the declared postprocessing on outputs of the model.

        Args:
            outputs: The outputs of one call.

        Raises:
            DeclarationError: It does not fit them, or gives NaN or infinity.
        """
        self._answers.check(outputs)

    def raw(self, name: str) -> TensorSpec:
        """Return what a raw sample of an input must be.

        Args:
            name: The input.

        Returns:
            Its type and shape before preprocessing.

        Raises:
            InputError: None is declared.
        """
        if name not in self._inputs:
            raise InputError(f"input {name!r} has no declared preprocessing: send it prepared")
        return self._inputs[name].raw

    def prepared(self, name: str, raw: Tensor) -> Tensor:
        """Prepare a raw input.

        Args:
            name: The input.
            raw: The input, with the type and shape that `raw` returns.

        Returns:
            The tensor for the model.

        Raises:
            InputError: It is too large or does not fit the declaration.
        """
        return self._inputs[name](raw)

    def check(self, wanted: Wanted) -> None:
        """Refuse an answer that an output cannot give.

        Args:
            wanted: What a client asks for; the variant has this output.

        Raises:
            InputError: There is no such answer.
        """
        if wanted.place is not None and (wanted.classes or wanted.processed):
            raise InputError(f"output {wanted.name!r} goes into shared memory only as it is")
        if wanted.processed and wanted.name not in self._answers:
            raise InputError(f"output {wanted.name!r} has no declared postprocessing")
        if wanted.classes and self._outputs[wanted.name].datatype in _NO_CLASSES:
            raise InputError(f"output {wanted.name!r} has no scores to classify by")

    def answer(self, wanted: Wanted, outputs: Tensors) -> Tensors:
        """Return the tensors that the client gets for an output.

        Args:
            wanted: What the client asks for.
            outputs: The outputs of the model.

        Returns:
            Tensors by name; a tensor of text if classes are wanted.

        Raises:
            InputError: The answer would hold too much text.
            InferenceError: The model's outputs do not fit the declaration, or are no scores.
        """
        name = wanted.name
        if wanted.classes:
            scores = self._answers.scores(name, outputs) if wanted.processed else outputs[name]
            return {name: self._classes(name, scores, wanted.classes)}
        return self._answers.answer(name, outputs) if wanted.processed else {name: outputs[name]}

    def _classes(self, name: str, scores: Tensor, most: int) -> Tensor:
        """Return the greatest values of each row as text, `value:index` or `value:index:label`.

        Raises:
            InputError: The answer would hold too many texts.
            InferenceError: The scores hold NaN, or the greatest of them infinity.
        """
        has_rows = scores.ndim > 1 or is_batch(self._outputs[name])
        rows = len(scores) if has_rows else 1
        classes = scores.size // rows if rows else 0
        most = min(most, classes)
        if rows * most > MAX_CLASSES:
            raise InputError(
                f"{most} classes for each of {rows} rows are over the limit of {MAX_CLASSES}"
            )
        values, indices = numpy_forms.top_k(scores.reshape(rows, classes), most)
        if scores.dtype.kind == "f" and (np.isnan(scores).any() or not np.isfinite(values).all()):
            raise InferenceError(
                f"the model's output {name[:80]!r} holds NaN or infinity, which are no scores",
                remedy="look for overflows in this variant",
            )
        labels = self._answers.labels(name)
        form = "{:f}:{}" if scores.dtype.kind == "f" else "{}:{}"
        text = np.empty(rows * most, np.object_)
        pairs = zip(values.ravel().tolist(), indices.ravel().tolist(), strict=True)
        for place, (value, index) in enumerate(pairs):
            label = f":{labels[index]}" if index < len(labels) else ""
            text[place] = form.format(value, index) + label
        return text.reshape((rows, most) if has_rows else (most,))
