"""Run a module that IREE compiled for another processor, under user-mode emulation.

`iree-run-module` from the runtime's wheel for that processor runs it.

Rules:
- A process answers one sample. When the time is up, the samples answered so far count.
- Emulation says whether the answers are right. It says nothing of speed.
- A fault of the module ends only that process.

Source:
    IREE, `iree-run-module --help`.
"""

from __future__ import annotations

import os
import time
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

import numpy as np

from packager.errors import StepError
from packager.plan.targets import Target
from packager.samples.store import sample, stacked, unit_of
from packager.tools.emulated_process import emulation, run_limited
from packager.tools.environments import default_root, foreign_files
from runtime_adapters.batches import ranks_of, sample_shape
from runtime_adapters.iree.abi import FUNCTION, CompiledModel
from runtime_adapters.protocol import Tensor, Tensors
from runtime_adapters.tensors import ANY, DTYPES
from wire.package.tensors import TensorSpec

RUNNER: Final = Path("iree") / "_runtime_libs" / "iree-run-module"
"""Its path in a wheel of `iree-base-runtime`."""

_ELF_MACHINES: Final = {"aarch64": 183, "x86_64": 62}


def iree_runner(target: Target) -> Path:
    """Return IREE's program that runs modules on a kind of processor.

    Args:
        target: The kind of processor.

    Returns:
        The program, from this environment or from the one that was set up for that processor.

    Raises:
        StepError: It is not installed.
    """
    if target.architecture == os.uname().machine:
        found = distribution("iree-base-runtime").locate_file(RUNNER)
        return Path(str(found))
    name = f"iree-{target.architecture}"
    folder = foreign_files(name, default_root())
    if folder is None:
        raise StepError(f"{name} is not installed here", remedy=f"fleet tool install {name}")
    return folder / RUNNER


def run_emulated(
    module: Path,
    model: CompiledModel,
    target: Target,
    inputs: Tensors,
    *,
    runner: Path,
    workspace: Path,
    timeout_s: float,
) -> Tensors:
    """Run samples through a compiled module.

    Args:
        module: The `.vmfb` file.
        model: Its description.
        target: What it is compiled for.
        inputs: Samples by input, along the first axis; there may be more than time allows.
        runner: `iree-run-module` for that processor.
        workspace: A folder for the files of a sample, which are left there.
        timeout_s: When to stop, in seconds.

    Returns:
        Answers by output name, to as many of the first samples as time allowed.

    Raises:
        StepError: A tool is missing, the module failed, or not one sample was answered in time.
    """
    command = _command(target, runner)
    command += [f"--module={module.resolve()}", f"--function={FUNCTION}", "--device=local-sync"]
    command += [f"--input=@{_input(workspace, i)}" for i in range(len(model.inputs))]
    command += [f"--output=@{_output(workspace, i)}" for i in range(len(model.outputs))]
    answers: list[list[Tensor]] = []
    log, end = workspace / "log.txt", time.monotonic() + timeout_s
    for row in range(min((len(inputs[spec.name]) for spec in model.inputs), default=1)):
        for index, spec in enumerate(model.inputs):
            np.save(_input(workspace, index), _sample(inputs, spec, row), allow_pickle=False)
        left = end - time.monotonic()
        if left <= 0 or not run_limited(command, target, log=log, timeout_s=left):
            break
        answers.append([_answer(workspace, i, spec) for i, spec in enumerate(model.outputs)])
    if not answers:
        raise StepError(f"the emulated module answered no sample within {timeout_s:g} s")
    return {
        spec.name: stacked([row[index] for row in answers], spec, unit_of(model.inputs))
        for index, spec in enumerate(model.outputs)
    }


def _command(target: Target, runner: Path) -> list[str]:
    """Return the start of a command line.

    Raises:
        StepError: A tool is missing, or the runner is for another processor.
    """
    prefix = emulation(target)
    try:
        with runner.open("rb") as stream:
            head = stream.read(20)
    except OSError as exc:
        raise StepError(f"IREE's runtime for {target.architecture} is not set up") from exc
    if head[:4] != b"\x7fELF" or head[18] != _ELF_MACHINES.get(target.architecture):
        raise StepError(f"{runner.name} is not a program for {target.architecture}")
    return [*prefix, str(runner.resolve())]


def _sample(inputs: Tensors, spec: TensorSpec, row: int) -> Tensor:
    """Return a sample as the module takes it.

    Raises:
        StepError: The array is not what the module takes.
    """
    taken = sample({spec.name: inputs[spec.name]}, row, ranks_of([spec]))[spec.name]
    shape = sample_shape(spec)
    if taken.dtype != DTYPES[spec.datatype] or taken.shape != shape:
        raise StepError(
            f"a sample of {spec.name!r} is {taken.dtype} of shape {list(taken.shape)}, but the "
            f"module takes {spec.datatype} of shape {list(shape)}"
        )
    return taken


def _answer(workspace: Path, index: int, spec: TensorSpec) -> Tensor:
    """Read an output; its file holds booleans as bytes and does not tell the signs of integers.

    Raises:
        StepError: The module gave something else.
    """
    try:
        array: Tensor = np.load(_output(workspace, index), allow_pickle=False)
    except (OSError, ValueError) as exc:
        raise StepError(f"the emulated module did not write the output {spec.name!r}") from exc
    dtype = DTYPES[spec.datatype]
    sizes = [1 if i == 0 and size == ANY else size for i, size in enumerate(spec.shape)]
    fits = array.ndim == len(sizes) and all(
        size in {ANY, given} for size, given in zip(sizes, array.shape, strict=True)
    )
    if not fits or array.dtype.itemsize != dtype.itemsize:
        raise StepError(f"output {spec.name!r} is {array.dtype} of shape {list(array.shape)}")
    return array.view(dtype)


def _input(workspace: Path, index: int) -> Path:
    return workspace / f"input{index}.npy"


def _output(workspace: Path, index: int) -> Path:
    return workspace / f"output{index}.npy"
