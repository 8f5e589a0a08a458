"""Which origins `[endpoint] allow_origins` may name. Pure.

Rules:
- An origin is written as browsers send it, since it is compared as it is.

Source:
    RFC 6454, section 6.2; the Fetch standard, section 3.1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

ANY: Final = "*"
_ORIGIN: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>[1-9][0-9]{0,4}))?"
)
_USUAL_PORTS: Final = {"http": "80", "https": "443"}


def origins_fault(origins: Sequence[str], *, needs_token: bool) -> str:
    """Return what is wrong with a list of origins.

    Args:
        origins: The list.
        needs_token: Whether clients of the endpoint need a token.

    Returns:
        One line; empty if nothing is wrong.
    """
    if ANY in origins:
        if len(origins) > 1:
            return 'has "*" beside other origins: name them, or "*" alone'
        if needs_token:
            return 'has "*" although clients need a token: name the origins that may have it'
    return next((fault for origin in origins if (fault := _fault(origin))), "")


def _fault(origin: str) -> str:
    if origin == ANY:
        return ""
    if origin == "null":
        return 'has "null", which every page from a file has: serve the page by HTTP'
    match = _ORIGIN.fullmatch(origin)
    if match is None:
        return (
            f"has {origin[:80]!r}: write an origin as https://panel.example, in lower case, no path"
        )
    if match["port"] and match["port"] == _USUAL_PORTS.get(match["scheme"]):
        return f"has {origin[:80]!r}: browsers leave out the usual port :{match['port']}"
    return ""
