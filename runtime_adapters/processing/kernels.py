"""Chooses the form of each function: compiled where that pays and is possible, else NumPy.

`benchmarks/processing.py` says what pays. Compiled, bilinear resizing and the suppression of boxes
save milliseconds, and quantising and `top_k` save some microseconds. For normalisation and softmax
NumPy's own vector code is faster.

Rules:
- Numba costs a process over 100 MiB and half a second. It is loaded for functions that become
  faster by milliseconds; functions that gain microseconds are only compiled where it is loaded.
- When Numba or its files cannot be used, NumPy gives the same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime_adapters.processing import numpy_forms
from runtime_adapters.processing.numpy_forms import Floats, Indices
from runtime_adapters.protocol import Tensor

resize_nearest = numpy_forms.resize_nearest
normalise = numpy_forms.normalise
softmax = numpy_forms.softmax
sigmoid = numpy_forms.sigmoid
from_anchors = numpy_forms.from_anchors


class Forms(Protocol):
    """The functions that gain from being compiled."""

    def resize_bilinear(self, images: Tensor, height: int, width: int) -> Floats: ...  # noqa: D102 - see numpy_forms

    def quantize(  # noqa: D102
        self, values: Tensor, scale: Floats, zero_point: NDArray[np.int32], dtype: np.dtype[Any]
    ) -> Tensor: ...

    def dequantize(  # noqa: D102
        self, values: Tensor, scale: Floats, zero_point: NDArray[np.int32]
    ) -> Floats: ...

    def top_k(self, scores: Tensor, k: int) -> tuple[Tensor, Indices]: ...  # noqa: D102

    def nms(  # noqa: D102
        self,
        boxes: Tensor,
        scores: Tensor,
        *,
        iou_threshold: float,
        score_threshold: float,
        max_per_class: int,
        centre: bool = False,
    ) -> Indices: ...


class _Engine:
    """The forms of this process."""

    def __init__(self) -> None:
        self._forms: Forms | None = None
        self.name = "not needed"

    @property
    def forms(self) -> Forms:
        if self._forms is None:
            try:
                from runtime_adapters.processing import numba_kernels, numba_library
            except (ImportError, OSError) as exc:
                self.use_numpy(exc)
                return numpy_forms
            self._forms = numba_kernels
            self.name = f"numba {numba_library.VERSION}"
        return self._forms

    def use_numpy(self, reason: Exception) -> None:
        self._forms = numpy_forms
        self.name = f"numpy: {' '.join(str(reason).split())[:200]}"


_engine: Final = _Engine()


def forms(*, pays: bool) -> Forms:
    """Return the functions that gain from being compiled.

    Args:
        pays: Whether a declaration saves milliseconds by it.

    Returns:
        Compiled where it pays and is possible here; else in NumPy.
    """
    return _engine.forms if pays else numpy_forms


def warm(run: Callable[[], object]) -> None:
    """Run something once, so that no later call compiles; where that fails, use NumPy.

    Args:
        run: Calls functions of this module as later calls will.
    """
    try:
        run()
    except Exception:
        if _engine.forms is numpy_forms:
            raise
        _recompiled(run)


def describe() -> dict[str, str]:
    """Say what runs: `engine`, and how many forms were read from disk and compiled."""
    if not _engine.name.startswith("numba"):
        return {"engine": _engine.name}
    from runtime_adapters.processing import numba_library

    read, made = numba_library.counts()
    return {"engine": _engine.name, "read": str(read), "compiled": str(made)}


def _recompiled(run: Callable[[], object]) -> None:
    from runtime_adapters.processing import numba_library

    try:
        numba_library.forget()
        run()
    except Exception as exc:  # noqa: BLE001 - a full disk, a compiler without memory
        _engine.use_numpy(exc)
        run()
