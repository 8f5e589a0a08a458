"""Families in the text format of Prometheus, for whoever does not ask for protobuf. Pure.

It has no native histograms: a histogram has classic buckets, whose bounds are powers of 2. Those
are bounds of the exponential buckets too, so their counts are exact.

Source:
    Prometheus, "Exposition formats", text format 0.0.4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

from telemetry.histogram import SCALE
from telemetry.server.export.families import Family, HistogramValue, Labels

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
EXPONENTS: Final = range(-4, 17)
"""From 1/16 to 65,536; the same for all, because a series for each bound must not come and go."""


def encode(families: Iterable[Family]) -> bytes:
    """Return families as text."""
    return "".join(f"{line}\n" for family in families for line in _lines(family)).encode()


def classic_buckets(value: HistogramValue) -> list[tuple[float, int]]:
    """Return the upper bounds of classic buckets, and how many values are not above each."""
    found = []
    ahead = value.histogram.buckets()[::-1]
    seen = value.histogram.zeros
    for exponent in EXPONENTS:
        # Bucket i holds what is above 2**(i / 32) and not above 2**((i + 1) / 32).
        while ahead and ahead[-1][0] < exponent << SCALE:
            seen += ahead.pop()[1]
        found.append((2.0**exponent, seen))
    return found


def _lines(family: Family) -> Iterator[str]:
    if family.meaning:
        yield f"# HELP {family.name} {_escaped(family.meaning)}"
    yield f"# TYPE {family.name} {family.kind}"
    for labels, value, _ in family.samples:
        if not isinstance(value, HistogramValue):
            yield f"{family.name}{_labels(labels)} {_number(value)}"
            continue
        for bound, count in (*classic_buckets(value), (math.inf, value.number)):
            yield f"{family.name}_bucket{_labels((*labels, ('le', _number(bound))))} {count}"
        yield f"{family.name}_sum{_labels(labels)} {_number(value.total)}"
        yield f"{family.name}_count{_labels(labels)} {value.number}"


def _labels(labels: Labels) -> str:
    pairs = ",".join(f'{name}="{_escaped(text, quote=True)}"' for name, text in labels)
    return f"{{{pairs}}}" if pairs else ""


def _escaped(text: str, *, quote: bool = False) -> str:
    escaped = text.replace("\\", r"\\").replace("\n", r"\n")
    return escaped.replace('"', r"\"") if quote else escaped


def _number(value: float) -> str:
    return "+Inf" if value == math.inf else repr(float(value))
