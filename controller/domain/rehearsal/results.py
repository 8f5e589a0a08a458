"""What the runs of a rehearsal come to together, as it is told. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True)
class Spread:
    """Figures of several runs."""

    runs: int
    """How many had one."""

    median: float
    slow: float
    """No more than a tenth of the runs had a greater one."""


@dataclass(kw_only=True)
class RehearsedHalt:
    """A rule that halted runs."""

    rule: str
    """A limit, as it is called in the file of a rollout, or a gate."""

    after_s: Spread
    """How long after the beginning."""

    started: Spread
    """How many devices had got the order by then."""

    with_release: Spread
    """How many of them had the release by then."""

    left: Spread
    """How many were spared: they had not started, or waited."""


@dataclass(kw_only=True)
class ToldGate:
    """When a gate could tell: when it first passed or failed."""

    gate: str
    stage: int | None = None
    """The only one in which it is asked; None for all."""

    after_s: Spread | None
    """None if it never could."""

    devices: Spread | None
    """How many had the release then."""


@dataclass(kw_only=True)
class RehearsedCourse:
    """What the runs came to."""

    runs: int
    succeeded: int
    halted: int
    unfinished: int
    """Those that had not ended when the virtual time was over."""

    takes_s: Spread | None
    """How long those took that succeeded."""

    stages_s: list[Spread | None]
    """How long each stage took, of runs in which it ended."""

    gates: list[ToldGate]
    halts: list[RehearsedHalt]
    """By the rule, that of most runs first."""

    waits: list[str]
    """For what unfinished runs waited: what most of them did first."""
