"""The step that compiles a model with IREE."""

from __future__ import annotations

from pathlib import Path

from packager.plan.targets import Target
from packager.run.job import Job
from packager.steps.common import facts_of, onnx_model
from runtime_adapters.iree.abi import CompiledModel
from wire.codec import convert


def build(job: Job, output: Path) -> CompiledModel:
    """Compile to a module for IREE's runtime."""
    from packager.runtimes.iree.models import compile_model, compile_stablehlo
    from packager.sources.stablehlo import MODULE_FILE

    facts, target, file = (
        facts_of(job),
        convert(job.options["target"], Target),
        output / "model.vmfb",
    )
    if facts.kind == "stablehlo":
        module = Path(job.inputs["model"]) / MODULE_FILE
        return compile_stablehlo(module, facts.inputs, facts.outputs, file, target)
    return compile_model(onnx_model(job), file, target)
