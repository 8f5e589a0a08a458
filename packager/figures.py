"""What steps find out, as they hand it to the build; light, so that the build needs no numpy.

Rules:
- How closely a device must reproduce the reference is decided here, in one place.
"""

from __future__ import annotations

from typing import Final

import msgspec

from wire.manifest import Accuracy, Tolerance

HEADROOM: Final = 1.5
"""A variant may err on a device by so many times its worst error on the evaluation data."""

ABSOLUTE_FLOOR: Final = 1e-4
RELATIVE_FLOOR: Final = 1e-3
"""Other processors sum in another order; float32 differs by less than this."""


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """What the inspect step found."""

    external: tuple[str, ...]
    """Files of external tensor data, relative to the model."""


class DataResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a data step found."""

    samples: int
    labelled: bool
    overlap: float
    """Share of the samples that are in the other set too."""


class ReferenceResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the reference step found."""

    metric: str
    """The metric that the build uses."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What an evaluate step found: a variant beside the reference."""

    accuracy: Accuracy
    worst_errors: dict[str, float]
    """Greatest absolute difference of any element, per output."""

    def tolerances(self) -> dict[str, Tolerance]:
        """Return how far each output may be from the reference on a device."""
        return {
            name: Tolerance(absolute=HEADROOM * error + ABSOLUTE_FLOOR, relative=RELATIVE_FLOOR)
            for name, error in self.worst_errors.items()
        }


class GoldenResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the golden step chose."""

    samples: tuple[int, ...]
    """Indices into the evaluation data."""
