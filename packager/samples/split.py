"""Splits the samples into three disjoint parts: for calibration, for tuning, and for the gate.

The functions are pure. A quantizer over-fits the samples that it uses: accuracy control that kept
0.25 points on its own samples lost 1.25 on others. So the gate judges on samples that no quantizer
uses.

Rules:
- Samples with equal bytes are always in the same part.
- If labels are one number per sample, each part has each label in proportion.
- There is no seed. The samples are sorted by their digests, so the split depends on the samples
  alone and not on their order in a file.
- If the user gives an evaluation set, all samples of the gate come from it, and all of it is in the
  gate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packager.errors import DataError
from packager.samples.arrays import MIN_SAMPLES
from runtime_adapters.protocol import Tensor, Tensors
from runtime_adapters.texts import raw_from_texts

Part = Literal["calibration", "tuning", "gate"]

CALIBRATION: Final = "calibration"
TUNING: Final = "tuning"
EVALUATION: Final = "evaluation"
"""Names of the sets that a user may give."""

SHARES: Final[dict[Part, float]] = {"gate": 0.5, "calibration": 0.25, "tuning": 0.25}
"""Shares of a single set. The gate gets most: its size decides how small a loss can be seen."""

HALVES: Final[dict[Part, float]] = {"calibration": 0.5, "tuning": 0.5}
MAX_OVERLAP: Final = 0.01
"""Real sets hold a few doubles; more means that they were not split."""


class Given(NamedTuple):
    """A set that was given, as far as splitting needs it."""

    digests: Sequence[bytes]
    labels: Tensor | None = None


class Division(NamedTuple):
    """Which samples each part has."""

    parts: dict[Part, tuple[str, NDArray[np.intp]]]
    """The set that a part is taken from, and the indices there, ascending."""

    overlap: float
    """Share of the gate's samples that were in another set too, and were taken out there."""

    notes: tuple[str, ...]


def digests(inputs: Tensors) -> list[bytes]:
    """Return one digest per sample, over the bytes of all inputs.

    Args:
        inputs: Arrays by input, samples along the first axis.

    Returns:
        128 bits each; only equal samples have equal digests.
    """
    arrays = [np.asarray(inputs[name]) for name in sorted(inputs)]
    found = []
    for index in range(len(arrays[0])):
        digest = hashlib.blake2b(digest_size=16)
        for array in arrays:
            digest.update(_bytes_of(np.ascontiguousarray(array[index])))
        found.append(digest.digest())
    return found


def _bytes_of(row: Tensor) -> bytes | memoryview:
    """Return what tells a sample from others; the width of an array of texts does not."""
    if row.dtype.kind != "U":
        return row.data
    return raw_from_texts(row.reshape(-1).tolist())


def divide(
    sets: Mapping[str, Given], *, calibrated: bool = True, least: int = MIN_SAMPLES
) -> Division:
    """Divide the given sets into the three parts.

    Args:
        sets: By name: `evaluation`, `calibration`, `tuning`; or a single one of any name.
        calibrated: Whether anything is calibrated or tuned; else the gate is the only part.
        least: How many samples each part must have.

    Returns:
        The parts.

    Raises:
        DataError: Too few samples, sets that overlap, or no set for the gate.
    """
    found = _divided(sets, calibrated=calibrated, least=least)
    name, indices = found.parts["gate"]
    copies = len(indices) - len({sets[name].digests[index] for index in indices})
    if copies <= MAX_OVERLAP * len(indices):
        return found
    note = (
        f"warning: {copies} of the {len(indices)} samples that judge are exact copies of others; "
        "each counts as a sample of its own, so the ranges are too narrow"
    )
    return found._replace(notes=(*found.notes, note))


