"""Golden samples: inputs with the reference's outputs, which a device must reproduce.

A golden asset is a directory of `input.<name>.npy` and `output.<name>.npy`; the first axis of each
array counts the samples. A tensor's name is percent-encoded, so that any name is a file name.

Rules:
- Equal samples give equal bytes.
- The reader never unpickles, and reads nothing larger than the limits.
- Inputs of texts are arrays of NumPy's type `<U`; outputs are numbers.
- A test that cannot run counts as failed.
- The tolerances are those of the kernels that compute on this device.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec
import numpy as np
from numpy.typing import NDArray

from runtime_adapters.batches import one_sample, ranks_of
from runtime_adapters.errors import InputError
from runtime_adapters.protocol import Session, Tensor, Tensors
from runtime_adapters.tensors import DTYPES
from runtime_adapters.texts import are_texts, are_unicode, narrowed
from wire.errors import FleetError, WireFormatError
from wire.package.golden import Golden, Tolerance
from wire.package.variant import VariantInfo

MAX_FILES: Final = 64
MAX_ASSET_BYTES: Final = 256 * 1024**2
"""A golden asset holds a few samples; what is larger does not belong on a device."""

MAX_FILE_NAME: Final = 255
"""NAME_MAX of the usual file systems, and the limit of a package index."""

WORST_RATIO: Final = 1e9
"""Reported where an error has no finite ratio to its tolerance, so that JSON can hold it."""


class GoldenResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a session did on its golden samples."""

    passed: bool
    samples: int
    """Samples that were run."""

    agreement: float
    """Share of the samples whose first answer equals the reference's, in every output."""

    worst_ratio: float
    """Greatest error divided by its tolerance; 1.0 is the most that passes."""

    detail: str
    """What was wrong first; empty when passed."""


def save_golden(inputs: Tensors, outputs: Tensors) -> dict[str, bytes]:
    """Write samples as the files of a golden asset.

    Args:
        inputs: Arrays by input name; the first axis counts the samples.
        outputs: The reference's answers by output name; the same first axis.

    Returns:
        File name to content.

    Raises:
        InputError: No or unequal numbers of samples, a type that cannot be saved, or too much.
    """
    files: dict[str, bytes] = {}
    for role, tensors in (("input", inputs), ("output", outputs)):
        for name, tensor in sorted(tensors.items()):
            texts = role == "input" and are_texts(tensor.dtype)
            if not (texts or _is_plain(tensor.dtype)) or tensor.ndim == 0:
                raise InputError(f"golden {role} {name!r} cannot be saved: {tensor.dtype}")
            files[_file_name(role, name)] = _npy_bytes(tensor)
    lengths = {len(tensor) for tensor in (*inputs.values(), *outputs.values())}
    if not inputs or not outputs or len(lengths) != 1 or 0 in lengths:
        raise InputError(f"golden tensors hold {sorted(lengths)} samples")
    if len(files) > MAX_FILES or sum(map(len, files.values())) > MAX_ASSET_BYTES:
        raise InputError(f"golden samples are over {MAX_FILES} files or {MAX_ASSET_BYTES} bytes")
    return files


def load_golden(directory: Path) -> tuple[Tensors, Tensors]:
    """Read a golden asset.

    Args:
        directory: The asset's directory, whose files have been verified.

    Returns:
        Inputs and outputs by name; the arrays are read-only.

    Raises:
        WireFormatError: Missing, malformed, too large, or unequal numbers of samples.
    """
    inputs: Tensors = {}
    outputs: Tensors = {}
    try:
        paths = sorted(directory.glob("*.npy"))
        if len(paths) > MAX_FILES or sum(p.stat().st_size for p in paths) > MAX_ASSET_BYTES:
            raise WireFormatError("golden asset: too many or too large files")
        for path in paths:
            role, _, quoted = path.name.removesuffix(".npy").partition(".")
            tensors = {"input": inputs, "output": outputs}.get(role)
            if tensors is None or not quoted or unquote(quoted) in tensors:
                raise WireFormatError(f"golden asset: {path.name!r} is not an input or output")
            tensors[unquote(quoted)] = array_from_npy(
                path.name, path.read_bytes(), texts=role == "input"
            )
    except OSError as exc:
        raise WireFormatError(f"golden asset cannot be read: {exc.strerror}") from exc
    lengths = {len(tensor) for tensor in (*inputs.values(), *outputs.values())}
    if not inputs or not outputs or len(lengths) != 1 or 0 in lengths:
        raise WireFormatError(f"golden asset: tensors hold {sorted(lengths)} samples")
    return inputs, outputs


