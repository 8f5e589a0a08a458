"""The language of gates: what a release may do to what devices measure.

```
p95(inference_latency_ms) <= +10%                      may grow by a tenth at most
mean(feedback_accuracy_ratio) >= -2pp                  may fall by two points at most
inference_failures_total/inference_requests_total <= +0.5pp
mean(temperature_c{zone=cpu}) <= +3                    in the metric's own unit
```

Rules:
- A gate compares devices that have the new release with those that keep the old one. What comes
  after `<=` or `>=` is how far the first may be from the second, so it has a sign and is never 0:
  no number of devices shows that two releases are the same.
- `%` is a part of the old release's value; it is for amounts, which are above 0. `pp` are points of
  a share, such as from 1.0 % to 1.5 %. Without either it is the metric's own unit.
- A quotient of two counters is a share, of each device.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final, Literal

from controller.errors import InvalidRequestError
from telemetry.limits import is_name

MAX_CHARS: Final = 256
MAX_GATES: Final = 20
_NAME = r"[A-Za-z0-9_.]+"
_GATE = re.compile(
    rf"""\s*
    (?: (?P<statistic>{_NAME})\s*\(\s*(?P<metric>{_NAME})\s*(?:\{{(?P<where>[^{{}}]*)\}})?\s*\)
      | (?P<part>{_NAME})\s*(?:\{{(?P<part_where>[^{{}}]*)\}})?\s*/\s*(?P<whole>{_NAME})
    )\s*(?P<operator><=|>=)\s*(?P<sign>[+-]?)\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>%|pp)?\s*""",
    re.VERBOSE,
)
_STATISTIC = re.compile(r"mean|min|max|rate|p(?:\d{1,2}(?:\.\d{1,3})?|100)")
_SHOWN = "p95(inference_latency_ms) <= +10%"

Unit = Literal["%", "pp", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What a release may do to one figure of a device."""

    text: str
    """As it is shown."""

    metric: str
    statistic: str
    """A statistic of a query; for a share `total`."""

    over: str = ""
    """The metric by which it is divided, for a share."""

    where: tuple[tuple[str, str], ...] = ()
    """Attributes and their values."""

    limit: float
    """How far the new release may be from the old one: above 0 if the value may grow, below 0 if it
    may fall. A part of the old value for `%`, a share for `pp`, else in the metric's unit."""

    unit: Unit

    @property
    def is_relative(self) -> bool:
        """Whether values are compared by their logarithms."""
        return self.unit == "%"

    @property
    def bound(self) -> float:
        """The limit as a difference of what is compared: of logarithms for `%`."""
        return math.log1p(self.limit) if self.is_relative else self.limit


def parse_gate(text: str) -> Gate:
    """Read a gate.

    Args:
        text: As the operator wrote it.

    Returns:
        The gate.

    Raises:
        InvalidRequestError: It cannot be read, or says what no device can ever show.
    """
    if len(text) > MAX_CHARS:
        raise InvalidRequestError(
            f"a gate of {len(text)} characters is too long", remedy=f"write at most {MAX_CHARS}"
        )
    found = _GATE.fullmatch(text)
    if found is None:
        raise InvalidRequestError(
            f"cannot read the gate {text[:80]!r}",
            remedy=f"write it as {_SHOWN!r}, or as a quotient of two counters",
        )
    statistic = found["statistic"] or "total"
    if found["statistic"] and _STATISTIC.fullmatch(statistic) is None:
        raise InvalidRequestError(
            f"a gate cannot compare the {statistic} of devices",
            remedy="use mean, min, max, rate or a percentile such as p95; divide two counters for "
            "a share: inference_failures_total/inference_requests_total <= +0.5pp",
        )
    metric, over = found["metric"] or found["part"], found["whole"] or ""
    for name in filter(None, (metric, over)):
        if not is_name(name):
            raise InvalidRequestError(
                f"{name!r} is not the name of a metric", remedy="fleet telemetry metrics lists them"
            )
    unit: Unit = "%" if found["unit"] == "%" else "pp" if found["unit"] else ""
    number = float(found["number"])
    _check_limit(
        text,
        found["operator"],
        found["sign"],
        number,
        unit,
        is_share=bool(over),
        is_rate=statistic == "rate",
    )
    where = _conditions(found["where"] or found["part_where"] or "", text)
    limit = number / 100.0 if unit else number
    return Gate(
        text=_written(statistic, metric, over, where, found["operator"], found["number"], unit),
        metric=metric,
        statistic=statistic,
        over=over,
        where=where,
        limit=limit if found["operator"] == "<=" else -limit,
        unit=unit,
    )


def _check_limit(
    text: str,
    operator: str,
    sign: str,
    number: float,
    unit: Unit,
    *,
    is_share: bool,
    is_rate: bool,
) -> None:
    """Refuse a limit that no device can be within, or all are.

    Raises:
        InvalidRequestError: The text says why.
    """
    wanted = "+" if operator == "<=" else "-"
    if sign != wanted or number == 0.0:
        does = "grow" if operator == "<=" else "fall"
        raise InvalidRequestError(
            f"gate {text[:80]!r}: behind {operator} stands how far the value may {does}",
            remedy=f"write {operator} {wanted}5% or so; 0 can never be shown, and an absolute "
            "value is for an alert",
        )
    if is_rate and unit == "%":
        raise InvalidRequestError(
            f"gate {text[:80]!r}: where nothing was counted, there is no part to grow by",
            remedy="give how much more in a second, such as +0.1, or divide two counters: "
            "inference_failures_total/inference_requests_total <= +0.5pp",
        )
    if is_share and unit == "%":
        raise InvalidRequestError(
            f"gate {text[:80]!r}: a share that is nearly 0 has no part of itself to grow by",
            remedy="give points, such as +0.5pp",
        )
    if unit == "%" and operator == ">=" and number >= 100.0:  # noqa: PLR2004 - percent
        raise InvalidRequestError(
            f"gate {text[:80]!r}: no amount falls by {number:g} %",
            remedy="give less than 100 %",
        )


def _conditions(text: str, gate: str) -> tuple[tuple[str, str], ...]:
    pairs = [part.partition("=") for part in text.split(",")] if text.strip() else []
    found = tuple((name.strip(), value.strip()) for name, _, value in pairs)
    if not all(name and value for name, value in found):
        raise InvalidRequestError(
            f"gate {gate[:80]!r}: cannot read {{{text}}}",
            remedy="write attributes as {variant=onnxruntime-int8,thermal_band=hot}",
        )
    return found


def _written(
    statistic: str,
    metric: str,
    over: str,
    where: tuple[tuple[str, str], ...],
    operator: str,
    number: str,
    unit: Unit,
) -> str:
    """Return a gate as it is stored and shown; reading it gives the same gate."""
    named = ",".join(f"{name}={value}" for name, value in where)
    subject = f"{metric}{{{named}}}" if named else metric
    value = f"{subject}/{over}" if over else f"{statistic}({subject})"
    whole, _, part = number.partition(".")
    short = f"{whole.lstrip('0') or '0'}.{part.rstrip('0')}".rstrip(".")
    return f"{value} {operator} {'+' if operator == '<=' else '-'}{short}{unit}"
