"""Steps that compile a model with TVM, search for fast schedules, and emulate what was made."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from packager.plan.figures import TuningResult
from packager.plan.targets import Target
from packager.run.job import DATABASE_FOLDER, RESULT_FILE, Job
from packager.runtimes.common.job_inputs import facts_of, onnx_model
from runtime_adapters.batches import sample_shape
from runtime_adapters.protocol import Tensors
from runtime_adapters.tvm.abi import CompiledModel
from wire.codec import convert, from_json
from wire.package.variant import VariantInfo


def build(job: Job, output: Path) -> CompiledModel:
    """Compile to a shared object; the result tells the order of its inputs and outputs."""
    from packager.runtimes.tvm import tuning
    from packager.runtimes.tvm.models import compile_model

    facts, target, known = facts_of(job), _target(job), _database(job)
    with tempfile.TemporaryDirectory(dir=output.parent) as name:
        schedules = Path(name)
        found = 0 if known is None else tuning.schedules(known, target, schedules)
        return compile_model(
            onnx_model(job),
            facts.inputs,
            facts.outputs,
            target,
            output / "model.so",
            database=schedules if found else None,
        )


def tune(job: Job, output: Path) -> TuningResult:
    """Search for schedules, and keep them with those that were known."""
    from packager.runtimes.tvm import lowering, tuning

    facts, target, known = facts_of(job), _target(job), _database(job)
    database = output / DATABASE_FOLDER
    if known is None:
        database.mkdir()
    else:
        shutil.copytree(known, database)
    shapes = {spec.name: sample_shape(spec) for spec in facts.inputs}
    module = lowering.imported(lowering.fixed(onnx_model(job), shapes))
    return tuning.tune(module, target, database, trials_per_task=job.options["trials"])


def emulate(
    variant: Path,
    info: VariantInfo,
    target: Target,
    inputs: Tensors,
    *,
    workspace: Path,
    timeout_s: float,
) -> Tensors:
    """Let an emulated library answer samples, as an `Emulate` of `packager.steps.functions`."""
    from packager.runtimes.tvm.emulation import run_emulated

    library = from_json((variant / RESULT_FILE).read_bytes(), CompiledModel)
    return run_emulated(
        variant / info.model_file,
        target,
        inputs,
        library.inputs,
        library.outputs,
        workspace=workspace,
        timeout_s=timeout_s,
    )


def _target(job: Job) -> Target:
    return convert(job.options["target"], Target)


def _database(job: Job) -> Path | None:
    """Return the folder of the tuning database: a user's, or what a search has just made."""
    given = job.inputs.get("database")
    if given is None:
        return None
    made = Path(given) / DATABASE_FOLDER
    return made if made.is_dir() else Path(given)
