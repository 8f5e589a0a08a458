"""Converts models to OpenVINO's format with half-precision weights, and quantizes them with NNCF.

Rules:
- Equal model, samples and options give equal bytes, on processors that compute alike.
- The batch stays as the source declares it, so that every variant takes the same requests.
- Inputs and outputs keep the names that the source has for them, or get the declared ones.
- Whatever the tools raise becomes a `StepError`. A tool that changed nothing raises one too.

Source:
    NNCF, "Post-training quantization", "Quantization with accuracy control" and "Weights
    compression"; OpenVINO, `save_model`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from packager.errors import StepError
from packager.samples.store import joined, sample, spread
from packager.tools.quiet import tool
from runtime_adapters.openvino.library import openvino
from runtime_adapters.protocol import Tensors

CONVERTER: Final = "openvino's converter"
QUANTIZER: Final = "nncf"

BIAS_CORRECTIONS: Final = ("none", "fast", "full")
_COUNTED: Final = re.compile(r"^([A-Za-z]+)_\d+(?=/|$)")
_UNCONVERTED: Final = re.compile(r"No conversion rule found for operations: (.+)")
_FEW_BITS: Final = frozenset({"i4", "u4", "i8", "u8"})
_FOUR_BITS: Final = frozenset({"i4", "u4"})


class Controlled(msgspec.Struct, frozen=True, kw_only=True):
    """What quantization with accuracy control did."""

    evaluations: int
    """How often the tuning samples were run through a model."""

    quality_before: float
    """Quality of the float model on the tuning samples."""

    quality_after: float
    """Quality of the last model that was tried, on the tuning samples, which also chose it."""


def convert(model: Path, target: Path, *, names: Mapping[str, str] | None = None) -> None:
    """Convert a model and store its weights in half precision.

    Args:
        model: The prepared float model, `.onnx` or `.tflite`.
        target: The `.xml` file to write; the weights go beside it.
        names: Declared name of an input or output by its name in the file, where the two differ.

    Raises:
        StepError: OpenVINO does not take the model.
    """
    _save(read(model, names=names), target, halve=True)


def quantize(
    model: Path,
    inputs: Tensors,
    options: dict[str, Any],
    target: Path,
    *,
    names: Mapping[str, str] | None = None,
) -> None:
    """Convert a model and quantize weights and activations to int8.

    Args:
        model: The prepared float model.
        inputs: Calibration samples by declared input.
        options: `preset` (`performance`, `mixed`), `bias_correction` (`none`, `fast`, `full`),
            `range` (`minmax`, or `mean`: of the samples' own ranges), `overflow_fix` (`disable`
            where the processor has VNNI or Arm's dot products, else `enable`), `transformer`
            (treat attention as NNCF knows it), `samples`.
        target: The `.xml` file to write; the weights go beside it.
        names: As for `convert`.

    Raises:
        StepError: OpenVINO or NNCF does not take the model, or nothing was quantized.
    """
    import nncf

    float_model = read(model, names=names)
    indices = _indices(inputs, options)
    with tool(QUANTIZER):
        nncf.set_log_level(logging.ERROR)
        quantized = nncf.quantize(
            float_model,
            nncf.Dataset([sample(inputs, index, _ranks(float_model)) for index in indices]),
            subset_size=len(indices),
            **_quantization(options),
        )
    _check_quantized(quantized)
    _save(quantized, target, halve=False)


def quantize_with_accuracy_control(
    model: Path,
    calibration: Tensors,
    tuning: Tensors,
    quality: Callable[[Tensors, list[int]], float],
    options: dict[str, Any],
    target: Path,
) -> Controlled:
    """Quantize to int8 and put back into float what costs most, until the quality holds.

    The tuning samples choose the result, so it fits them better than any other samples. Only other
    samples can tell whether it is good enough.

    Args:
        model: The prepared float model.
        calibration: Samples by input.
        tuning: Samples by input, none of them in a gate.
        quality: Quality of the answers, by output, to the tuning samples at these indices; larger
            is better.
        options: As for `quantize`, and `max_drop` (share of the float model's quality that may be
            lost), `iterations` (layers that may be put back), `ranking` (tuning samples by which
            layers are ranked).
        target: The `.xml` file to write; the weights go beside it.

    Returns:
        What it did.

    Raises:
        StepError: OpenVINO or NNCF does not take the model, or nothing was quantized.
    """
    import nncf

    float_model = read(model)
    outputs = [min(port.get_names()) for port in float_model.outputs]
    ranks = _ranks(float_model)
    indices = _indices(calibration, options)
    total = len(next(iter(tuning.values())))
    found: list[float] = []

    def validate(compiled: Any, items: Iterable[int]) -> tuple[float, None]:  # noqa: ANN401 - untyped
        chosen = list(items)
        value = quality(_answers(compiled, tuning, chosen, (ranks, outputs)), chosen)
        if len(chosen) == total:
            found.append(value)
        return value, None

    with tool(QUANTIZER):
        nncf.set_log_level(logging.ERROR)
        quantized = nncf.quantize_with_accuracy_control(
            float_model,
            nncf.Dataset([sample(calibration, index, ranks) for index in indices]),
            nncf.Dataset(range(total)),
            validation_fn=validate,
            max_drop=options["max_drop"],
            drop_type=nncf.DropType.RELATIVE,
            subset_size=len(indices),
            advanced_accuracy_restorer_parameters=nncf.AdvancedAccuracyRestorerParameters(
                max_num_iterations=options["iterations"],
                ranking_subset_size=min(options["ranking"], total),
            ),
            **{
                key.replace("advanced_parameters", "advanced_quantization_parameters"): value
                for key, value in _quantization(options).items()
            },
        )
    _check_quantized(quantized)
    _save(quantized, target, halve=False)
    return Controlled(
        evaluations=len(found),
        quality_before=found[0] if found else float("nan"),
        quality_after=found[-1] if found else float("nan"),
    )


def compress_weights(
    model: Path,
    options: dict[str, Any],
    target: Path,
    *,
    names: Mapping[str, str] | None = None,
) -> None:
    """Store weights in 8 or 4 bits; the rest computes as before, and no samples are needed.

    Args:
        model: The prepared float model.
        options: `mode` (`int8_asym`, `int8_sym`, `int4_asym`, `int4_sym`), `group_size` (weights
            that share a scale, for 4 bits).
        target: The `.xml` file to write; the weights go beside it.
        names: As for `convert`.

    Raises:
        StepError: OpenVINO or NNCF does not take the model, or no weight was compressed.
    """
    import nncf

    float_model = read(model, names=names)
    four = options["mode"].startswith("int4")
    grouped = {"group_size": options["group_size"], "all_layers": True} if four else {}
    with tool(QUANTIZER):
        nncf.set_log_level(logging.ERROR)
        compressed = nncf.compress_weights(
            float_model, mode=nncf.CompressWeightsMode(options["mode"]), **grouped
        )
    if not _weight_types(compressed) & (_FOUR_BITS if four else _FEW_BITS):
        raise StepError(f"the model has no MatMul to quantize to {options['mode']}")
    _save(compressed, target, halve=True)


def read(model: Path, *, names: Mapping[str, str] | None = None) -> openvino.Model:
    """Read a model of any format that OpenVINO converts.

    Args:
        model: The file.
        names: As for `convert`.

    Returns:
        OpenVINO's model.

    Raises:
        StepError: OpenVINO does not take it, or one of its inputs or outputs has no name.
    """
    with tool(CONVERTER):
        try:
            converted = openvino.convert_model(str(model))
        except Exception as exc:
            unknown = _UNCONVERTED.search(str(exc))
            if unknown is None:
                raise
            raise StepError(f"openvino cannot convert the operators {unknown[1]}") from exc
    for port in (*converted.inputs, *converted.outputs):
        found = port.get_names()
        declared = {names[name] for name in found if name in names} if names else set()
        if not found | declared:
            raise StepError(f"{CONVERTER} failed: an input or output of the model has no name")
        if declared:
            port.get_tensor().set_names(declared)
    return converted


def _quantization(options: dict[str, Any]) -> dict[str, Any]:
    """Return NNCF's arguments.

    Raises:
        StepError: An option that is not known.
    """
    import nncf
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet

    if options["bias_correction"] not in BIAS_CORRECTIONS:
        raise StepError(f"bias correction {options['bias_correction']!r} is not known")
    ranges = {
        "minmax": RangeEstimatorParametersSet.MINMAX,
        "mean": RangeEstimatorParametersSet.MEAN_MINMAX,
    }
    return {
        "preset": nncf.QuantizationPreset(options["preset"]),
        "model_type": nncf.ModelType.TRANSFORMER if options["transformer"] else None,
        "fast_bias_correction": options["bias_correction"] != "full",
        "advanced_parameters": nncf.AdvancedQuantizationParameters(
            overflow_fix=nncf.OverflowFix(options["overflow_fix"]),
            disable_bias_correction=options["bias_correction"] == "none",
            activations_range_estimator_params=ranges[options["range"]],
        ),
    }


def _indices(inputs: Tensors, options: dict[str, Any]) -> list[int]:
    return spread(len(next(iter(inputs.values()))), options["samples"])


def _ranks(model: openvino.Model) -> dict[str, int]:
    """Return how many axes each input has."""
    return {
        name: len(port.get_partial_shape()) for port in model.inputs for name in port.get_names()
    }


def _answers(
    compiled: Any,  # noqa: ANN401 - nncf's wrapper of a compiled model
    inputs: Tensors,
    indices: Iterable[int],
    names: tuple[dict[str, int], list[str]],
) -> Tensors:
    ranks, outputs = names
    rows = [compiled(sample(inputs, index, ranks)) for index in indices]
    return {
        name: joined([np.array(row[position]) for row in rows])
        for position, name in enumerate(outputs)
    }


def _check_quantized(model: openvino.Model) -> None:
    """Refuse a model in which nothing was quantized.

    Raises:
        StepError: It has no quantizer.
    """
    if not any(op.get_type_name() == "FakeQuantize" for op in model.get_ops()):
        raise StepError("the model has no operator to quantize")


def _weight_types(model: openvino.Model) -> set[str]:
    return {
        op.get_element_type().get_type_name()
        for op in model.get_ops()
        if op.get_type_name() == "Constant"
    }


def _save(model: openvino.Model, target: Path, *, halve: bool) -> None:
    with tool(CONVERTER):
        if model.has_rt_info("conversion_parameters"):
            del model.rt_info["conversion_parameters"]  # names the source file
        for index, operation in enumerate(model.get_ordered_ops()):
            # OpenVINO's own names hold a counter of all that the process has made.
            name = _COUNTED.sub(rf"\g<1>_{index}", operation.get_friendly_name())
            operation.set_friendly_name(name)
        openvino.save_model(model, str(target), compress_to_fp16=halve)