def check_golden(
    session: Session,
    info: VariantInfo,
    asset_directory: Path,
    *,
    also: Callable[[Tensors], None] | None = None,
) -> GoldenResult:
    """Run the golden samples one by one and compare with the reference.

    A `FleetError` on the way counts as a test that failed, and is not raised.

    Args:
        session: The loaded variant.
        info: Its declaration.
        asset_directory: Where the asset `info.golden.asset` lies.
        also: Gets the outputs of each sample, and raises a `FleetError` if it cannot use them.

    Returns:
        The verdict.
    """
    golden = info.golden
    if golden is None:
        return _failed("the variant has no golden samples")
    try:
        inputs, outputs = load_golden(asset_directory)
        _check_names(info, golden, inputs, outputs)
        golden = for_kernels(golden, session.describe().kernels)
        feeds, wanted = ranks_of(info.inputs), ranks_of(info.outputs)
        samples = [
            (one_sample(inputs, index, feeds), one_sample(outputs, index, wanted))
            for index in range(golden.samples)
        ]
        return _run_samples(session, golden, samples, also)
    except FleetError as exc:
        return _failed(str(exc))


def for_kernels(golden: Golden, kernels: str) -> Golden:
    """Return what is asked of a variant where some kernels compute.

    Args:
        golden: The variant's golden test.
        kernels: Whose kernels compute here.

    Returns:
        The same, with the wider tolerances if others than at the build compute and the build has
        tried others.
    """
    others = golden.other_tolerances or {}
    if kernels == golden.kernels or not others:
        return golden
    tolerances = {
        name: _wider(tolerance, others.get(name, tolerance))
        for name, tolerance in golden.tolerances.items()
    }
    return msgspec.structs.replace(golden, tolerances=tolerances)


def array_from_npy(
    file_name: str, content: bytes, *, called: str = "golden asset", texts: bool = False
) -> NDArray[Any]:
    """Read `.npy` bytes without trusting the type and shape in their header.

    Args:
        file_name: The file's name, for messages.
        content: Its bytes.
        called: What the file belongs to, for messages.
        texts: Whether it may hold texts.

    Returns:
        The array, read-only where the machine is little-endian.

    Raises:
        WireFormatError: Not version 1.0, not a plain type, Fortran order, or another length.
    """
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    except Exception as exc:  # NumPy's parser passes on what Python's tokenizer raises
        raise WireFormatError(f"{called}: {file_name!r} is not a .npy file") from exc
    known = _is_plain(dtype) or (texts and are_texts(dtype))
    plain = version == (1, 0) and not fortran and known
    sized = stream.tell() + math.prod(shape) * dtype.itemsize == len(content)
    if not plain or not sized or not shape or min(shape) < 0:
        raise WireFormatError(f"{called}: {file_name!r} does not hold what its header says")
    array: NDArray[Any] = np.frombuffer(content, dtype=dtype, offset=stream.tell()).reshape(shape)
    native = array.astype(dtype.newbyteorder("="), copy=False)
    if are_texts(dtype) and not are_unicode(native):
        raise WireFormatError(f"{called}: {file_name!r} holds a text that is not Unicode")
    return native


def compare(answer: Tensor, reference: Tensor, tolerance: Tolerance) -> tuple[float, bool]:
    """Compare an output with the reference's.

    Args:
        answer: What the variant gave.
        reference: What it should give.
        tolerance: How far an element may be from it.

    Returns:
        The greatest error divided by its tolerance, and whether the greatest element along the last
        axis is everywhere the same. The ratio is at most `WORST_RATIO`; NaN, a wrong shape and a
        negative tolerance give that too.
    """
    possible = tolerance.absolute >= 0.0 and tolerance.relative >= 0.0
    if answer.shape != reference.shape or not possible:
        return WORST_RATIO, False
    if answer.size == 0:
        return 0.0, True
    ratio = _ratios(answer, reference, tolerance).max()
    if answer.ndim == 0:
        return float(ratio), True
    return float(ratio), bool(np.array_equal(answer.argmax(axis=-1), reference.argmax(axis=-1)))


