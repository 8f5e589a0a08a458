"""Tries the declared postprocessing on answers: with the code that a device runs.

Rules:
- A declaration that does not fit the answers of some samples ends the build.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from packager.plan.figures import ProcessingResult
from packager.run.job import Job
from packager.runtimes.common.detector import declared_answers
from packager.samples.declarations import as_data_errors
from packager.samples.store import load_inputs, sample, spread
from runtime_adapters.batches import ranks_of
from runtime_adapters.protocol import Limits, Tensors
from runtime_adapters.registry import open_session
from wire.codec import convert
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

SAMPLES: Final = 8
"""As many as the golden samples; a wrong declaration fails on the first."""

GATE: Final = "gate"


def try_out(job: Job, _output: Path) -> ProcessingResult:
    """Let the unchanged model answer some samples, and process the answers."""
    info = convert(job.options["info"], VariantInfo)
    inputs = load_inputs(Path(job.inputs["data"]) / GATE, info.inputs)
    ranks = ranks_of(info.inputs)
    process = processor(job, info.outputs)
    session = open_session(Path(job.inputs["variant"]), info, Limits(threads=1))
    chosen = spread(len(next(iter(inputs.values()))), SAMPLES)
    kept: dict[str, int] = {}
    for index in chosen:
        for name, boxes in process(session.infer(sample(inputs, index, ranks))).items():
            kept[name] = kept.get(name, 0) + boxes
    session.close()
    return ProcessingResult(
        notes=tuple(
            f"postprocessing of {name!r} keeps {boxes} boxes on {len(chosen)} samples"
            for name, boxes in kept.items()
        )
    )


def processor(job: Job, outputs: tuple[TensorSpec, ...]) -> Callable[[Tensors], dict[str, int]]:
    """Return what tries the postprocessing that a step was given.

    Args:
        job: The step; its options hold the declarations, its inputs the anchors if there are any.
        outputs: The model's outputs.

    Returns:
        A function of the outputs of one call. It returns how many boxes are kept by output, and
        raises a DataError if the declarations do not fit.
    """
    answers = declared_answers(job, outputs)

    def tried(found: Tensors) -> dict[str, int]:
        with as_data_errors():
            return answers.check(found)

    return tried
