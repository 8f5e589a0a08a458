"""The step that checks StableHLO modules, which this runtime takes unchanged."""

from __future__ import annotations

import os
from pathlib import Path

from packager.errors import ModelError
from packager.plan.figures import ModelFacts
from packager.plan.targets import TARGETS, Target
from packager.run.job import Job
from packager.runtimes.iree.models import compile_stablehlo
from packager.runtimes.iree.spec import REFERENCE_FILE
from packager.sources.stablehlo import MODULE_FILE, load


def prepare(job: Job, output: Path) -> ModelFacts:
    """Check a module, write a clean copy, and compile the reference for this machine.

    The reference is compiled for the architecture's baseline, so that it answers alike on every
    machine that builds.

    Raises:
        ModelError: The file is not such a module, or the module is not supported.
    """
    content, facts = load(Path(job.inputs["model"]))
    module = output / MODULE_FILE
    module.write_bytes(content)
    compile_stablehlo(module, facts.inputs, facts.outputs, output / REFERENCE_FILE, _baseline())
    return facts


def _baseline() -> Target:
    """Return the least demanding target of this machine's architecture.

    Raises:
        ModelError: There is no target for it.
    """
    mine = [target for target in TARGETS if target.architecture == os.uname().machine]
    if not mine:
        raise ModelError(f"StableHLO cannot be run on {os.uname().machine}")
    return mine[-1]
