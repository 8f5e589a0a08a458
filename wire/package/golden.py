"""Golden data: what a variant must reproduce on its device before it serves."""

from __future__ import annotations

import msgspec


class Tolerance(msgspec.Struct, frozen=True, kw_only=True):
    """How far an output may be from the reference: absolute + relative * |reference|."""

    absolute: float
    relative: float


class Golden(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs with the reference's outputs; a variant must reproduce them before it serves."""

    asset: str
    """`sha256:<hex>` of the shared asset that holds `input.<name>.npy`, `output.<name>.npy`."""

    samples: int
    tolerances: dict[str, Tolerance]
    """One for each output name, derived from this variant's measured error."""

    min_agreement: float = 1.0
    """Share of samples whose top answer must equal the reference's; 0.0 where outputs are not
    scores of classes."""

    kernels: str | msgspec.UnsetType = msgspec.UNSET
    """Whose kernels made the error that `tolerances` were derived from, as the adapter names them;
    for a runtime that has several."""

    other_tolerances: dict[str, Tolerance] | msgspec.UnsetType = msgspec.UNSET
    """One for each output name, derived from the error of the runtime's other kernels. A device
    where not `kernels` compute may be as far off as either allows."""
