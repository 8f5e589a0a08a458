"""Harm that is planted in a rehearsal: what a bad release would do to what a gate asks. Pure.

```
p95(inference_latency_ms) +10%
inference_failures_total/inference_requests_total +1pp
mean(temperature_c) +3
```
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from controller.domain.gates.language import Gate, parse_gate
from controller.domain.rehearsal.history import Floats
from controller.errors import InvalidRequestError

_HARM: Final = re.compile(r"(?P<subject>.*\S)\s+(?P<sign>[+-])(?P<amount>\d+(?:\.\d+)?(?:%|pp)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Harm:
    """What devices with the release measure otherwise."""

    text: str
    change: float
    """A part of the value for `%`, else what is added to it."""

    is_part: bool
    gates: frozenset[int]
    """The gates that ask for it, from 0."""

    def applied(self, values: Floats) -> Floats:
        """Return what devices measure with it."""
        return values * (1.0 + self.change) if self.is_part else values + self.change


def parse_harm(text: str, gates: Sequence[Gate]) -> Harm:
    """Read harm.

    Args:
        text: As the operator wrote it.
        gates: The gates of the rollout.

    Raises:
        InvalidRequestError: It cannot be read, or no gate asks for that.
    """
    found = _HARM.fullmatch(text.strip()[:256])
    if found is None:
        raise InvalidRequestError(
            f"cannot read the harm {text[:80]!r}",
            remedy="write what a gate asks, and by how much it changes: "
            "'p95(inference_latency_ms) +10%'",
        )
    operator = "<=" if found["sign"] == "+" else ">="
    meant = parse_gate(f"{found['subject']} {operator} {found['sign']}{found['amount']}")
    asked = frozenset(
        number for number, gate in enumerate(gates) if _subject(gate) == _subject(meant)
    )
    if not asked:
        raise InvalidRequestError(
            f"no gate of the rollout asks {found['subject'][:80]!r}: none would see the harm",
            remedy="plant it in what a gate asks, or add a gate",
        )
    return Harm(text=text, change=meant.limit, is_part=meant.is_relative, gates=asked)


def _subject(gate: Gate) -> tuple[object, ...]:
    return gate.statistic, gate.metric, gate.over, gate.where, gate.over_where
