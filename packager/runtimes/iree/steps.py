"""Steps that compile a model with IREE, and emulate what was made."""

from __future__ import annotations

from pathlib import Path

from packager.plan.targets import Target
from packager.run.job import RESULT_FILE, Job
from packager.runtimes.common.job_inputs import facts_of, onnx_model
from runtime_adapters.iree.abi import CompiledModel
from runtime_adapters.protocol import Tensors
from wire.codec import convert, from_json
from wire.package.variant import VariantInfo


def build(job: Job, output: Path) -> CompiledModel:
    """Compile to a module for IREE's runtime."""
    from packager.runtimes.iree.models import compile_model, compile_stablehlo
    from packager.sources.stablehlo import MODULE_FILE

    facts, target = facts_of(job), convert(job.options["target"], Target)
    file = output / "model.vmfb"
    if facts.kind == "stablehlo":
        module = Path(job.inputs["model"]) / MODULE_FILE
        return compile_stablehlo(module, facts.inputs, facts.outputs, file, target)
    return compile_model(onnx_model(job), file, target)


def emulate(
    variant: Path,
    info: VariantInfo,
    target: Target,
    inputs: Tensors,
    *,
    workspace: Path,
    timeout_s: float,
) -> Tensors:
    """Let an emulated module answer samples, as an `Emulate` of `packager.steps.functions`."""
    from packager.runtimes.iree.emulation import iree_runner, run_emulated

    return run_emulated(
        variant / info.model_file,
        from_json((variant / RESULT_FILE).read_bytes(), CompiledModel),
        target,
        inputs,
        runner=iree_runner(target),
        workspace=workspace,
        timeout_s=timeout_s,
    )
