"""The step that profiles a variant by layer, in this process, which does nothing else."""

from __future__ import annotations

from pathlib import Path

from packager.layers.sums import bounded
from packager.layers.values import LayerProfile
from packager.run.job import Job
from packager.runtimes.table import RUNTIMES
from packager.samples.store import load_inputs, sample
from packager.steps.functions import profiler_of
from packager.steps.processing import GATE
from runtime_adapters.batches import ranks_of
from runtime_adapters.golden import load_golden
from runtime_adapters.protocol import Limits, Tensors
from wire.codec import convert
from wire.package.variant import VariantInfo


def layers(job: Job, output: Path) -> LayerProfile:
    """Profile a variant on the first sample of the gate, or of a package's golden samples."""
    info = convert(job.options["info"], VariantInfo)
    limits = Limits(threads=job.options["threads"])
    profile = profiler_of(info.runtime)
    if profile is None:
        return LayerProfile(
            runtime=info.runtime,
            version="",
            threads=limits.threads,
            machine=job.machine,
            untold=RUNTIMES.named(info.runtime).untold,
        )
    workspace = output.parent / "profile"  # beside the output, so that it is not kept
    workspace.mkdir()
    return bounded(
        profile(
            Path(job.inputs["variant"]),
            info,
            _first(job, info),
            limits=limits,
            runs=job.options["runs"],
            machine=job.machine,
            workspace=workspace,
        )
    )


def _first(job: Job, info: VariantInfo) -> Tensors:
    ranks = ranks_of(info.inputs)
    if "golden" in job.inputs:
        golden, _ = load_golden(Path(job.inputs["golden"]))
        return sample({spec.name: golden[spec.name] for spec in info.inputs}, 0, ranks)
    return sample(load_inputs(Path(job.inputs["data"]) / GATE, info.inputs, role="first"), 0, ranks)
