"""How devices with a new release differ from those that keep the old one, and how sure that is.

The device is the unit of chance: it was drawn into the control group or not, and its requests
resemble each other. So each device is one observation, however many requests it answered.

Rules:
- Devices are compared within their stratum, such as their profile: a group that has more of the
  slow devices is not slower for that.
- What a device measured before the rollout explains most of how it differs from others of its
  stratum. That part is taken out, as far as it explains anything in these data (CUPED).
- A stratum that has fewer than `LEAST_OF_STRATUM` devices on either side is left out: to compare
  its devices with those of other strata would compare the strata.
- Neither side counts as less uneven than both are together. A few devices that happen to measure
  the same, such as no failure, do not show that all such devices do.
- Nor does a stratum count as less uneven than its own devices are, however even the others: what a
  few servers do is not better known for many cameras beside them. The same holds for the devices
  with the new release in it: what it does to three is not better known for a hundred without it.
- Without a control group, each device is compared with itself before; then what else has changed
  since counts as the release's doing.
- Percentiles are told in steps. Where devices differ by more than a step, that makes up for it in
  their mean; where they are more alike, the mean may be off by up to half a step on each side.
- Fewer than `LEAST_DEVICES` devices on a side tell nothing.

Source:
    Deng, Xu, Kohavi and Walker, Improving the Sensitivity of Online Controlled Experiments by
    Utilizing Pre-Experiment Data (WSDM 2013), section 3 (CUPED). Strata and their weights: Imbens
    and Rubin, Causal Inference (2015), chapter 9. The variance is Neyman's with Student's pooled
    one as its floor (the same, chapter 6; Welch, Biometrika 34, 1947), and its degrees of freedom
    are those of Satterthwaite (Biometrics Bulletin 2, 1946). Strata that are unlike: Banerjee,
    Approximate confidence interval for linear functions of means of k populations when the
    population variances are not equal (Sankhya 22, 1960): it holds with at least its level. Steps:
    Widrow and Kollar, Quantization Noise (2008), chapter 4, the first harmonic, with Sheppard's
    correction of the variance. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from controller.domain.gates.states import LEAST_DEVICES, LEAST_OF_STRATUM
from controller.domain.gates.trials import Sides, Trials
from controller.domain.wording import counted
from telemetry.server.student import student_t

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


class Observed(NamedTuple):
    """What one device measured."""

    value: float
    before: float
    """The same before the rollout; NaN if it is not known."""

    stratum: str
    """Devices of one stratum are compared with each other."""

    trials: float = math.inf
    """Of how many trials the value is a share, above 0; infinite if that is not known."""


class Part(NamedTuple):
    """A part of a variance."""

    variance: float
    degrees: float
    """Its degrees of freedom."""


class Contrast(NamedTuple):
    """By how much devices with the new release differ."""

    difference: float
    """That of the new release less that of the old one; NaN if nothing can be told."""

    error: float
    """The standard error of the difference."""

    degrees: float
    """Degrees of freedom of the error."""

    treated: int
    """Devices with the new release that count."""

    control: int
    """Devices with the old one; 0 where devices are compared with themselves before."""

    lacks: str = ""
    """Why nothing can be told; empty if something can."""

    parts: tuple[tuple[Part, ...], ...] = ()
    """Of each stratum what part of the variance its own devices show, in several ways, of which the
    widest counts; empty where there are no strata."""

    coarse: float = 0.0
    """How far the difference may be off because values are told in steps."""

    trials: Sides | None = None
    """On what shares the difference rests, with the new release and with the old one."""

    def widened(self, distance: float) -> Contrast:
        """Return the same as if one more device on each side were off by some distance.

        Devices that all measured the same, such as no failure at all, seem to show that none ever
        measures anything else; that is not known of the next one.

        Args:
            distance: How far off it may be.

        Source:
            Laplace's rule of succession, with the distance in the place of 1.
        """
        sides = [number for number in (self.treated, self.control) if number]
        unseen = [distance / (number + 1) for number in sides]
        more = ((Part(math.hypot(*unseen) ** 2, self.degrees),),) if self.parts else ()
        return self._replace(error=math.hypot(self.error, *unseen), parts=self.parts + more)

    def interval(self, level: float) -> tuple[float, float]:
        """Return within what the true difference lies.

        Args:
            level: The chance that it does not, above 0: half of it on each side.

        Returns:
            Its ends; infinite ones if nothing can be told.
        """
        if self.lacks:
            return -math.inf, math.inf
        chance = 1.0 - level / 2.0
        apart = sum(
            max(student_t(chance, part.degrees) ** 2 * part.variance for part in each)
            for each in self.parts
        )
        reach = max(student_t(chance, self.degrees) * self.error, math.sqrt(apart)) + self.coarse
        return self.difference - reach, self.difference + reach


def contrast(
    treated: Sequence[Observed], control: Sequence[Observed], *, step: float = 0.0
) -> Contrast:
    """Compare devices that have the new release with those that keep the old one.

    Args:
        treated: Those with the new one.
        control: The control group.
        step: In what steps values are told; 0 if they are exact.

    Returns:
        The difference, weighted by how much each stratum tells of it.
    """
    both = [*treated, *control]
    is_treated = np.arange(len(both)) < len(treated)
    values = np.array([each.value for each in both])
    before = np.array([each.before for each in both])
    strata = _numbered([_stratum(each) for each in both], is_treated)
    kept = strata >= 0
    sides = int((kept & is_treated).sum()), int((kept & ~is_treated).sum())
    if lacks := _lacks(*sides, is_alone=bool(treated) and not control):
        return Contrast(math.nan, math.nan, math.nan, *sides, lacks)
    every = range(int(strata.max()) + 1)
    cells = [(strata == number) & is_treated for number in every]
    others = [(strata == number) & ~is_treated for number in every]
    shares = _shares(cells, others)
    trials = np.array([each.trials for each in both])
    new, old = (_trials(values, trials, shares, side) for side in (cells, others))
    coarse = sum(
        float(share) * _off(values[cell], step)
        for side in (cells, others)
        for share, cell in zip(shares, side, strict=True)
    )
    values = _without_before(values, before, [*cells, *others])
    # The slope of what was there before is one more parameter, which both sides share.
    parameters = len(cells) + (0.5 if np.isfinite(before[kept]).any() else 0.0)
    found = _weighted(values, cells, others, shares, parameters)
    return found._replace(coarse=coarse, trials=(new, old))


def against_before(treated: Sequence[Observed], *, step: float = 0.0) -> Contrast:
    """Compare devices that have the new release with themselves before the rollout.

    Args:
        treated: Those devices; the ones of which nothing is known from before do not count.
        step: In what steps values are told; 0 if they are exact.

    Returns:
        The mean of their differences.
    """
    known = [one for one in treated if math.isfinite(one.before)]
    after, before, trials = (
        np.array(each)
        for each in (
            [one.value for one in known],
            [o.before for o in known],
            [o.trials for o in known],
        )
    )
    changes = after - before
    if len(changes) < LEAST_DEVICES:
        why = f"{counted(len(changes))} measured enough before and after; {LEAST_DEVICES} must"
        return Contrast(math.nan, math.nan, math.nan, len(changes), 0, why)
    error = float(changes.std(ddof=1)) / math.sqrt(len(changes))
    all_of_them = [np.ones(len(known), np.bool_)]
    now = _trials(after, trials, np.ones(1), all_of_them)
    return Contrast(
        float(changes.mean()),
        error,
        len(changes) - 1.0,
        len(changes),
        0,
        coarse=_off(after, step) + _off(before, step),
        trials=(now, Trials(float(before.mean()), math.inf)),
    )


def _stratum(one: Observed) -> str:
    """Return with whom a device is compared: not with one of which more is known."""
    return one.stratum if math.isfinite(one.before) else f"{one.stratum} (new)"


def _numbered(names: Sequence[str], is_treated: Flags) -> npt.NDArray[np.intp]:
    """Number the strata; -1 for devices that nobody can be compared with."""
    _, numbers = np.unique(np.array(names), return_inverse=True)
    numbers = np.where(_is_small(numbers, is_treated)[numbers], -1, numbers)
    found = np.unique(numbers[numbers >= 0])
    return np.where(numbers >= 0, np.searchsorted(found, numbers), -1)


def _is_small(numbers: npt.NDArray[np.intp], is_treated: Flags) -> Flags:
    """Tell for each stratum whether a side of it has too few devices for a variance."""
    size = len(numbers)
    mine = np.bincount(numbers[is_treated], minlength=size)
    theirs = np.bincount(numbers[~is_treated], minlength=size)
    return np.minimum(mine, theirs) < LEAST_OF_STRATUM


def _lacks(treated: int, control: int, *, is_alone: bool) -> str:
    """Say which side has too few devices; empty if none has.

    Args:
        treated: Devices with the new release that somebody can be compared with.
        control: The same of those with the old one.
        is_alone: Whether there are none of those at all.
    """
    if is_alone:
        return "no device with the old release is there to compare with"
    for number, what in ((treated, "the new release"), (control, "the old one")):
        if number < LEAST_DEVICES:
            return f"{counted(number)} with {what} can be compared; {LEAST_DEVICES} must"
    return ""


def _without_before(values: Floats, before: Floats, cells: Sequence[Flags]) -> Floats:
    """Take out what was there before, as far as it explains how devices of one cell differ."""
    known = np.isfinite(before)
    x, y = np.zeros_like(values), np.zeros_like(values)
    for cell in cells:
        at = np.flatnonzero(cell & known)
        if len(at):
            x[at] = before[at] - before[at].mean()
            y[at] = values[at] - values[at].mean()
    spread = float(x @ x)
    if spread <= 0.0:
        return values
    share = float(x @ y) / spread
    # Taken from its mean, so that devices with and without it stay on one scale.
    return values - share * np.where(known, before - before[known].mean(), 0.0)


def _shares(cells: Sequence[Flags], others: Sequence[Flags]) -> Floats:
    """Return what part of the difference each stratum is: by how well its own is known."""
    mine, theirs = (np.array([float(cell.sum()) for cell in side]) for side in (cells, others))
    weights = mine * theirs / (mine + theirs)
    shares: Floats = weights / weights.sum()
    return shares


def _trials(values: Floats, trials: Floats, shares: Floats, cells: Sequence[Flags]) -> Trials:
    """Return the share of a side, and on how many trials it rests."""
    mean = sum(
        float(share * values[cell].mean()) for share, cell in zip(shares, cells, strict=True)
    )
    # A share of n trials errs by its variance over n, and the weights go into that squared.
    part = sum(
        float((share / cell.sum()) ** 2 * (1.0 / trials[cell]).sum())
        for share, cell in zip(shares, cells, strict=True)
    )
    return Trials(mean, 1.0 / part if part > 0.0 else math.inf)


def _off(values: Floats, step: float) -> float:
    """Return how far the mean of values may be off that are told in steps."""
    if step <= 0.0:
        return 0.0
    if len(np.unique(np.rint(values / step))) <= 2:  # noqa: PLR2004 - they may huddle at a border
        return step / 2.0
    spread = max(float(values.var(ddof=1)) - step**2 / 12.0, 0.0)
    return step / 2.0 * math.exp(-2.0 * math.pi**2 * spread / step**2)


def _weighted(
    values: Floats,
    cells: Sequence[Flags],
    others: Sequence[Flags],
    shares: Floats,
    parameters: float,
) -> Contrast:
    """Return the mean of the strata's differences, each with its share."""
    mine, theirs = ([int(cell.sum()) for cell in side] for side in (cells, others))
    differences = [
        float(values[cell].mean() - values[other].mean())
        for cell, other in zip(cells, others, strict=True)
    ]
    squares = np.array(
        [
            [float(((values[c] - values[c].mean()) ** 2).sum()) for c in side]
            for side in (cells, others)
        ]
    )
    freedoms = [max(sum(sizes) - parameters, 1.0) for sizes in (mine, theirs)]
    spreads = [float(squares[at].sum()) / freedom for at, freedom in enumerate(freedoms)]
    pooled = (spreads[0] * freedoms[0] + spreads[1] * freedoms[1]) / sum(freedoms)
    parts = [
        float((shares**2 / np.array(sizes)).sum()) * max(spread, pooled)
        for spread, sizes in zip(spreads, (mine, theirs), strict=True)
    ]
    difference = float(shares @ np.array(differences))
    variance = sum(parts)
    freedom = sum(freedoms)
    if variance > 0.0:
        # As parts of the whole: the square of a small variance is no number any more.
        freedom = 1.0 / sum(
            (part / variance) ** 2 / each for part, each in zip(parts, freedoms, strict=True)
        )
    apart = tuple(
        _own(float(share), sizes, (float(a), float(b)), parameters / len(cells))
        for share, *sizes, a, b in zip(shares, mine, theirs, *squares, strict=True)
    )
    both = sum(mine), sum(theirs)
    return Contrast(difference, math.sqrt(variance), freedom, *both, parts=apart)


def _own(
    share: float, sizes: Sequence[int], squares: tuple[float, float], parameters: float
) -> tuple[Part, ...]:
    """Return what part of the variance a stratum shows: both its sides alike, and each for itself.

    Args:
        share: What part of the difference is its own.
        sizes: How many devices each side has.
        squares: The squared distances of each side from its mean, added up.
        parameters: How many are taken from these data on each side.
    """
    freedoms = [max(size - parameters, 1.0) for size in sizes]
    alike = share**2 * sum(1.0 / size for size in sizes) * sum(squares) / sum(freedoms)
    sides = [
        share**2 * square / freedom / size
        for square, freedom, size in zip(squares, freedoms, sizes, strict=True)
    ]
    apart = sum(sides)
    if apart <= 0.0:
        return (Part(alike, sum(freedoms)),)
    # As parts of the whole: the square of a small variance is no number any more.
    degrees = 1.0 / sum(
        (side / apart) ** 2 / freedom for side, freedom in zip(sides, freedoms, strict=True)
    )
    return Part(alike, sum(freedoms)), Part(apart, degrees)
