"""What the power cuts of all devices came to, as figures."""

from __future__ import annotations

import statistics
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from agent.install.states import State
from benchmarks.harness import Row

TOLD_EVERY: Final = 50


@dataclass
class Tally:
    """Counts of all devices; each method may be called from any thread."""

    states: Counter[str] = field(default_factory=Counter)
    """In which state of the install the power went."""

    ways: Counter[str] = field(default_factory=Counter)
    served: Counter[str] = field(default_factory=Counter)
    """Which release served first after a start: `new` is what was ordered last."""

    answers: Counter[str] = field(default_factory=Counter)
    serves_after_s: list[float] = field(default_factory=list)
    rests: int = 0
    violations: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def cut(self, way: str, state: str) -> None:
        """Count a power cut.

        Args:
            way: How its moment was chosen.
            state: In which state of the install.
        """
        with self._lock:
            self.ways[way] += 1
            self.states[state] += 1
            if self.kills % TOLD_EVERY == 0:
                _say(f"{self.kills} power cuts, {len(self.violations)} violations")

    def serves(self, which: str, after_s: float | None) -> None:
        """Count a device that serves again.

        Args:
            which: `old` or `new`.
            after_s: How long after its start; None if strace has slowed it down.
        """
        with self._lock:
            self.served[which] += 1
            if after_s is not None:
                self.serves_after_s.append(after_s)

    def rested(self) -> None:
        """Count a device that was looked at when it had come to rest."""
        with self._lock:
            self.rests += 1

    def violate(self, *faults: str) -> None:
        """Note what must not be, and tell it at once."""
        with self._lock:
            self.violations += faults
        for fault in faults:
            _say(f"VIOLATION {fault}")

    @property
    def kills(self) -> int:
        """How often a power was cut."""
        return self.ways.total()

    def rows(self, kills: int) -> list[Row]:
        """Return the figures.

        Args:
            kills: How many were asked for.
        """
        broken, wrong = len(self.violations), self.answers["unverified"] + self.answers["wrong"]
        known = [*State, "unknown"]
        rows = [
            _aimed("power cuts", self.kills, "cuts", f">= {kills}", met=self.kills >= kills),
            _aimed("violations", broken, "violations", "0", met=broken == 0),
            _aimed("answers that nobody signed", wrong, "answers", "0", met=wrong == 0),
            Row(name="answers, each compared", value=self.answers["right"], unit="answers"),
            Row(name="answers 503, try again", value=self.answers["refused"], unit="answers"),
            _aimed("looks at a device at rest", self.rests, "looks", ">= 1", met=self.rests >= 1),
        ]
        if self.serves_after_s:
            rows += _times(sorted(self.serves_after_s))
        rows += [
            Row(name=f"serves afterwards: the {which} release", value=count, unit="starts")
            for which, count in sorted(self.served.items())
        ]
        rows += [
            Row(name=f"cut while {state}", value=self.states[state], unit="cuts")
            for state in known
            if state in self.states or state != "unknown"
        ]
        return rows + [
            Row(name=f"moment: {way}", value=count, unit="cuts")
            for way, count in sorted(self.ways.items())
        ]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _times(times_s: list[float]) -> list[Row]:
    """Return how long devices took to serve again; the times are sorted."""
    figures = {
        "median": statistics.median(times_s),
        "95th percentile": times_s[min(len(times_s) - 1, int(0.95 * len(times_s)))],
        "longest": times_s[-1],
    }
    return [
        Row(
            name=f"from the start to the first answer, {name}",
            value=value,
            unit="s",
            spread=f"{len(times_s)} starts",
        )
        for name, value in figures.items()
    ]


def _aimed(name: str, value: float, unit: str, aim: str, *, met: bool) -> Row:
    return Row(name=name, value=value, unit=unit, aim=aim, met=met)