def _ratios(answer: Tensor, reference: Tensor, tolerance: Tolerance) -> NDArray[np.float64]:
    wide, target = answer.astype(np.float64), reference.astype(np.float64)
    with np.errstate(all="ignore"):  # infinite and NaN elements are judged below
        error = np.abs(wide - target)
        if answer.dtype.kind in "iub" and reference.dtype.kind in "iub":
            error = np.maximum(error, 1.0)  # unequal integers beyond 2**53 may look equal as floats
        allowed = tolerance.absolute + tolerance.relative * np.abs(target)
        ratio = np.where(answer == reference, 0.0, error / allowed)
    usable = np.isfinite(ratio) & ~(np.isinf(target) & (answer != reference))
    return np.where(usable, np.minimum(ratio, WORST_RATIO), WORST_RATIO)


def _run_samples(
    session: Session,
    golden: Golden,
    samples: Sequence[tuple[Tensors, Tensors]],
    also: Callable[[Tensors], None] | None,
) -> GoldenResult:
    worst, agreed, detail = 0.0, 0, ""
    for index, (inputs, outputs) in enumerate(samples):
        answers = session.infer(inputs)
        verdicts = {
            name: compare(answers[name], reference, golden.tolerances[name])
            for name, reference in outputs.items()
        }
        name, (ratio, _) = max(verdicts.items(), key=lambda item: item[1][0])
        if ratio > 1.0 and not detail:
            detail = f"sample {index}: output {name!r} is off by {ratio:.3g} times its tolerance"
        worst = max(worst, ratio)
        agreed += all(same for _, same in verdicts.values())
        if also is not None and not detail:
            also(answers)
    agreement = agreed / golden.samples
    if not agreement >= golden.min_agreement and not detail:  # a limit of NaN always fails
        detail = f"agreement is {agreement:.3f}, at least {golden.min_agreement:.3f} is needed"
    return GoldenResult(
        passed=not detail,
        samples=golden.samples,
        agreement=agreement,
        worst_ratio=worst,
        detail=detail,
    )


def _wider(one: Tolerance, other: Tolerance) -> Tolerance:
    return Tolerance(
        absolute=max(one.absolute, other.absolute), relative=max(one.relative, other.relative)
    )


def _check_names(info: VariantInfo, golden: Golden, inputs: Tensors, outputs: Tensors) -> None:
    declared = {spec.name for spec in info.outputs}
    if set(inputs) != {spec.name for spec in info.inputs} or not set(outputs) <= declared:
        raise WireFormatError(
            "golden asset: its tensors are not the ones that the variant declares"
        )
    if missing := sorted(set(outputs) - set(golden.tolerances)):
        raise WireFormatError(f"golden asset: no tolerance for output {missing[0]!r}")
    samples = len(next(iter(outputs.values())))
    if samples != golden.samples:
        raise WireFormatError(
            f"golden asset: holds {samples} samples, but the variant declares {golden.samples}"
        )


def _failed(detail: str) -> GoldenResult:
    return GoldenResult(
        passed=False, samples=0, agreement=0.0, worst_ratio=WORST_RATIO, detail=detail
    )


def _file_name(role: str, name: str) -> str:
    file_name = f"{role}.{quote(name, safe='')}.npy"
    if not name or len(file_name) > MAX_FILE_NAME:
        raise InputError(f"golden {role} {name[:80]!r}: the name cannot be a file name")
    return file_name


def _npy_bytes(tensor: Tensor) -> bytes:
    buffer = io.BytesIO()
    tensor = narrowed(tensor)
    little = tensor.dtype.newbyteorder("<")
    np.lib.format.write_array(
        buffer, np.ascontiguousarray(tensor, dtype=little), version=(1, 0), allow_pickle=False
    )
    return buffer.getvalue()


def _is_plain(dtype: np.dtype[Any]) -> bool:
    return dtype.newbyteorder("=") in DTYPES.values() and not dtype.hasobject
