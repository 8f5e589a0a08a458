"""Reads the user's declarations for inputs and outputs: a file with a table for each.

Rules:
- A declaration that does not fit the model is refused before any sample is read.
- The package contains the declaration as it was read; a device applies it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from packager.errors import DataError
from packager.fault_text import one_line
from packager.files import read_bounded
from runtime_adapters.errors import AdapterError
from runtime_adapters.processing.anchors import read_anchors
from runtime_adapters.processing.declarations import check_postprocessing, check_preprocessing
from runtime_adapters.processing.detections import check_shapes
from wire.codec import from_toml
from wire.errors import WireFormatError
from wire.package.processing import Postprocessing, Preprocessing
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

T = TypeVar("T", Preprocessing, Postprocessing)

MAX_FILE_BYTES: Final = 256 * 1024
"""A manifest has at most 4 MiB and holds it once per variant."""

ANCHORS_FILE: Final = "anchors.npy"
"""In the directory of every variant, where anchors are declared."""

MAX_VALUES: Final = 4
"""Values of a list that are shown."""


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """The declarations of a build: the same for all its variants."""

    preprocessing: dict[str, Preprocessing] = {}
    """By input."""

    postprocessing: dict[str, Postprocessing] = {}
    """By output."""

    @property
    def boxes(self) -> dict[str, Postprocessing]:
        """The postprocessing, if it makes boxes of any output; else nothing."""
        any_boxes = any(how.suppression for how in self.postprocessing.values())
        return self.postprocessing if any_boxes else {}

    def put_into(self, info: VariantInfo) -> VariantInfo:
        """Return a variant's description with these declarations."""
        return msgspec.structs.replace(
            info,
            preprocessing=self.preprocessing,
            postprocessing=self.postprocessing or msgspec.UNSET,
        )


def read_tables(
    path: Path, kind: type[T], specs: tuple[TensorSpec, ...], *, side: str, short: str
) -> dict[str, T]:
    """Read a TOML file with one table per input or output, whose keys are the fields of a struct.

    Args:
        path: The file.
        kind: The struct.
        specs: The model's inputs or outputs.
        side: What they are called: `input` or `output`.
        short: Another name for the table, where there is only one input or output.

    Returns:
        The tables by the model's names; only the names are checked.

    Raises:
        DataError: Unreadable, an unknown name or key, or a value of another type.
    """
    content = read_bounded(path, MAX_FILE_BYTES, DataError, called=path.name)
    try:
        found = from_toml(content, dict[str, kind])  # type: ignore[valid-type]
    except WireFormatError as exc:
        raise DataError(
            f"{path.name} is not a {kind.__name__.lower()} file: {one_line(exc)}",
            remedy=f"write one table for each {side}, with {', '.join(kind.__struct_fields__)}",
        ) from exc
    names = sorted(spec.name for spec in specs)
    if len(names) == 1 and names[0] not in found:
        found = {names[0] if name == short else name: how for name, how in found.items()}
    for name in found:
        if name not in names:
            raise DataError(
                f"{path.name}: the model has no {side} {name[:80]!r}, only {', '.join(names)[:200]}"
            )
    return found


def read_preprocessing(path: Path, specs: tuple[TensorSpec, ...]) -> dict[str, Preprocessing]:
    """Read a TOML file with one table per input, whose keys are the fields of `Preprocessing`.

    A model with one input may call its table `x`. An input without a table takes its samples as
    they are.

    Args:
        path: The file.
        specs: The model's inputs.

    Returns:
        By input name.

    Raises:
        DataError: Unreadable, an unknown input or key, or not fit for that input.
    """
    found = read_tables(path, Preprocessing, specs, side="input", short="x")
    with as_data_errors():
        for spec in specs:
            if spec.name in found:
                check_preprocessing(spec, found[spec.name])
    return found


