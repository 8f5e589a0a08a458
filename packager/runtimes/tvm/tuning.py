"""Search for fast schedules of a model's kernels with TVM's MetaSchedule, and keep what it finds.

MetaSchedule's own builder and runner start processes whose imports take longer than a trial. Here
this process does the work of both, and a wrong schedule may end it. Schedules are drawn at random:
eight trials per kernel are too few to learn a cost model from.

Rules:
- A kernel that the database knows for this target is not searched again.
- A schedule is kept only where it beats the plain one (`packager.runtimes.tvm.schedules`).
- The search uses one thread on this machine, and refuses a target that the machine cannot run.

Source:
    Apache TVM 0.27, `tvm.s_tir.meta_schedule`: `TuneContext`, `ReplayTrace`.
"""

from __future__ import annotations

import importlib
import math
import sys
import time
import types
from pathlib import Path
from typing import Any, Final

import numpy as np
import tvm

from packager.errors import StepError
from packager.plan.figures import TuningResult
from packager.plan.targets import Target
from packager.runtimes.tvm import lowering, records
from packager.runtimes.tvm.schedules import scheduled
from packager.tools import toolchains
from packager.tools.quiet import tool

DEFAULT_TRIALS: Final = 8
"""Trials per kernel."""

MAX_TRIALS: Final = 10_000
_LEAST_S: Final = 0.004
"""Least length of one measurement; a shorter one measures the clock."""

_REPEATS: Final = 3
_HOPELESS: Final = 3.0
"""A schedule that takes over this many times as long as the best is not measured a second time."""

_GAIN: Final = 0.95
"""A schedule must take less than this share of the plain one's time: a smaller gain is noise."""

_INTRINSICS: Final = "tvm.s_tir.tensor_intrin"


def tune(
    module: tvm.IRModule,
    target: Target,
    database: Path,
    *,
    trials_per_task: int = DEFAULT_TRIALS,
    seed: int = 0,
) -> TuningResult:
    """Search for schedules of a model's kernels.

    Args:
        module: What `lowering.imported` returned.
        target: What to compile for, which this machine must be able to run.
        database: The folder with what earlier searches found; it gets what this one finds.
        trials_per_task: Schedules to try for each kernel; 0 for none.
        seed: Seed of the random schedules.

    Returns:
        What was done.

    Raises:
        StepError: TVM failed, or this machine cannot run the code.
    """
    if not 0 <= trials_per_task <= MAX_TRIALS:
        raise StepError(f"{trials_per_task} trials are not within 0 to {MAX_TRIALS}")
    if not toolchains.natively_runnable(target):
        raise StepError(f"code for {target.name} cannot be timed on this machine")
    start = time.perf_counter()
    fused = lowering.fused(module, target)
    tried = 0
    with tool("tvm's tuner"):
        _import_few_intrinsics()
        kernels = _kernels(fused, target)
        new = {
            key: kernel
            for key, kernel in kernels.items()
            if not records.holds(database, target, key, tvm.__version__)
        }
        for key, kernel in new.items() if trials_per_task else ():
            found = _search(kernel, target, trials_per_task, seed)
            records.store(database, target, key, found)
            tried += found.trials
    return TuningResult(
        tasks=len(kernels),
        trials=tried,
        reused=len(kernels) - len(new),
        seconds=time.perf_counter() - start,
    )


def schedules(database: Path, target: Target, folder: Path) -> int:
    """Put a target's schedules together in the form that `lowering.lowered` takes.

    Args:
        database: The folder that `tune` fills.
        target: What is compiled for.
        folder: An empty folder, which gets a MetaSchedule database.

    Returns:
        How many there are.
    """
    return records.schedules(database, target, folder, tvm.__version__)


def _kernels(fused: tvm.IRModule, target: Target) -> dict[str, tvm.IRModule]:
    """Return the kernels that sum, by key; others have nothing to gain."""
    from tvm.s_tir.meta_schedule.database import Workload
    from tvm.s_tir.meta_schedule.relax_integration import extract_tasks

    tasks = extract_tasks(fused, lowering.tvm_target(target))
    modules = [task.dispatched[0] for task in tasks if _sums(task.dispatched[0])]
    return {f"{int(Workload(module).as_json()[0]):016x}": module for module in modules}


