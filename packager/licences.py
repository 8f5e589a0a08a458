"""Licences: SPDX expressions, and what the metadata of installed Python packages declares.

Rules:
- Nothing is guessed: a licence that is no SPDX expression is told by the words of the metadata, and
  where the metadata tells none, none is told.
- `LicenseRef-NAME` stands for a licence that SPDX does not know, as its specification has it.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, metadata
from typing import Final

import msgspec

from packager.errors import BuildError

MAX_CHARS: Final = 200
"""Longer texts in the metadata are the licence itself and not its name."""

_OWN: Final = re.compile(r"(DocumentRef-[A-Za-z0-9.-]+:)?LicenseRef-[A-Za-z0-9.-]+")
_KNOWN: Final = "MIT"
"""Stands for a licence of one's own while the rest of an expression is checked."""

_CLASSIFIER: Final = "License :: "


class Licence(msgspec.Struct, frozen=True, kw_only=True):
    """The licence of something; all fields are empty where it is not known."""

    expression: str = ""
    """In SPDX's form."""

    names: tuple[str, ...] = ()
    """What its owner calls it, where that is not in SPDX's form."""


def read_licence(text: str) -> Licence:
    """Read a licence that a user names.

    Args:
        text: An SPDX expression; empty for none.

    Returns:
        The licence.

    Raises:
        BuildError: It is no SPDX expression.
    """
    if not text:
        return Licence()
    found = _expression(text)
    if not found:
        raise BuildError(
            f"licence {text[:80]!r} is no SPDX expression",
            remedy="write one such as Apache-2.0, or LicenseRef-NAME for a licence of your own",
        )
    return Licence(expression=found)


def installed_licence(package: str) -> Licence:
    """Return what an installed Python package declares.

    Args:
        package: Its name.

    Returns:
        The licence; an empty one where the package is not installed or declares none.
    """
    try:
        told = metadata(package)
    except PackageNotFoundError:
        return Licence()
    field = (told.get_all("License") or ("",))[0]
    for text in (*(told.get_all("License-Expression") or ()), field):
        if found := _expression(text):
            return Licence(expression=found)
    classifiers = [c for c in told.get_all("Classifier") or () if c.startswith(_CLASSIFIER)]
    names = tuple(sorted({c.rpartition(" :: ")[2] for c in classifiers}))
    if names:
        return Licence(names=names)
    is_name = 0 < len(field) <= MAX_CHARS and "\n" not in field
    return Licence(names=(field,)) if is_name else Licence()


def _expression(text: str) -> str:
    """Return a text as an SPDX expression; empty if it is none."""
    from cyclonedx.spdx import fixup_id, is_expression

    text = text.strip()
    if not 0 < len(text) <= MAX_CHARS or not text.isprintable():
        return ""
    if found := fixup_id(text):
        return found
    return text if is_expression(_OWN.sub(_KNOWN, text)) else ""
