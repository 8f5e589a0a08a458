"""Steps that make variants for ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

from packager.plan.figures import RepairResult
from packager.plan.recipes import MODEL_FILE
from packager.plan.targets import Target
from packager.run.job import Job
from packager.runtimes.common.job_inputs import facts_of, onnx_model, samples, tuning_of
from packager.runtimes.onnxruntime import apart, models, offline_graphs, sensitivity
from wire.clock import SystemClock
from wire.codec import convert

NAMED = 5
"""A note names this many nodes and counts the others."""


def halve(job: Job, output: Path) -> None:
    """Compute in half precision."""
    if facts_of(job).apart:
        apart.to_fp16(onnx_model(job).parent, job.options, output)
        return
    models.to_fp16(onnx_model(job), job.options, output / MODEL_FILE)


def quantize(job: Job, output: Path) -> None:
    """Quantize to int8 with ranges from the calibration samples."""
    models.quantize_static(onnx_model(job), samples(job), job.options, output / MODEL_FILE)


def quantize_dynamic(job: Job, output: Path) -> None:
    """Quantize weights to int8, and activations while the model runs."""
    if facts_of(job).apart:
        apart.quantize_dynamic(onnx_model(job).parent, job.options, output)
        return
    models.quantize_dynamic(onnx_model(job), job.options, output / MODEL_FILE)


def quantize_int4(job: Job, output: Path) -> None:
    """Store weights of matrix products in 4 bits."""
    if facts_of(job).apart:
        apart.quantize_weights_int4(onnx_model(job).parent, job.options, output)
        return
    models.quantize_weights_int4(onnx_model(job), job.options, output / MODEL_FILE)


def optimize(job: Job, output: Path) -> None:
    """Optimize ahead of time, for processors of this machine's class."""
    target = convert(job.options["target"], Target)
    offline_graphs.optimize_offline(
        onnx_model(job),
        output / MODEL_FILE,
        architecture=target.architecture,
        isa_features=target.isa_features,
    )


def repair(job: Job, output: Path) -> RepairResult:
    """Quantize to int8, and leave in float what the tuning samples show to cost most."""
    tuning = tuning_of(job)
    goal = sensitivity.Goal(
        retention=job.options["min_retention"],
        max_trials=job.options["trials"],
        max_seconds=job.options["seconds"],
    )
    found = sensitivity.repair(
        onnx_model(job),
        tuning.calibration,
        tuning.tuning,
        tuning.retention,
        job.options,
        goal,
        output / MODEL_FILE,
        clock=SystemClock(),
    )
    return RepairResult(text=_text(found))


def _text(found: sensitivity.FoundRepair) -> str:
    named = ", ".join(found.excluded[:NAMED])
    more = len(found.excluded) - NAMED
    rest = f" and {more} more" if more > 0 else ""
    kept = f"{named}{rest} stay in float" if found.excluded else "nothing stays in float"
    reached = "" if found.reached else ", which is not enough"
    return (
        f"{kept}; {found.trials} trials; retention on the tuning samples "
        f"{found.before:.4f} to {found.after:.4f}{reached}"
    )
