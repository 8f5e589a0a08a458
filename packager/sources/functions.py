"""Models that a user's function returns: PyTorch modules and scikit-learn estimators, as ONNX.

Rules:
- The function runs only here, in a step's process.
- The result is an ONNX file, which is checked like every other ONNX file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from packager.callables import load_callable
from packager.errors import ModelError
from packager.fault_text import typed_line
from packager.plan.figures import Imported
from packager.sources.kinds import made_kind


def import_function(
    file: Path, text: str, target: Path, *, prune: float, training: tuple[Path, str] | None
) -> Imported:
    """Make an ONNX model of what a function returns.

    Args:
        file: The file that holds the function.
        text: How the user named it.
        target: The file to write.
        prune: Share of the channels of a PyTorch module to take out; 0 for none.
        training: File and name of a function that trains the module after that.

    Returns:
        What the function returned.

    Raises:
        ModelError: The function failed, or returned something else, or it cannot be converted.
    """
    made = _called(load_callable(file, text), text)
    kind = made_kind(made)
    if kind == "scikit-learn":
        if prune or training:
            raise ModelError("only a PyTorch model can be pruned or trained")
        from packager.sources import sklearn

        return Imported(kind=kind, notes=sklearn.convert(made, target))
    from packager.sources import pytorch

    notes: tuple[str, ...] = ()
    if prune or training:
        from packager.sources.pruning import prune as pruned

        pytorch.unpack(made)  # refuses what is not a module with its example inputs
        train = load_callable(*training) if training else None
        found = pruned(made[0], made[1], prune, train=train)
        made, notes = (found.module, *made[1:]), (found.note,)
    return Imported(kind=kind, notes=(*notes, *pytorch.convert(pytorch.unpack(made), target)))


def _called(function: Any, text: str) -> Any:  # noqa: ANN401 - a user's function and what it gives
    """Call the user's function.

    Raises:
        ModelError: It failed.
    """
    try:
        return function()
    except (Exception, SystemExit) as exc:
        raise ModelError(f"{text[:80]!r} failed: {typed_line(exc)}") from exc
