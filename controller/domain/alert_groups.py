"""How a group of an alert is written, and found again.

Rules:
- Different groups have different texts, also where a device made up a value with `,` or `=` in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

MAX_GROUP_CHARS: Final = 500
"""PostgreSQL's indexes take 2,704 bytes, and a character may have four."""

_DIGEST_CHARS: Final = 16
_ESCAPES: Final = str.maketrans({"%": "%25", ",": "%2C", "=": "%3D"})


def group_text(labels: Mapping[str, str]) -> str:
    """Return a group as text, such as `device=cam-1,site=berlin`; empty for a rule without groups.

    Args:
        labels: What the group stands for, in the order of its rule.
    """
    pairs = (f"{name}={value.translate(_ESCAPES)}" for name, value in labels.items())
    text = ",".join(pairs)
    if len(text) <= MAX_GROUP_CHARS:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{text[: MAX_GROUP_CHARS - _DIGEST_CHARS - 1]}~{digest}"


def is_named(text: str, group: str, labels: Mapping[str, object]) -> bool:
    """Tell whether a person means a group: by its text, or by the value of its only label.

    Args:
        text: What the person wrote.
        group: The group as text.
        labels: What it stands for.
    """
    return text == group or (len(labels) == 1 and text in labels.values())
