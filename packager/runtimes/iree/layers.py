"""Profiles a module by the functions that it dispatches, with the tools of IREE's runtime.

A function is what the compiler fused into one loop nest; its name tells the operation, sizes and
types, but no longer the names of the model's layers.
"""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from typing import Final

import numpy as np

from packager.errors import StepError
from packager.files import read_bounded
from packager.layers.values import LayerProfile
from packager.runtimes.iree.profiles import MAX_ROWS_BYTES, inference_us, layers_of
from runtime_adapters.iree.abi import (
    FUNCTION,
    MAX_DESCRIPTION_BYTES,
    CompiledModel,
    description_of,
)
from runtime_adapters.iree.library import VERSION
from runtime_adapters.protocol import Limits, Tensors
from wire.codec import from_json
from wire.package.variant import VariantInfo

MAX_PROFILE_BYTES: Final = 256 * 1024**2
TIMEOUT_S: Final = 600.0
_MAX_REASON: Final = 200
_FUSED: Final = (
    "a layer is one function that the compiler made; the names of the model's layers are not in "
    "the module. The first inference is among the profiled ones"
)


def profile_layers(
    directory: Path,
    info: VariantInfo,
    inputs: Tensors,
    *,
    limits: Limits,
    runs: int,
    machine: str,
    workspace: Path,
) -> LayerProfile:
    """Profile a variant; the protocol is `packager.steps.functions.ProfileLayers`.

    Raises:
        StepError: The tools are not installed or failed.
    """
    module, bundle = directory / info.model_file, workspace / "module.ireeprof"
    description = read_bounded(description_of(module), MAX_DESCRIPTION_BYTES, StepError)
    given: list[str] = []
    for index, spec in enumerate(from_json(description, CompiledModel).inputs):
        np.save(workspace / f"{index}.npy", inputs[spec.name], allow_pickle=False)
        given.append(f"--input=@{workspace / f'{index}.npy'}")
    device = ["--device=local-sync"]
    if limits.threads > 1:
        device = ["--device=local-task", f"--task_topology_group_count={limits.threads}"]
    benchmark = _output(
        "iree-benchmark-module",
        f"--module={module}",
        f"--function={FUNCTION}",
        *device,
        *given,
        f"--benchmark_min_time={runs}x",
        "--benchmark_format=json",
        "--device_profiling_mode=host-execution",
        f"--device_profiling_output={bundle}",
    )
    if not bundle.is_file() or bundle.stat().st_size > MAX_PROFILE_BYTES:
        raise StepError(f"IREE wrote no profile of at most {MAX_PROFILE_BYTES} bytes")
    statistics = _output("iree-profile", "statistics", "--format=jsonl", str(bundle))
    layers, memory = layers_of(statistics, runs)
    return LayerProfile(
        runtime=info.runtime,
        version=VERSION,
        threads=limits.threads,
        machine=machine,
        runs=runs,
        inference_us=inference_us(benchmark),
        layers=layers,
        memory=memory,
        notes=(_FUSED,),
    )


def _output(name: str, *arguments: str) -> bytes:
    """Return what a tool writes.

    Raises:
        StepError: It is not installed, failed, did not end, or wrote too much.
    """
    found = importlib.util.find_spec("iree._runtime_libs")
    places = list(found.submodule_search_locations or ()) if found else []
    tools = [Path(place) / name for place in places if (Path(place) / name).is_file()]
    if not tools:
        raise StepError(f"this version of IREE's runtime does not bring {name}")
    try:
        done = subprocess.run(
            [str(tools[0]), *arguments], check=False, capture_output=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired as exc:
        raise StepError(f"{name} did not end within {TIMEOUT_S:.0f} s") from exc
    except OSError as exc:
        raise StepError(f"{name} cannot be run: {exc.strerror or exc}") from exc
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise StepError(f"{name} failed: {(lines or ['without a reason'])[-1][:_MAX_REASON]}")
    if len(done.stdout) > MAX_ROWS_BYTES:
        raise StepError(f"{name} wrote more than {MAX_ROWS_BYTES} bytes")
    return done.stdout