def _divided(sets: Mapping[str, Given], *, calibrated: bool, least: int) -> Division:
    if not calibrated or len(sets) == 1:
        name = EVALUATION if EVALUATION in sets else next(iter(sets))
        return _single(name, sets[name], least) if calibrated else _only_gate(name, sets)
    if EVALUATION not in sets:
        raise DataError(
            f"{' and '.join(sorted(sets))} data are given, but no evaluation data",
            remedy="add --evaluation, or give only --evaluation; the build then splits that set",
        )
    overlap = _check_disjoint(sets)
    taken = set(sets[EVALUATION].digests)
    others = {name: given for name, given in sets.items() if name != EVALUATION}
    parts: dict[Part, tuple[str, NDArray[np.intp]]] = {}
    if len(others) == 1:
        ((name, given),) = others.items()
        dealt, remark = _deal(given, HALVES, without=taken)
        parts = {part: (name, indices) for part, indices in dealt.items()}
        text = (
            f"{name} data: {len(dealt['calibration'])} samples for calibration, "
            f"{len(dealt['tuning'])} for tuning{remark}; evaluation data: the gate"
        )
    else:
        taken_by_tuning = taken | set(sets[TUNING].digests)
        parts["calibration"] = (CALIBRATION, _left(sets[CALIBRATION], taken_by_tuning))
        parts["tuning"] = (TUNING, _left(sets[TUNING], taken))
        text = "calibration, tuning and evaluation data as given"
    parts["gate"] = (EVALUATION, np.arange(len(sets[EVALUATION].digests)))
    _check_sizes(parts, least)
    return Division(parts=parts, overlap=overlap, notes=(text,))


def _single(name: str, given: Given, least: int) -> Division:
    dealt, remark = _deal(given, SHARES)
    parts: dict[Part, tuple[str, NDArray[np.intp]]] = {
        part: (name, dealt[part]) for part in ("calibration", "tuning", "gate")
    }
    _check_sizes(parts, least)
    counts = ", ".join(f"{len(indices)} for {part}" for part, (_, indices) in parts.items())
    note = f"one set of {len(given.digests)} samples was split: {counts}{remark}"
    return Division(parts=parts, overlap=0.0, notes=(note,))


def _only_gate(name: str, sets: Mapping[str, Given]) -> Division:
    unused = sorted(set(sets) - {name})
    notes = (f"{' and '.join(unused)} data are not used",) if unused else ()
    indices = np.arange(len(sets[name].digests))
    return Division(parts={"gate": (name, indices)}, overlap=0.0, notes=notes)


def _deal(
    given: Given, shares: Mapping[Part, float], *, without: Iterable[bytes] = ()
) -> tuple[dict[Part, NDArray[np.intp]], str]:
    """Deal samples out in order of label and digest, each to the part that lacks most.

    Returns:
        Indices by part, and a remark on how.
    """
    excluded = frozenset(without)
    groups: dict[bytes, list[int]] = {}
    for index, digest in enumerate(given.digests):
        if digest not in excluded:
            groups.setdefault(digest, []).append(index)
    strata = _strata(given.labels)
    order = sorted(groups, key=lambda d: (strata[groups[d][0]] if strata else 0, d))
    dealt: dict[Part, list[int]] = {part: [] for part in shares}
    total = 0
    for digest in order:
        total += len(groups[digest])
        lacks = {part: share * total - len(dealt[part]) for part, share in shares.items()}
        dealt[max(lacks, key=lacks.__getitem__)] += groups[digest]
    remark = ", evenly by label" if strata else ""
    if doubles := total - len(groups):
        remark += f", {doubles} doubles kept together"
    return {part: np.array(sorted(found), np.intp) for part, found in dealt.items()}, remark


def _strata(labels: Tensor | None) -> list[Any] | None:
    """Return labels to sort by; None where there is not one comparable number per sample."""
    if labels is None or labels.ndim != 1 or np.isnan(labels).any():
        return None
    return list(labels.tolist())


def _left(given: Given, taken: set[bytes]) -> NDArray[np.intp]:
    return np.array([i for i, digest in enumerate(given.digests) if digest not in taken], np.intp)


def _check_disjoint(sets: Mapping[str, Given]) -> float:
    """Return the share of the evaluation samples that another set holds too.

    Raises:
        DataError: Two sets share more than real sets do.
    """
    overlap = 0.0
    for one, other in ((EVALUATION, CALIBRATION), (EVALUATION, TUNING), (TUNING, CALIBRATION)):
        if one not in sets or other not in sets:
            continue
        known = set(sets[other].digests)
        count = sum(digest in known for digest in sets[one].digests)
        shared = count / len(sets[one].digests)
        if shared > MAX_OVERLAP:
            raise DataError(
                f"{count} of the {len(sets[one].digests)} {one} samples are also {other} samples",
                remedy="give sets that share no sample, or give only one set",
            )
        overlap = max(overlap, shared) if one == EVALUATION else overlap
    return overlap


def _check_sizes(parts: Mapping[Part, tuple[str, NDArray[np.intp]]], least: int) -> None:
    for part, (name, indices) in parts.items():
        if len(indices) < least:
            raise DataError(
                f"the {name} data leave {len(indices)} samples for {part}, but at least "
                f"{least} are needed",
                remedy="give more different samples",
            )