def read_postprocessing(path: Path, specs: tuple[TensorSpec, ...]) -> dict[str, Postprocessing]:
    """Read a TOML file with one table per output, whose keys are the fields of `Postprocessing`.

    A model with one output may call its table `y`. An output without a table is answered as it is.

    Args:
        path: The file.
        specs: The model's outputs.

    Returns:
        By output name.

    Raises:
        DataError: Unreadable, an unknown output or key, or not fit for that output.
    """
    found = read_tables(path, Postprocessing, specs, side="output", short="y")
    shapes = {spec.name: spec for spec in specs}
    with as_data_errors():
        check_postprocessing(shapes, found)
        for name, how in found.items():
            if (boxes := how.suppression) is None:
                _check_classes(name, how, shapes[name])
                continue
            anchors = read_anchors(path.parent / boxes.anchors) if boxes.anchors else None
            check_shapes(
                name,
                boxes,
                shapes[name].shape,
                shapes[boxes.scores].shape,
                labels=len(how.labels),
                anchors=None if anchors is None else len(anchors),
                declared=True,
            )
    return {name: _packed(how) for name, how in found.items()}


def anchors_file(path: Path) -> Path | None:
    """Return the file of anchors that a postprocessing file names, relative to itself.

    Args:
        path: The postprocessing file.

    Returns:
        The file, which may not exist; None where none is named, or the file cannot be read.

    Raises:
        DataError: It names several.
    """
    try:
        content = read_bounded(path, MAX_FILE_BYTES, DataError, called=path.name)
        found = from_toml(content, dict[str, Postprocessing])
    except (DataError, WireFormatError):
        return None  # `read_postprocessing` says what is wrong
    boxes = [how.suppression for how in found.values() if how.suppression]
    names = sorted({one.anchors for one in boxes if one.anchors})
    if len(names) > 1:
        raise DataError(
            f"{path.name} names {len(names)} files of anchors",
            remedy="give the boxes of one output anchors",
        )
    return path.parent / names[0] if names else None


def _check_classes(name: str, how: Postprocessing, spec: TensorSpec) -> None:
    """Refuse labels for some of the classes, or more answers than classes.

    A device takes such declarations, so this is only asked of new ones.

    Raises:
        DataError: It declares them.
    """
    classes = spec.shape[how.axis]
    if classes < 0:
        return
    if how.labels and len(how.labels) < classes:
        raise DataError(
            f"output {name!r}: {len(how.labels)} labels for {classes} classes",
            remedy="name every class, in the order of the scores",
        )
    if how.top_k > classes:
        raise DataError(
            f"output {name!r}: top_k = {how.top_k}, but it has {classes} classes",
            remedy=f"ask for {classes} at most",
        )


def _packed(how: Postprocessing) -> Postprocessing:
    """Return a declaration as the package holds it: anchors have a fixed name there."""
    if how.suppression is None or not how.suppression.anchors:
        return how
    boxes = msgspec.structs.replace(how.suppression, anchors=ANCHORS_FILE)
    return msgspec.structs.replace(how, suppression=boxes)


@contextlib.contextmanager
def as_data_errors() -> Iterator[None]:
    """Turn a device's error about a declaration or a request into an error of the data.

    Raises:
        DataError: In place of the device's error.
    """
    try:
        yield
    except AdapterError as exc:
        raise DataError(exc.message, remedy=exc.remedy) from exc


def declared_lines(info: VariantInfo | Declared) -> tuple[str, ...]:
    """Say what is declared: a line per input, then per output, in the order of their names."""
    return tuple(
        f"{role} of {name!r}: {_text(how) or 'none'}"
        for role, declared in (
            ("preprocessing", info.preprocessing),
            ("postprocessing", info.postprocessing or {}),
        )
        for name, how in sorted(declared.items())
    )


def _text(how: msgspec.Struct) -> str:
    """Return the fields that differ from their defaults."""
    fields = ((field, getattr(how, field.name)) for field in msgspec.structs.fields(how))
    return ", ".join(
        field.name if value is True else f"{field.name} {_value(value)}"
        for field, value in fields
        if value != field.default
    )


def _value(value: Any) -> str:  # noqa: ANN401 - of any field
    if isinstance(value, msgspec.Struct):
        return f"({_text(value)})"
    if isinstance(value, tuple):
        shown = " ".join(_value(item) for item in value[:MAX_VALUES])
        return shown if len(value) <= MAX_VALUES else f"{shown} ... ({len(value)})"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
