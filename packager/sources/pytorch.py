"""Converts PyTorch modules to ONNX with `torch.export`; the batch may vary where that works.

A user's function takes nothing and returns `(module, example_inputs)` or `(module, example_inputs,
{"input_names": [...], "output_names": [...]})`. The example is a tensor, a tuple of tensors for
`forward`'s arguments, or a dict of them for its keywords; the first axis of each is the batch.

Rules:
- The module is evaluated as for inference: `eval` mode, on the processor, without gradients.
- The written file is run: it gives the module's answers on the example and, where the batch varies,
  on batches of other sizes.
- The file holds no stack traces, paths or names of the machine; equal modules give equal bytes.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packager.errors import ModelError, StepError
from packager.fault_text import root_of, typed_line
from packager.sources.onnx_model import clamp_ir, model_bytes, strip
from packager.sources.parity import answers, worst_share

OPSET: Final = 18
"""The oldest that PyTorch's exporter writes, so that most runtimes read it."""

INSTALL: Final = "install it with: pip install 'edgefleet[packager-torch]'"
WANTED: Final = "return (module, example_inputs), with tensors as examples"
_BATCHES: Final = (1, 3)
"""Batch sizes, beside the example's, that check a model whose batch varies."""

_OPTIONS: Final = frozenset({"input_names", "output_names"})


@dataclass(frozen=True, kw_only=True)
class TorchSource:
    """A module, and what it is called with."""

    module: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    input_names: tuple[str, ...]
    """Empty for the names that `forward` has."""

    output_names: tuple[str, ...]
    """Empty for the name `output`, or for the keys of a dict."""

    @property
    def tensors(self) -> tuple[Any, ...]:
        """The examples, in order."""
        return (*self.arguments, *self.keywords.values())

    def of_size(self, batch: int) -> TorchSource:
        """Return the same with examples of another batch, made by repeating their samples."""
        import torch

        def resized(tensor: Any) -> Any:  # noqa: ANN401 - torch is untyped
            return tensor[torch.arange(batch) % len(tensor)]

        return TorchSource(
            module=self.module,
            arguments=tuple(resized(tensor) for tensor in self.arguments),
            keywords={name: resized(tensor) for name, tensor in self.keywords.items()},
            input_names=self.input_names,
            output_names=self.output_names,
        )

    def outputs(self) -> dict[str, Any]:
        """Run the module.

        Returns:
            Its outputs as arrays, by name, in order.

        Raises:
            ModelError: It fails, or returns something that is not a tensor.
        """
        import torch

        try:
            with torch.no_grad():
                answer = self.module(*self.arguments, **self.keywords)
        except Exception as exc:
            raise ModelError(
                f"the module fails on its example inputs: {typed_line(exc)}",
                remedy=WANTED,
            ) from exc
        named = _flat("", answer)
        if len(named) == 1:
            named = [(named[0][0] or "output", named[0][1])]
        names = self.output_names or tuple(
            name if not name.isdigit() else f"output_{name}" for name, _ in named
        )
        if len(names) != len(named):
            raise ModelError(
                f"the module has {len(named)} outputs, but {len(names)} output_names are given"
            )
        return {name: tensor.numpy() for name, (_, tensor) in zip(names, named, strict=True)}


def unpack(made: object) -> TorchSource:
    """Take apart what a user's function returned.

    Args:
        made: As the module's docstring describes it.

    Returns:
        The module, ready for inference, and its example.

    Raises:
        ModelError: It is something else.
        StepError: PyTorch is not installed.
    """
    torch = _torch()
    parts = made if isinstance(made, tuple) else (made,)
    if len(parts) not in {2, 3} or not isinstance(parts[0], torch.nn.Module):
        raise ModelError("the function returned no module with example inputs", remedy=WANTED)
    example, options = parts[1], parts[2] if len(parts) > 2 else {}  # noqa: PLR2004 - see above
    if not isinstance(options, dict) or set(options) - _OPTIONS:
        raise ModelError(
            "the third item that the function returns is not a dict of input_names and output_names"
        )
    keywords = dict(example) if isinstance(example, dict) else {}
    arguments = () if keywords else (example,) if isinstance(example, torch.Tensor) else example
    tensors = (*arguments, *keywords.values()) if isinstance(arguments, tuple | list) else ()
    if not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise ModelError("the example inputs are not tensors", remedy=WANTED)
    names = {key: tuple(str(name) for name in options.get(key, ())) for key in _OPTIONS}
    given = names["input_names"] or tuple(keywords)
    if given and (len(given) != len(tensors) or len(set(given)) != len(given)):
        raise ModelError(f"there are {len(tensors)} inputs and {len(set(given))} input_names")
    return TorchSource(
        module=parts[0].to("cpu").eval(),
        arguments=tuple(tensor.detach().to("cpu") for tensor in arguments),
        keywords={name: tensor.detach().to("cpu") for name, tensor in keywords.items()},
        input_names=given,
        output_names=names["output_names"],
    )


