"""A plain schedule, with registers and vectors, for the kernels that no tuner has seen.

TVM has no schedules of its own for convolutions and matrix products on processors. Without one, a
kernel computes each sum alone, one multiplication at a time.

In each kernel that sums, this schedule keeps the sums of a small tile of outputs in registers:
neighbours along the last axis in vectors, times a few along an axis that reads the same vectors.

Rules:
- The sums keep their order: answers change only where a processor fuses multiplication and
  addition.
- A kernel that this does not fit, or that a tuner has scheduled, stays as it is.
"""

from __future__ import annotations

from typing import Any, Final

import tvm
from tvm.s_tir import Schedule
from tvm.tirx.analysis import undefined_vars

from packager.plan.targets import Target

_SCHEDULED: Final = "tirx.is_scheduled"
"""How TVM marks kernels that have a schedule from a database."""


def scheduled(module: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Schedule the kernels of a module.

    Args:
        module: Fused kernels, with or without a tuner's schedules.
        target: What they are for.

    Returns:
        A module that computes the same.
    """
    changed = {
        variable: _scheduled(function, target.tile)
        for variable, function in module.functions.items()
        if isinstance(function, tvm.tirx.PrimFunc)
    }
    copy = module.clone()
    for variable, function in changed.items():
        copy.update_func(variable, function)
    return copy


def _scheduled(function: Any, tile: tuple[int, int]) -> Any:  # noqa: ANN401 - tvm is untyped
    if function.attrs is not None and _SCHEDULED in function.attrs:
        return function
    try:
        schedule = Schedule(function)
        sums = [
            block
            for block in schedule.get_child_blocks(schedule.get_sblock("root"))
            if _reduces(schedule.get(block))
        ]
        if len(sums) != 1 or not _tiled(schedule, sums[0], tile):
            return function
    except Exception:  # noqa: BLE001 - whatever it is that a schedule may not do here
        return function
    made = schedule.mod["main"]
    return made.with_attrs(dict(function.attrs)) if function.attrs is not None else made


def _tiled(schedule: Any, block: Any, size: tuple[int, int]) -> bool:  # noqa: ANN401 - tvm is untyped
    """Tile a block's sums; return False where the block does not fit and stays as it is."""
    loops = schedule.get_loops(block)
    axes = list(schedule.get(block).iter_vars)
    if len(loops) != len(axes):
        return False
    extents = [int(schedule.get(loop).extent) for loop in loops]
    spatial = [i for i, axis in enumerate(axes) if axis.iter_type == axis.DataPar]
    reduced = [i for i in range(len(axes)) if i not in spatial]
    if not spatial or (neighbours := _divisor(extents[spatial[-1]], size[0])) == 1:
        return False
    last = spatial[-1]
    read = _neighbours(schedule.get(block), axes[last].var)
    if read is None:
        return False
    rows = [
        i
        for i in spatial[:-1]
        if _divisor(extents[i], size[1]) > 1 and not _uses(read, axes[i].var)
    ]
    outer, vector = schedule.split(loops[last], [None, neighbours])
    inner = [vector]
    order = [loops[i] for i in spatial[:-1]] + [outer]
    if rows:
        row = rows[-1]
        order[spatial.index(row)], tile = schedule.split(
            loops[row], [None, _divisor(extents[row], size[1])]
        )
        inner.insert(0, tile)
    schedule.reorder(*order, *(loops[i] for i in reduced), *inner)
    result = schedule.cache_write(block, 0, "local")
    schedule.reverse_compute_at(result, order[-1], preserve_unit_loops=True)
    for part in (block, result):
        *_, tile_loop, vector_loop = schedule.get_loops(part)
        schedule.vectorize(vector_loop)
        if rows:
            schedule.unroll(tile_loop)
    schedule.decompose_reduction(block, loops[reduced[0]])
    return True


def _reduces(block: Any) -> bool:  # noqa: ANN401 - tvm is untyped
    return any(axis.iter_type != axis.DataPar for axis in block.iter_vars)


def _neighbours(block: Any, variable: Any) -> Any | None:  # noqa: ANN401 - tvm is untyped
    """Return a tensor that a block reads at neighbouring places along an axis, or None."""
    for read in block.reads:
        if read.region and _appears(read.region[-1].min, variable):
            return read
    return None


def _uses(read: Any, variable: Any) -> bool:  # noqa: ANN401 - tvm is untyped
    return any(_appears(part.min, variable) for part in read.region)


def _appears(expression: Any, variable: Any) -> bool:  # noqa: ANN401 - tvm is untyped
    return any(found.same_as(variable) for found in undefined_vars(expression))


def _divisor(extent: int, most: int) -> int:
    """Return the greatest divisor up to a bound, or, where that is 1, up to twice the bound."""
    within = [size for size in range(1, 2 * most + 1) if extent % size == 0]
    return max([size for size in within if 1 < size <= most] or within)
