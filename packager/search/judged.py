"""The metrics that a goal can be about, by the names that `--metric` gives them. Pure.

Rules:
- `accuracy` is about every metric of the build at once, as one variant beats another only if it is
  as good by every metric. With one metric it is about that one.
- A further metric is named `OUTPUT=METRIC,labels=NAME`; the labels can be left out where no other
  metric has the rest of the name. The first metric is named as it was given, or by its name
  without options.
- A name that two metrics have stands for neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from packager.judge.further import LABELS_OPTION
from packager.judge.metrics import OUTPUT, is_own, named, wanted
from packager.plan.further import FurtherMetric

ACCURACY: Final = "accuracy"
LATENCY: Final = "latency"
MEMORY: Final = "memory"
SIZE: Final = "size"
COSTS: Final = (LATENCY, MEMORY, SIZE)
MAIN: Final = "first metric"
"""The key of the first metric where there are others; no name that a user gives has a blank."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What can be a goal of a build."""

    keys: dict[str, str]
    """Each name that a user may write, to the key of its figure in `goals.changes`."""

    unclear: frozenset[str] = frozenset()
    """Names that several metrics have."""

    shown: tuple[str, ...]
    """One name for each, for the text of a remedy."""


def judged(metric: str = "auto", further: Sequence[FurtherMetric] = ()) -> Judged:
    """Return what can be a goal of a build.

    Args:
        metric: The first metric, as the user gave it.
        further: The further metrics.

    Returns:
        The names and their keys.

    Raises:
        DataError: There is no such first metric.
    """
    named_keys = [(name, name) for name in (ACCURACY, *COSTS)]
    named_keys += [(name, MAIN if further else ACCURACY) for name in _names_of_first(metric)]
    exact = [key_of(one.output, named(one.metric), one.labels) for one in further]
    named_keys += [(key, key) for key in exact]
    short = [key_of(one.output, named(one.metric), "") for one in further]
    named_keys += [(s, key) for s, key in zip(short, exact, strict=True) if s not in exact]
    found: dict[str, set[str]] = {}
    for name, key in named_keys:
        found.setdefault(name, set()).add(key)
    clear = {name: min(keys) for name, keys in found.items() if len(keys) == 1}
    shown = {key: name for name, key in reversed(named_keys) if name in clear}
    return Judged(
        keys=clear,
        unclear=frozenset(found.keys() - clear.keys()),
        shown=tuple(shown[key] for key in dict.fromkeys(k for _, k in named_keys) if key in shown),
    )


def key_of(output: str, name: str, labels: str) -> str:
    """Return the key of a further metric: as the user writes it, without its other options."""
    return f"{output}={name}" + (f",{LABELS_OPTION}={labels}" if labels else "")


def is_quality(key: str) -> bool:
    """Tell whether a figure is one of quality, and not of cost."""
    return key not in COSTS


def _names_of_first(metric: str) -> tuple[str, ...]:
    names = [metric, named(metric)]
    if not is_own(metric) and (output := wanted(metric).options.get(OUTPUT)):
        names.append(f"{output}={named(metric)}")
    return tuple(dict.fromkeys(names))