def convert(source: TorchSource, target: Path) -> tuple[str, ...]:
    """Export a module.

    Args:
        source: What `unpack` returned.
        target: The ONNX file to write.

    Returns:
        Notes on what was done.

    Raises:
        ModelError: It cannot be exported, or the exported model gives other answers.
        StepError: PyTorch's exporter is not installed.
    """
    torch = _torch()
    source.outputs()
    sizes = {len(tensor) if tensor.ndim else 0 for tensor in source.tensors}
    reason = "the examples have no common first axis"
    if len(sizes) == 1 and 0 not in sizes:
        try:
            _write(source.of_size(max(2, *sizes)), torch.export.Dim("batch"), target)
            for batch in (*sizes, *_BATCHES):
                _check(source.of_size(batch), target)
        except ModelError as exc:
            reason = exc.message
        else:
            return ("the batch may vary",)
    _write(source, None, target)
    _check(source, target)
    return (f"the batch is fixed at the example's: {reason}",)


def _write(source: TorchSource, batch: Any, target: Path) -> None:  # noqa: ANN401 - untyped
    """Export to a file; `batch` is the symbol of the first axis, or None.

    Raises:
        ModelError: It cannot be exported.
        StepError: The exporter is not installed.
    """
    torch = _torch()
    shape = None if batch is None else {0: batch}
    shapes: Any = tuple(shape for _ in source.arguments)
    if source.keywords:
        shapes = dict.fromkeys(source.keywords, shape)
    names = list(source.outputs())
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it tells which extras are missing
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # the exporter calls deprecated parts of PyTorch
            program = torch.onnx.export(
                source.module,
                source.arguments,
                kwargs=source.keywords,
                dynamo=True,
                verbose=False,
                external_data=False,
                opset_version=OPSET,
                input_names=list(source.input_names) or None,
                output_names=names,
                dynamic_shapes=shapes if batch is not None else None,
            )
            model = program.model_proto
    except ModuleNotFoundError as exc:
        raise StepError(f"{exc.name} is not installed", remedy=INSTALL) from exc
    except Exception as exc:
        raise ModelError(
            f"torch.onnx.export failed: {typed_line(root_of(exc))}",
            remedy="make the module exportable with torch.export, or give an ONNX file",
        ) from exc
    strip(model)
    clamp_ir(model)
    target.write_bytes(model_bytes(model))


def _check(source: TorchSource, target: Path) -> None:
    """Compare the exported model with the module.

    Raises:
        ModelError: They differ.
    """
    import onnx

    model = onnx.load(str(target))
    names = [value.name for value in model.graph.input]
    if len(names) != len(source.tensors):
        raise ModelError(
            f"the module uses {len(names)} of its {len(source.tensors)} example inputs",
            remedy="remove the other inputs from the example",
        )
    arrays = (tensor.contiguous().numpy() for tensor in source.tensors)
    found = answers(target, model, dict(zip(names, arrays, strict=True)))
    varies = not model.graph.input[0].type.tensor_type.shape.dim[0].HasField("dim_value")
    for name, expected in source.outputs().items():
        if varies and expected.shape[:1] != (len(source.tensors[0]),):
            raise ModelError(f"output {name!r} does not have the batch as its first axis")
        share = worst_share(expected, found[name])
        if share > 1:
            raise ModelError(
                f"the exported model gives other answers: the error of output {name!r} is "
                f"{share:.3g} times the tolerance",
                remedy="look in the module for random numbers, or for branches that depend on "
                "the data",
            )


def _flat(name: str, answer: object) -> list[tuple[str, Any]]:
    torch = _torch()
    if isinstance(answer, torch.Tensor):
        return [(name, answer.detach().cpu())]
    if isinstance(answer, Mapping):
        pairs = [(str(key), part) for key, part in answer.items()]
    elif isinstance(answer, tuple | list):
        pairs = [(f"{name}_{i}" if name else str(i), part) for i, part in enumerate(answer)]
    else:
        raise ModelError(
            f"the module returns a {type(answer).__name__[:80]} among its outputs",
            remedy="wrap the module in one that returns only tensors",
        )
    return [item for key, part in pairs for item in _flat(key, part)]


def _torch() -> Any:  # noqa: ANN401 - torch is untyped
    try:
        import torch
    except ImportError as exc:
        raise StepError("PyTorch is not installed", remedy=INSTALL) from exc
    return torch
