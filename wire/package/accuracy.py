"""How near a variant's answers are to those of the float reference, as the build measured it."""

from __future__ import annotations

import msgspec


class Certainty(msgspec.Struct, frozen=True, kw_only=True):
    """How far chance may have moved a variant's figures: bounds of what more samples would give."""

    retention_low: float | None
    retention_high: float | None
    """None where the samples give no bound."""

    agreement_low: float | None
    agreement_high: float | None
    """None where a sample has no one top answer."""

    confidence: float
    """Probability with which each bound holds. All lower bounds of a build hold together with a
    probability of 0.95, whichever variant was chosen."""

    compared: int
    """Candidates that the variants were chosen from, without those that compute what the reference
    does."""

    samples_needed: int
    """About how many samples would show that the variant passes the gates of quality, if its
    figures stay as they are; 0 where the samples of the build show it."""


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """How far a variant with states of its own moves away from the reference in long sequences.

    An error is the root mean square of the difference at a step, over all sequences, divided by
    that of the reference's answers; of several outputs, states among them, the greatest counts.
    """

    sequences: int
    steps: int
    """Of each sequence."""

    start: float
    middle: float
    end: float
    """Errors of the first, the middle and the last tenth of the steps."""

    worst: float
    worst_step: int
    """The step with the greatest error, counted from 0."""


class FurtherAccuracy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one output of a variant compares with the float reference, by a metric of its own."""

    output: str
    metric: str
    """As in `Accuracy`."""

    labels: str = ""
    """The array of the samples that is the truth; empty where the reference's answers are."""

    value: float
    reference: float
    retention: float
    """As in `Accuracy`."""

    worst_error: float
    """Greatest absolute difference of any element of this output."""

    samples: int
    certainty: Certainty | msgspec.UnsetType = msgspec.UNSET
    """Its agreement is that of the main metric, and None here."""


class ShapeAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """How a variant compares with the float reference on the samples of one shape."""

    sizes: dict[str, tuple[int, ...]]
    """The shape of one sample, by input."""

    samples: int
    value: float
    reference: float
    retention: float
    worst_error: float


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """How a variant compares with the float reference on the evaluation data."""

    metric: str
    """Such as `top1`. For most metrics a larger value is better; a smaller one for errors (`mae`,
    `rmse`, `wer`, `cer`) and `perplexity`."""

    value: float
    reference: float
    retention: float
    """Share of the reference's quality that is kept; larger is better for every metric. It is
    `value / reference` where larger values are better."""

    agreement: float | None
    """Share of samples whose top answer equals the reference's; None where the metric reads an
    output that has no top answer."""

    sqnr_db: float | None
    """Signal to quantization noise over all outputs; None when there was no noise."""

    worst_error: float
    """Greatest absolute difference of any output element."""

    samples: int
    """Samples that judged it; sequences, if the variant has states."""

    certainty: Certainty | msgspec.UnsetType = msgspec.UNSET
    drift: Drift | msgspec.UnsetType = msgspec.UNSET
    """Set if the variant has states."""

    further: tuple[FurtherAccuracy, ...] | msgspec.UnsetType = msgspec.UNSET
    """Figures of other outputs, each with a gate of its own; set if the build had such metrics."""

    shapes: tuple[ShapeAccuracy, ...] | msgspec.UnsetType = msgspec.UNSET
    """Figures of the samples of each shape; set if the samples have several."""
