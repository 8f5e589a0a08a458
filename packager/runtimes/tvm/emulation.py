"""Run a library that was compiled for another processor, under user-mode emulation.

Rules:
- One emulated process answers many samples. When the time is up, the samples answered so far count.
- Emulation says whether the answers are right. It says nothing of speed.
- A fault of the library ends only that process.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from packager.errors import StepError
from packager.plan.targets import Target
from packager.runtimes.tvm.driver import compile_c
from packager.samples.store import Unit, has_batch, unit_of
from packager.tools import toolchains
from packager.tools.emulated_process import emulation, run_limited
from runtime_adapters.batches import sample_shape
from runtime_adapters.protocol import Tensors
from runtime_adapters.tensors import DTYPES
from wire.package.tensors import TensorSpec

SOURCE: Final = Path(__file__).with_name("runner.c")


def run_emulated(
    library: Path,
    target: Target,
    inputs: Tensors,
    input_specs: Sequence[TensorSpec],
    output_specs: Sequence[TensorSpec],
    *,
    workspace: Path,
    timeout_s: float,
) -> Tensors:
    """Run samples through a compiled model.

    Args:
        library: The model.
        target: What it is compiled for.
        inputs: Samples by input, along the first axis; there may be more than time allows.
        input_specs: The library's inputs, in its order.
        output_specs: The library's outputs, in its order.
        workspace: A folder for the runner and its files, which are left there.
        timeout_s: When to stop, in seconds.

    Returns:
        Answers by output name, to as many of the first samples as time allowed.

    Raises:
        StepError: A tool is missing, the inputs do not fit, the code failed, or not one sample was
            answered in time.
    """
    command = _command(target, workspace, library)
    source, sink = workspace / "inputs.bin", workspace / "outputs.bin"
    _write_samples(source, inputs, input_specs)
    for specs in (input_specs, output_specs):
        command += [str(len(specs)), *(str(_size_bytes(spec)) for spec in specs)]
    ended = run_limited(
        command,
        target,
        log=workspace / "log.txt",
        timeout_s=timeout_s,
        source=source,
        sink=sink,
    )
    unit = unit_of(input_specs)
    return _answers(sink, output_specs, unit, timeout_s=None if ended else timeout_s)


def _command(target: Target, workspace: Path, library: Path) -> list[str]:
    """Return the start of a command line, after compiling what it runs.

    Raises:
        StepError: A tool is missing or failed.
    """
    prefix = [] if toolchains.natively_runnable(target) else emulation(target)
    compiler = toolchains.compiler(target)
    if compiler is None:
        raise StepError(
            f"there is no compiler for {target.name}", remedy=f"install {target.compiler_package}"
        )
    shutil.copyfile(SOURCE, workspace / "runner.c")
    compile_c(compiler, ["-O2", "-std=gnu11", "runner.c", "-o", "runner", "-ldl"], workspace)
    return [*prefix, str(workspace / "runner"), str(library.resolve())]


def _write_samples(path: Path, inputs: Tensors, specs: Sequence[TensorSpec]) -> None:
    """Write samples as the runner reads them.

    Raises:
        StepError: An array is not what the model takes.
    """
    for spec in specs:
        array = inputs.get(spec.name)
        if array is None:
            raise StepError(f"there are no samples of {spec.name!r}")
        shape = spec.shape[1:] if array.ndim == len(spec.shape) else sample_shape(spec)
        if array.dtype != DTYPES[spec.datatype] or array.shape[1:] != shape:
            raise StepError(
                f"the samples of {spec.name!r} are {array.dtype} of shape "
                f"{list(array.shape[1:])}, but the model takes {spec.datatype} of shape "
                f"{list(shape)}"
            )
    with path.open("wb") as stream:
        for index in range(min((len(inputs[spec.name]) for spec in specs), default=1)):
            for spec in specs:
                stream.write(np.ascontiguousarray(inputs[spec.name][index]).tobytes())


def _answers(
    path: Path, specs: Sequence[TensorSpec], unit: Unit, *, timeout_s: float | None
) -> Tensors:
    """Read the answers of whole samples.

    Raises:
        StepError: No sample was answered.
    """
    sizes = [_size_bytes(spec) for spec in specs]
    count = path.stat().st_size // max(sum(sizes), 1)
    if count == 0:
        raise StepError(
            "the emulated code answered no sample"
            + ("" if timeout_s is None else f" within {timeout_s:g} s")
        )
    rows = np.fromfile(path, np.uint8, count * sum(sizes)).reshape(count, sum(sizes))
    answers: Tensors = {}
    start = 0
    for spec, size in zip(specs, sizes, strict=True):
        shape = spec.shape[1:] if has_batch(spec, unit) else sample_shape(spec)
        part = np.ascontiguousarray(rows[:, start : start + size])
        answers[spec.name] = part.view(DTYPES[spec.datatype]).reshape(count, *shape)
        start += size
    return answers


def _size_bytes(spec: TensorSpec) -> int:
    return math.prod(sample_shape(spec)) * DTYPES[spec.datatype].itemsize
