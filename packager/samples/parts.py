"""Makes three prepared sets on disk from the user's data, one folder per part.

Rules:
- No sample of the gate is in another part.
- The raw copies are removed at the end.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from packager.plan.figures import DataResult
from packager.samples.arrays import Bounds
from packager.samples.preprocessing import raw_specs
from packager.samples.readers import DEFAULT_BOUNDS, SampleSource, read_samples
from packager.samples.split import Given, digests, divide
from packager.samples.store import save_samples
from wire.package.manifest import Preprocessing, TensorSpec

RAW_FOLDER = "raw"


def make_parts(
    sources: Mapping[str, SampleSource],
    specs: tuple[TensorSpec, ...],
    target: Path,
    *,
    preprocessing: Mapping[str, Preprocessing] | None = None,
    calibrated: bool = True,
    bounds: Bounds = DEFAULT_BOUNDS,
) -> DataResult:
    """Read, divide and prepare samples.

    Args:
        sources: By the name of the set: `calibration`, `tuning`, `evaluation`, as far as given.
        specs: The model's inputs.
        target: A folder; each part gets a folder of its name there.
        preprocessing: By input, checked.
        calibrated: Whether anything is calibrated or tuned; else the gate is the only part.
        bounds: How much of each set is read at most.

    Returns:
        What was made.

    Raises:
        DataError: The data cannot be used with this model.
        BuildError: A function cannot be imported.
    """
    how = preprocessing or {}
    wanted = raw_specs(specs, how)
    sets = {}
    for name, source in sources.items():
        scratch = target / RAW_FOLDER / name
        scratch.mkdir(parents=True)
        sets[name] = read_samples(source, wanted, scratch, bounds=bounds)
    given = {name: Given(digests(found.inputs), found.labels) for name, found in sets.items()}
    division = divide(given, calibrated=calibrated)
    for part, (name, indices) in division.parts.items():
        folder = target / part
        folder.mkdir()
        found = sets[name]
        save_samples(folder, found.inputs, found.labels, specs, preprocessing=how, indices=indices)
    labelled = sets[division.parts["gate"][0]].labels is not None
    shutil.rmtree(target / RAW_FOLDER)
    return DataResult(
        samples={part: len(indices) for part, (_, indices) in division.parts.items()},
        labelled=labelled,
        overlap=division.overlap,
        notes=division.notes,
    )
