"""The results that steps hand to the build; this module is light, so that a build needs no NumPy.

Rules:
- Only this module decides how closely a device must reproduce the reference.
"""

from __future__ import annotations

from typing import Final

import msgspec

from packager.plan.further import FurtherMetric
from packager.plan.recipes import SourceKind
from wire.package.accuracy import Accuracy, FurtherAccuracy
from wire.package.distribution import Distribution
from wire.package.golden import Tolerance
from wire.package.tensors import TensorSpec

HEADROOM: Final = 1.5
"""A variant's error on a device may be this many times its worst error on the evaluation data."""

ABSOLUTE_FLOOR: Final = 1e-4
RELATIVE_FLOOR: Final = 1e-3
"""Other processors sum in another order; float32 differs by less than this."""


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the planner must know of a model."""

    kind: SourceKind = "onnx"
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    operators: tuple[str, ...]
    """Types of its nodes, sorted, each once."""

    domains: tuple[str, ...] = ()
    """Operator sets beside ONNX's own, such as `com.microsoft`."""

    opset: int
    """0 where the format has none."""

    parameters: int
    weights: dict[str, float] = {}
    """Share of the weights' bytes by the operator that reads them; empty where not known."""

    inner_weights: dict[str, float] = {}
    """The part of these shares that is within the bodies of `If`, `Loop` and `Scan`."""

    quantized: bool = False
    """Whether it computes in integers already."""

    defaults: tuple[str, ...] = ()
    """Inputs of the user's model that have a default and became constants."""

    apart: bool = False
    """Whether its weights are in a file beside it, so that no step holds all of them."""

    interface: tuple[str, ...] = ()
    """What applications send or get in another form than the user's model has it."""

    notes: tuple[str, ...] = ()
    """What was changed in the clean copy, or could not be."""


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """What the inspect step found."""

    external: tuple[str, ...]
    """Files of external tensor data, relative to the model."""


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What the import step made of a user's function."""

    kind: str
    """What it returned: `pytorch` or `scikit-learn`."""

    notes: tuple[str, ...] = ()


class DataResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the data step made: three disjoint sets."""

    samples: dict[str, int]
    """Part (`calibration`, `tuning`, `gate`) to its number of samples; a part may be missing."""

    labelled: bool
    overlap: float
    """Share of the gate's samples that were in another given set too."""

    notes: tuple[str, ...] = ()
    """How the data were split."""


class ReferenceResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the reference step found."""

    metric: str
    """The metric that the build uses."""

    reason: str = ""
    """Why it was chosen; empty where the user named it."""

    further: tuple[FurtherMetric, ...] = ()
    """The further metrics, with the options that were settled."""

    notes: tuple[str, ...] = ()
    """A line for each branch of the model that no sample takes."""


class ProcessingResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the declared postprocessing gave on answers of the unchanged model."""

    notes: tuple[str, ...]
    """A line for each output whose boxes are kept or dropped."""


class RepairResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair cost and gave, on the tuning samples."""

    text: str = ""
    """One line for the report; empty where there is nothing to tell but the figures."""


class TuningResult(msgspec.Struct, frozen=True, kw_only=True):
    """What auto-tuning did."""

    tasks: int
    trials: int
    reused: int
    """Tasks whose schedules were in the database already."""

    seconds: float


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the samples tell of how far chance may have moved the figures of a comparison."""

    right: tuple[int, int, int, int] | None = None
    """How many samples both models answer rightly, only the variant, only the reference, and
    neither; None where a sample is more than right or wrong."""

    standard_error: float | None = None
    """Of the retention, where `right` is None; None if too few samples tell."""

    degrees: int = 0
    """Degrees of freedom of the standard error."""

    equal_samples: float = 0.0
    """How many samples of equal weight tell as much as these; 0 where all weigh the same."""

    agreed: int | None = None
    """Samples on which both top answers are the same; None where a sample has not just one."""


class FurtherComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What an evaluate step found by a further metric."""

    accuracy: FurtherAccuracy
    evidence: Evidence


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What an evaluate step found: a variant beside the reference."""

    accuracy: Accuracy
    evidence: Evidence = Evidence()
    further: tuple[Evidence, ...] = ()
    """For each of the accuracy's further figures."""

    worst_errors: dict[str, float]
    """Greatest absolute difference of any element, per output."""

    greatest: dict[str, float] = {}
    """Greatest absolute value of any finite element of the reference, per output."""

    kernels: str = ""
    """Whose kernels computed, as the adapter names them."""

    integers: tuple[str, ...] = ()
    """Outputs that are whole numbers: another processor's rounding may change them by 1."""

    distributions: tuple[Distribution, ...] = ()
    """Of the samples and the variant's answers to them."""

    def tolerances(self) -> dict[str, Tolerance]:
        """Return how far each output may be from the reference on a device."""
        return {
            name: Tolerance(
                absolute=HEADROOM * error + (1.0 if name in self.integers else ABSOLUTE_FLOOR),
                relative=RELATIVE_FLOOR,
            )
            for name, error in self.worst_errors.items()
        }


class GoldenChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What the golden step chose."""

    samples: tuple[int, ...]
    """Indices into the samples of the gate."""

    min_agreement: float
    """Share of them on which a variant's first answers must equal the reference's."""
