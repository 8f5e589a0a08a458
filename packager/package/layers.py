"""Profiles a variant of a finished package by layer, on this machine.

Rules:
- Every file is checked against the package's index before a runtime opens it.
- The profile is taken in a process of its own, as a step of a build is.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from packager.errors import PackageError, StepError
from packager.layers.values import LayerProfile
from packager.package.directory import open_package
from packager.plan.step_names import LAYERS
from packager.plan.steps import profile_options
from packager.run.cache import Cache
from packager.run.job import RESULT_FILE
from packager.run.process import StepLimits, Task, carry_out, error_of
from packager.runtimes.table import RUNTIMES
from runtime_adapters.processor import machine_name
from wire.codec import from_json, sha256_hex, to_builtins
from wire.package.index import asset_directory
from wire.package.variant import Variant


def profile_variant(
    directory: Path, name: str, *, threads: int = 0, runs: int = 0
) -> tuple[Variant, LayerProfile]:
    """Profile a variant by layer on its first golden sample.

    Args:
        directory: The package.
        name: The variant.
        threads: Threads of the session; 0 for as many as the build measured with.
        runs: Inferences to profile; 0 for as many as a build profiles.

    Returns:
        The variant, and its profile.

    Raises:
        PackageError: There is no such variant, or it has no golden samples.
        StepError: It cannot be profiled on this machine.
    """
    manifest, _ = open_package(directory)
    found = next((variant for variant in manifest.variants if variant.name == name), None)
    if found is None:
        raise PackageError(
            f"the package has no variant {name[:80]!r}",
            remedy=f"its variants are {', '.join(v.name for v in manifest.variants)}",
        )
    info = found.info
    if info.runtime not in {row.name for row in RUNTIMES.rows}:
        raise PackageError(
            f"this version knows no runtime {info.runtime[:80]!r}",
            remedy=f"it knows {', '.join(row.name for row in RUNTIMES.rows)}",
        )
    if info.golden is None:
        raise PackageError(f"{name} has no golden samples, and a profile needs one")
    options = profile_options(info.performance)
    options |= {"threads": threads} if threads else {}
    options |= {"runs": runs} if runs else {}
    with tempfile.TemporaryDirectory(prefix="edgefleet-layers-") as folder:
        task = Task(
            name=f"{LAYERS}-{name}",
            key=sha256_hex(name.encode()),
            cache=folder,
            kind=LAYERS,
            inputs={
                "variant": str((directory / found.directory).resolve()),
                "golden": str((directory / asset_directory(info.golden.asset)).resolve()),
            },
            options={"info": to_builtins(info), **options},
            machine=machine_name(),
            limits=StepLimits(),
        )
        outcome = carry_out(task)
        if outcome.failure is not None:
            error = error_of(outcome.failure)
            raise error
        made = Cache(Path(folder)).find(task.key)
        if made is None:
            raise StepError("the profile was lost before it could be read")
        return found, from_json((made[0] / RESULT_FILE).read_bytes(), LayerProfile)
