"""The language of gates: what a release may do to what devices measure.

```
p95(inference_latency_ms) <= +10%                      may grow by a tenth at most
mean(feedback_accuracy_ratio) >= -2pp                  may fall by two points at most
inference_failures_total/inference_requests_total <= +0.5pp
mean(temperature_c) <= +3                              in the metric's own unit
shift(model_samples_total{tensor=output.scores}) <= +5pp
inference_failures_total/inference_requests_total <= +5pp in the worst case
```

Rules:
- A gate compares devices that have the new release with those that keep the old one. What comes
  after `<=` or `>=` is how far the first may be from the second, so it has a sign and is never 0:
  no number of devices shows that two releases are the same.
- `%` is a part of the old release's value; it is for amounts, which are above 0. `pp` are points of
  a share, such as from 1.0 % to 1.5 %. Without either it is the metric's own unit.
- A quotient of two counters is a share, of each device. Each may have conditions of its own.
- `shift` is how much more or less often answers name a class, whichever it is. It goes both ways.
- `in the worst case` is for shares: devices that tell nothing count as harmed wholly, and the
  interval holds whatever devices do that were not seen.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Final, Literal

from controller.errors import InvalidRequestError
from telemetry.histogram import BASE
from telemetry.limits import is_name

MAX_CHARS: Final = 256
SHIFT: Final = "shift"
SAMPLES: Final = "model_samples_total"
"""The metric that counts which classes answers name."""

MAX_GATES: Final = 20
_NAME = r"[A-Za-z0-9_.]+"
_GATE = re.compile(
    rf"""\s*
    (?: (?P<statistic>{_NAME})\s*\(\s*(?P<metric>{_NAME})\s*(?:\{{(?P<where>[^{{}}]*)\}})?\s*\)
      | (?P<part>{_NAME})\s*(?:\{{(?P<part_where>[^{{}}]*)\}})?
        \s*/\s*(?P<whole>{_NAME})\s*(?:\{{(?P<whole_where>[^{{}}]*)\}})?
    )\s*(?P<operator><=|>=)\s*(?P<sign>[+-]?)\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>%|pp)?
    \s*(?P<worst>in\s+the\s+worst\s+case)?\s*""",
    re.VERBOSE,
)
_STATISTIC = re.compile(r"mean|min|max|rate|shift|p(?:\d{1,2}(?:\.\d{1,3})?|100)")
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

    over_where: tuple[tuple[str, str], ...] = ()
    """The same of `over`."""

    limit: float
    """How far the new release may be from the old one: above 0 if the value may grow, below 0 if it
    may fall. A part of the old value for `%`, a share for `pp`, else in the metric's unit."""

    unit: Unit

    in_worst_case: bool = False
    """Whether it is to hold whatever devices do that were not seen."""

    @property
    def is_shift(self) -> bool:
        """Whether it is about how often answers name each class, more often or less."""
        return self.statistic == SHIFT

    @property
    def is_relative(self) -> bool:
        """Whether values are compared by their logarithms."""
        return self.unit == "%"

    @property
    def step(self) -> float:
        """In what steps the figure is told, as it is compared; 0 if it is exact."""
        return math.log(BASE) if self.is_relative and self.statistic.startswith("p") else 0.0

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
            remedy="use mean, min, max, rate, shift or a percentile such as p95; divide two "
            "counters for a share: inference_failures_total/inference_requests_total <= +0.5pp",
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
    limit = number / 100.0 if unit else number
    gate = Gate(
        text="",
        metric=metric,
        statistic=statistic,
        over=over,
        where=_conditions(found["where"] or found["part_where"] or "", text),
        over_where=_conditions(found["whole_where"] or "", text),
        limit=limit if found["operator"] == "<=" else -limit,
        unit=unit,
        in_worst_case=bool(found["worst"]),
    )
    _check_kind(gate, text)
    return replace(gate, text=_written(gate, found["number"]))


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


def _check_kind(gate: Gate, text: str) -> None:
    """Refuse a worst case of what has none, and a shift of anything but the classes of answers.

    Raises:
        InvalidRequestError: The text says why.
    """
    if gate.in_worst_case and (gate.unit != "pp" or gate.is_shift):
        raise InvalidRequestError(
            f"gate {text[:80]!r}: only a share has a worst case, 0 or 1",
            remedy="give points, such as +5pp, of a share or of a mean that lies between 0 and 1",
        )
    if gate.is_shift and (gate.metric != SAMPLES or gate.unit != "pp" or gate.limit < 0):
        raise InvalidRequestError(
            f"gate {text[:80]!r}: a shift is of how often answers name each class",
            remedy=f"write shift({SAMPLES}) <= +5pp, or with {{tensor=output.NAME}}",
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


def _written(gate: Gate, number: str) -> str:
    """Return a gate as it is stored and shown; reading it gives the same gate."""
    subject = _subject(gate.metric, gate.where)
    value = f"{gate.statistic}({subject})"
    if gate.over:
        value = f"{subject}/{_subject(gate.over, gate.over_where)}"
    whole, _, part = number.partition(".")
    short = f"{whole.lstrip('0') or '0'}.{part.rstrip('0')}".rstrip(".")
    limit = f"<= +{short}" if gate.limit > 0 else f">= -{short}"
    worst = " in the worst case" if gate.in_worst_case else ""
    return f"{value} {limit}{gate.unit}{worst}"


def _subject(metric: str, where: tuple[tuple[str, str], ...]) -> str:
    named = ",".join(f"{name}={value}" for name, value in where)
    return f"{metric}{{{named}}}" if named else metric
