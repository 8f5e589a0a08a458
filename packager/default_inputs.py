"""Prepares the model, and keeps those inputs with a default that the samples carry.

The names of the arrays are read from the directory of an archive, or of a folder: a build opens no
array. What a function yields is not known before it runs.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from urllib.parse import unquote

import msgspec

from packager.callables import is_callable
from packager.plan.figures import ModelFacts
from packager.plan.values import Step
from packager.request import BuildRequest
from packager.run.pipeline import Pipeline

_SUFFIX = ".npy"


def prepare_model(pipeline: Pipeline, step: Step, request: BuildRequest) -> None:
    """Run the step that prepares the model, and again where the samples carry defaults.

    Args:
        pipeline: Runs it.
        step: The step.
        request: What to build; its samples name the arrays.

    Raises:
        PackagerError: The model is at fault.
    """
    pipeline.run([step])
    defaults = pipeline.result(step.name, ModelFacts).defaults
    if not defaults:
        return
    texts = (request.calibration, request.tuning, request.evaluation)
    carried = {name for text in texts if text and not is_callable(text) for name in arrays_of(text)}
    if kept := [name for name in defaults if name in carried]:
        again = msgspec.structs.replace(step, options={**step.options, "inputs": kept})
        pipeline.run([again])


def arrays_of(samples: str) -> set[str]:
    """Return the names of the arrays in a set of samples.

    Args:
        samples: An archive, or a folder of arrays or archives.

    Returns:
        The names; none where it cannot be read, which the step that reads it will say.
    """
    path = Path(samples)
    try:
        if path.is_dir():
            names = {unquote(p.name.removesuffix(_SUFFIX)) for p in path.glob(f"*{_SUFFIX}")}
            return names or {name for one in path.glob("*.npz") for name in _members(one)}
        return _members(path)
    except (OSError, zipfile.BadZipFile):
        return set()


def _members(archive: Path) -> set[str]:
    with zipfile.ZipFile(archive) as opened:
        return {name.removesuffix(_SUFFIX) for name in opened.namelist()}