def _sums(kernel: tvm.IRModule) -> bool:
    schedule = tvm.s_tir.Schedule(kernel)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    return any(
        axis.iter_type != axis.DataPar for block in blocks for axis in schedule.get(block).iter_vars
    )


def _search(kernel: tvm.IRModule, target: Target, trials: int, seed: int) -> records.Found:
    """Try schedules of a kernel."""
    from tvm.s_tir import meta_schedule as ms

    described = lowering.tvm_target(target)
    context = ms.TuneContext(
        mod=kernel,
        target=described,
        space_generator="post-order-apply",
        search_strategy="replay-trace",
        rand_state=seed + 1,
        num_threads=1,
    ).clone()
    spaces = context.generate_design_space()
    context.pre_tuning(max_trials=trials, num_trials_per_iter=trials, design_spaces=spaces)
    candidates = context.generate_measure_candidates() or ()
    arguments = [_argument(info) for info in ms.arg_info.ArgInfo.from_entry_func(kernel)]
    usual = scheduled(kernel, target)
    plain = _seconds(usual, described, arguments, math.inf)
    best, best_seconds = None, plain * _GAIN
    for candidate in candidates:
        seconds = _seconds(candidate.sch.mod, described, arguments, best_seconds)
        if seconds < best_seconds:
            best, best_seconds = candidate, seconds
    context.post_tuning()
    if best is not None:  # once more, one after the other: the machine may have had other work
        plain = min(plain, _seconds(usual, described, arguments, math.inf))
        best_seconds = min(best_seconds, _seconds(best.sch.mod, described, arguments, math.inf))
        best = best if best_seconds < plain * _GAIN else None
    workload = ms.database.Workload(kernel)
    record = None
    if best is not None:
        record = ms.database.TuningRecord(
            best.sch.trace, workload, [best_seconds], described, best.args_info
        )
    return records.Found(
        tvm=tvm.__version__,
        workload=workload.as_json(),
        record=record.as_json() if record is not None else None,
        seconds=best_seconds if record is not None else plain,
        plain_seconds=plain,
        trials=len(candidates),
    )


def _seconds(
    kernel: tvm.IRModule, target: tvm.target.Target, arguments: list[Any], hopeful: float
) -> float:
    """Return how long a call of a kernel takes; infinity where it cannot be built."""
    try:
        function = tvm.tirx.build(kernel, target)["main"]
    except Exception:  # noqa: BLE001 - of random schedules some cannot be built
        return math.inf
    start = time.perf_counter()
    function(*arguments)
    best = time.perf_counter() - start
    if best > _HOPELESS * hopeful + _LEAST_S:
        return best
    for _ in range(_REPEATS):
        calls, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < _LEAST_S or not calls:
            function(*arguments)
            calls += 1
        best = min(best, spent / calls)
    return best


def _argument(info: Any) -> Any:  # noqa: ANN401 - tvm is untyped
    """Return a tensor of ordinary numbers: denormal ones would be slow, zeros can be fast."""
    shape = [int(size) for size in info.shape]
    dtype = np.dtype(str(info.dtype))
    if dtype.kind != "f":
        return tvm.runtime.tensor(np.ones(shape, dtype))
    return tvm.runtime.tensor(np.random.default_rng(0).uniform(1, 2, shape).astype(dtype))


def _import_few_intrinsics() -> None:
    """Import MetaSchedule's intrinsics for CPUs; those for GPUs take many seconds to parse."""
    if _INTRINSICS in sys.modules:
        return
    stub = types.ModuleType(_INTRINSICS)
    stub.__path__ = [str(Path(tvm.__file__).parent / "s_tir" / "tensor_intrin")]
    sys.modules[_INTRINSICS] = tvm.s_tir.tensor_intrin = stub
    for name in ("x86", "arm_cpu"):
        importlib.import_module(f"{_INTRINSICS}.{name}")
