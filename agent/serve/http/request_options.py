"""How urgent a request is and how long it may take, read without looking into its tensors.

Clients say so as Triton's do, by the parameters `priority` and `timeout` (microseconds, 0 for none)
of the request, or by the header `Inference-Timeout-Ms`. Of two times the shorter counts.

Rules:
- The JSON is read only where one of the two names occurs in it, and but for the two it is skipped.
- A name that is written with escapes is not seen; no client does that.
- What is no JSON is left to the worker to refuse.

Source:
    Triton Inference Server, "Extensions": schedule policy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, TypeAlias

import msgspec

from wire.errors import WireFormatError

TIMEOUT_HEADER: Final = "inference-timeout-ms"
MAX_JSON_BYTES: Final = 16 * 1024 * 1024
"""The worker takes no longer JSON."""

_NAMED: Final = re.compile(rb'"(?:priority|timeout)"')
_MS: Final = re.compile(r"[1-9][0-9]{0,8}")
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Parameters(msgspec.Struct, frozen=True):
    priority: _Count = 0
    timeout: _Count = 0


class _Head(msgspec.Struct, frozen=True):
    parameters: _Parameters = _Parameters()


_DECODER: Final = msgspec.json.Decoder(_Head)
_NONE: Final = _Parameters()


def wishes(headers: Mapping[str, str], head: memoryview) -> tuple[int, float | None]:
    """Read what a client wishes.

    Args:
        headers: Those of the request, names in lower case.
        head: The JSON part of the body.

    Returns:
        The priority, 0 for the default, and how long the request may take in seconds, None for as
        long as it takes.

    Raises:
        WireFormatError: A wish is not a whole number in its range.
    """
    parameters = _parameters(head)
    times_s = [parameters.timeout / 1e6] if parameters.timeout else []
    text = headers.get(TIMEOUT_HEADER)
    if text is not None:
        if _MS.fullmatch(text) is None:
            raise WireFormatError(f"{TIMEOUT_HEADER} is not a whole number of milliseconds")
        times_s.append(int(text) / 1000)
    return parameters.priority, min(times_s, default=None)


def _parameters(head: memoryview) -> _Parameters:
    if len(head) > MAX_JSON_BYTES or _NAMED.search(head) is None:
        return _NONE
    try:
        return _DECODER.decode(head).parameters
    except msgspec.ValidationError as exc:
        raise WireFormatError(f"not an inference request: {exc}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _NONE
