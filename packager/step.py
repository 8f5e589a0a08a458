"""The process of one step: `python -m packager.step JOB.json`.

Quantizers, compilers and runtimes crash, hang and eat memory; here they can only hurt themselves.

Rules:
- Results go to the job's output folder: files, and `result.json`. A fault goes to `failure.json`.
- The memory limit is set before anything heavy is imported.
- The process ends with its parent.
- Nothing reports to anybody: the telemetry of the tools is off before they are imported.
"""

from __future__ import annotations

import ctypes
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from packager.errors import DataError, StepError
from packager.figures import Comparison, DataResult, GoldenResult, Inspection, ReferenceResult
from wire.clock import SystemClock
from wire.codec import convert, from_json, to_json
from wire.errors import FleetError, WireFormatError
from wire.manifest import Performance, VariantInfo

if TYPE_CHECKING:
    from runtime_adapters.protocol import Tensors

RESULT_FILE: Final = "result.json"
FAILURE_FILE: Final = "failure.json"
FAILED: Final = 3
"""Exit status of a step that failed and said why."""

GOLDEN_FOLDER: Final = "golden"
_PR_SET_PDEATHSIG: Final = 1


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a step's process is to do."""

    kind: str
    inputs: dict[str, str]
    """Role to a user's file or the folder of an earlier step."""

    options: dict[str, Any]
    output: str
    memory_bytes: int
    """Limit of the process's data, in bytes."""

    machine: str


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a step failed."""

    code: str
    message: str
    remedy: str = ""


def main(arguments: list[str]) -> int:
    """Do one job.

    Args:
        arguments: The path of the job's file.

    Returns:
        The exit status.
    """
    job = from_json(Path(arguments[0]).read_bytes(), Job)
    _end_with_parent()
    _limit_memory(job.memory_bytes)
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # makes its import fail
    output = Path(job.output)
    try:
        result = _KINDS[job.kind](job, output)
    except FleetError as exc:
        failure = Failure(code=exc.code, message=exc.message, remedy=exc.remedy)
    except MemoryError:
        failure = Failure(
            code=StepError.code, message=f"ran out of its {job.memory_bytes >> 20} MiB of memory"
        )
    except Exception as exc:  # noqa: BLE001 - whatever a tool raises ends this step alone
        traceback.print_exc()
        text = " ".join(str(exc).split())[:200]
        failure = Failure(code=StepError.code, message=f"{type(exc).__name__}: {text}")
    else:
        (output / RESULT_FILE).write_bytes(to_json(result))
        return 0
    (output / FAILURE_FILE).write_bytes(to_json(failure))
    return FAILED


def _inspect(job: Job, _output: Path) -> object:
    from packager.graph import external_files

    return Inspection(external=external_files(Path(job.inputs["model"])))


def _prepare(job: Job, output: Path) -> object:
    from packager import graph
    from packager.plan import SOURCE_MODEL_FILE
    from packager.recipes import MODEL_FILE

    model = graph.load_checked(Path(job.inputs["model"]))
    cleaned, notes = graph.clean(model)
    facts = graph.facts_of(cleaned, notes)
    graph.clamp_ir(model)
    (output / SOURCE_MODEL_FILE).write_bytes(graph.model_bytes(model))
    (output / MODEL_FILE).write_bytes(graph.model_bytes(cleaned))
    return facts


def _data(job: Job, output: Path) -> object:
    from packager import data
    from packager.plan import ModelFacts

    facts = from_json((Path(job.inputs["model"]) / RESULT_FILE).read_bytes(), ModelFacts)
    samples = data.read_archive(Path(job.inputs["archive"]), facts.inputs)
    shared = 0.0
    if "other" in job.inputs:
        shared = data.overlap(samples, data.load_inputs(Path(job.inputs["other"]), facts.inputs))
    if shared > data.MAX_OVERLAP:
        raise DataError(
            f"{shared:.0%} of the evaluation samples are among the calibration samples",
            remedy="split the data into disjoint sets",
        )
    data.save_samples(output, samples)
    return DataResult(
        samples=len(samples[facts.inputs[0].name]),
        labelled=data.LABEL in samples,
        overlap=shared,
    )


def _quantize_onnx(job: Job, output: Path) -> object:
    from packager import quantize_onnx
    from packager.recipes import MODEL_FILE

    model, inputs = _model_and_samples(job)
    quantize_onnx.quantize(model, inputs, job.options, output / MODEL_FILE)
    return {}


def _convert_openvino(job: Job, output: Path) -> object:
    from packager import openvino_models
    from packager.recipes import MODEL_FILE

    openvino_models.convert(Path(job.inputs["model"]) / MODEL_FILE, output / "model.xml")
    return {}


def _quantize_openvino(job: Job, output: Path) -> object:
    from packager import openvino_models

    model, inputs = _model_and_samples(job)
    openvino_models.quantize(model, inputs, job.options, output / "model.xml")
    return {}


def _reference(job: Job, output: Path) -> object:
    from packager.data import load_labels
    from packager.validate import check_answers, resolve_metric

    answers = _answers(job, output)
    for name, tensor in answers.items():
        check_answers(name, tensor)
    labels = load_labels(Path(job.inputs["data"]))
    return ReferenceResult(metric=resolve_metric(job.options["metric"], answers, labels))


def _evaluate(job: Job, output: Path) -> Comparison:
    from packager.data import load_labels
    from packager.validate import compare

    reference = Path(job.inputs["reference"])
    info = convert(job.options["info"], VariantInfo)
    metric = from_json((reference / RESULT_FILE).read_bytes(), ReferenceResult).metric
    return compare(
        _answers(job, output),
        _load_answers(reference, [spec.name for spec in info.outputs]),
        load_labels(Path(job.inputs["data"])),
        metric,
    )


def _measure(job: Job, _output: Path) -> Performance:
    from packager.data import load_inputs, sample
    from packager.measure import measure
    from runtime_adapters.protocol import Limits

    info = convert(job.options["info"], VariantInfo)
    inputs = sample(load_inputs(Path(job.inputs["data"]), info.inputs, role="first"), 0)
    return measure(
        Path(job.inputs["variant"]),
        info,
        inputs,
        limits=Limits(threads=job.options["threads"]),
        machine=job.machine,
        clock=SystemClock(),
    )


def _golden(job: Job, output: Path) -> object:
    from packager.data import load_inputs
    from packager.golden import pick
    from packager.plan import ModelFacts
    from runtime_adapters.golden import save_golden

    facts = from_json((Path(job.inputs["model"]) / RESULT_FILE).read_bytes(), ModelFacts)
    names = [spec.name for spec in facts.outputs]
    reference = _load_answers(Path(job.inputs["reference"]), names)
    answers = [
        _load_answers(Path(path), names)
        for role, path in sorted(job.inputs.items())
        if role.startswith("answers-")
    ]
    chosen = pick(reference, answers, classes=job.options["classes"])
    inputs = load_inputs(Path(job.inputs["data"]), facts.inputs)
    files = save_golden(
        {name: array[chosen] for name, array in inputs.items()},
        {name: array[chosen] for name, array in reference.items()},
    )
    folder = output / GOLDEN_FOLDER
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return GoldenResult(samples=tuple(chosen))


_KINDS: Final[dict[str, Callable[[Job, Path], object]]] = {
    "inspect": _inspect,
    "prepare": _prepare,
    "data": _data,
    "quantize-onnx": _quantize_onnx,
    "convert-openvino": _convert_openvino,
    "quantize-openvino": _quantize_openvino,
    "reference": _reference,
    "evaluate": _evaluate,
    "measure": _measure,
    "golden": _golden,
}


def _model_and_samples(job: Job) -> tuple[Path, Tensors]:
    from packager.data import load_inputs
    from packager.plan import ModelFacts
    from packager.recipes import MODEL_FILE

    prepared = Path(job.inputs["model"])
    facts = from_json((prepared / RESULT_FILE).read_bytes(), ModelFacts)
    return prepared / MODEL_FILE, load_inputs(Path(job.inputs["data"]), facts.inputs)


def _answers(job: Job, output: Path) -> Tensors:
    """Run a variant on every evaluation sample and keep its answers.

    Raises:
        DataError: The outputs of different samples cannot be put side by side.
    """
    import numpy as np

    from packager.data import load_inputs, sample
    from runtime_adapters.protocol import Limits
    from runtime_adapters.registry import open_session

    info = convert(job.options["info"], VariantInfo)
    inputs = load_inputs(Path(job.inputs["data"]), info.inputs)
    session = open_session(Path(job.inputs["variant"]), info, Limits(threads=1))
    total = len(next(iter(inputs.values())))
    rows = [session.infer(sample(inputs, index)) for index in range(total)]
    answers: Tensors = {}
    for spec in info.outputs:
        shapes = {row[spec.name].shape for row in rows}
        if len(shapes) != 1 or next(iter(shapes))[:1] != (1,):
            raise DataError(f"output {spec.name!r} differs in shape between samples")
        answers[spec.name] = np.concatenate([row[spec.name] for row in rows])
        np.save(_answer_file(output, spec.name), answers[spec.name], allow_pickle=False)
    return answers


def _load_answers(directory: Path, names: list[str]) -> Tensors:
    import numpy as np

    return {name: np.load(_answer_file(directory, name), mmap_mode="r") for name in names}


def _answer_file(directory: Path, name: str) -> Path:
    return directory / f"answers.{quote(name, safe='')}.npy"


def _end_with_parent() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _limit_memory(limit_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except WireFormatError as exc:
        sys.exit(str(exc))
