"""A trained model with its samples in three disjoint parts, on which quantizers are compared.

Rules:
- Every tool gets the same calibration samples, and where it judges its own work the same gate
  samples. No tool ever sees the report samples: all that is reported about quality is about those.
- Other tools get samples as the model takes them, prepared as our declared preprocessing prepares
  them.
- The model takes one sample at a time, of one shape, so that every runtime can have it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.quantizers.qualities import QUALITIES, Array, Quality

ROOT: Final = Path(__file__).resolve().parents[2]
MODELS: Final = Path(os.environ.get("EDGEFLEET_MODELS", str(ROOT.parent / "shared" / "models")))
LABEL: Final = "label"
CALIBRATION_SAMPLES: Final = 256
"""As many as our recipes calibrate with: a tool that took more would need longer for it."""

Samples = tuple[Array, Array]
"""Samples and labels, as many of each."""


class Sizes(NamedTuple):
    """How many samples are used of each part, at most."""

    calibration: int
    gate: int
    report: int


FULL: Final = Sizes(calibration=512, gate=1000, report=2000)
QUICK: Final = Sizes(calibration=64, gate=200, report=500)


class Task(NamedTuple):
    """A model and its samples."""

    name: str
    model: Path
    input: str
    """The model's one input; its first output is judged."""

    quality: str
    """One of `QUALITIES`."""

    metric: str
    """The same for our build."""

    calibration: Path
    """What our build is given, as a user has it."""

    gate: Path
    preprocessing: Path | None
    float_calibration: Path
    """The same for the other tools, at most `CALIBRATION_SAMPLES`."""

    float_gate: Path
    samples: Array
    """The report's, as the model takes them."""

    labels: Array
    slow: bool = False
    """Whether an answer takes so long that fewer runs and runtimes must do."""

    def judge(self) -> Quality:
        """Return the function that judges the answer to a sample."""
        return QUALITIES[self.quality]


def make_task(
    name: str,
    folder: Path,
    model: Path,
    *,
    input_name: str,
    parts: dict[str, Samples],
    raw: dict[str, Samples] | None = None,
    preprocessing: Path | None = None,
    judged: tuple[str, str] = ("right_class", "top1"),
) -> Task:
    """Write the files of a task.

    Args:
        name: For people.
        folder: For the files; it exists.
        model: The model.
        input_name: Its input.
        parts: `calibration`, `gate` and `report`, as the model takes them.
        raw: The first two as a user has them, where a preprocessing is declared.
        preprocessing: The declaration.
        judged: One of `QUALITIES`, and the same as a metric of our build.

    Returns:
        The task.
    """
    samples, labels = parts["calibration"]
    step = max(1, len(labels) // CALIBRATION_SAMPLES)
    chosen = (samples[::step][:CALIBRATION_SAMPLES], labels[::step][:CALIBRATION_SAMPLES])

    def saved(file: str, part: Samples) -> Path:
        path = folder / file
        arrays: dict[str, Any] = {input_name: part[0], LABEL: part[1]}
        np.savez(path, **arrays)
        return path

    given = raw or parts
    return Task(
        name=name,
        model=model,
        input=input_name,
        quality=judged[0],
        metric=judged[1],
        calibration=saved("calibration.npz", given["calibration"]),
        gate=saved("gate.npz", given["gate"]),
        preprocessing=preprocessing,
        float_calibration=saved("float-calibration.npz", chosen),
        float_gate=saved("float-gate.npz", parts["gate"]),
        samples=parts["report"][0],
        labels=parts["report"][1],
    )


def in_parts(samples: Array, labels: Array, sizes: Sizes) -> dict[str, Samples]:
    """Divide samples that are in no order.

    Args:
        samples: All of them.
        labels: Theirs.
        sizes: How many go into each part.

    Returns:
        The parts, the last one with what is left, at most as many as it may have.
    """
    parts: dict[str, Samples] = {}
    begin = 0
    for name, count in sizes._asdict().items():
        end = min(begin + count, len(labels))
        parts[name] = (samples[begin:end], labels[begin:end])
        begin = end
    return parts
