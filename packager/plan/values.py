"""The values that a plan is made of."""

from __future__ import annotations

from typing import Any

import msgspec

from packager.plan.figures import ModelFacts
from packager.plan.further import FurtherMetric
from packager.plan.runtimes import Runtimes
from packager.plan.targets import Target
from wire.package.processing import Postprocessing
from wire.package.variant import VariantInfo


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work, done in a process of its own."""

    name: str
    kind: str
    """Names the function that does it, by the table in `packager.steps.functions`."""

    inputs: dict[str, str] = {}
    """Role to a user's file or an earlier step."""

    options: dict[str, Any] = {}
    tools: tuple[str, ...] = ()
    """What its output depends on beside its inputs and our own code."""

    vital: bool = False
    """Without it the build fails; any other failed step loses only the candidates that need it."""

    quiet: bool = False
    """It measures, so it runs alone on this machine, after every other step has ended."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A variant that might go into the package."""

    name: str
    recipe: str
    build: str
    """The step whose output holds `files`."""

    files: tuple[str, ...]
    info: VariantInfo
    """The variant's declaration, without what only a build can tell; `profiles` are those that it
    is planned for."""

    steps: tuple[str, ...]
    """Kinds of the steps that make its files, in order: its provenance."""

    tools: tuple[str, ...]
    """Tools that make its files."""

    target: Target | None = None
    """The processor that it is compiled for; None where the runtime adapts itself."""

    emulated: bool = False
    """Whether its code runs here only under emulation."""

    measured: bool = True
    """Whether this machine runs the target's code, or has a profile's architecture if there is no
    target."""

    @property
    def evaluate(self) -> str:
        """The step that runs it on the evaluation data."""
        return f"evaluate-{self.name}"

    @property
    def evaluate_others(self) -> str:
        """The step that runs it on the evaluation data with the runtime's other kernels."""
        return f"{self.evaluate}-other-kernels"

    @property
    def measure(self) -> str:
        """The step that measures what it costs."""
        return f"measure-{self.name}"

    @property
    def layers(self) -> str:
        """The step that profiles it by layer, where one was asked for."""
        return f"layers-{self.name}"

    @property
    def needed(self) -> tuple[str, ...]:
        """The steps without which nothing is known of it."""
        own = (self.build, self.evaluate)
        return (*own, self.measure) if self.measured else own


class Impossible(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate that a profile cannot have."""

    candidate: str
    profile: str
    reason: str


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate that is only tried when another misses a gate of quality."""

    of: str
    candidate: Candidate
    steps: tuple[Step, ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The steps in an order in which they can run, and what they may give."""

    steps: tuple[Step, ...]
    candidates: tuple[Candidate, ...]
    repairs: tuple[Repair, ...] = ()
    impossible: tuple[Impossible, ...]
    references: frozenset[str] = frozenset()
    """Candidates that a device falls back to: kept wherever they fit."""

    here: frozenset[str] = frozenset()
    """Profiles of such devices as the building machine is one: its latencies are theirs."""

    interface: tuple[str, ...] = ()
    """What applications send or get in another form than the user's model has it."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """What the building machine has."""

    architecture: str
    tools: dict[str, str]
    """Versions by name."""

    native: frozenset[str] = frozenset()
    """Targets whose code runs here."""

    target: str = ""
    """The most demanding of all targets whose code runs here."""

    board: str = ""
    """Name of the board or the processor."""

    lacking: dict[str, dict[str, str]] = {}
    """What is missing here to build and check, by runtime and target."""


class PlanSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for, as far as a plan depends on it."""

    metric: str = "auto"
    own_metric: bool = False
    """Whether the metric is a function of the user's."""

    matched: bool = False
    """Whether it matches boxes that the model itself has suppressed."""

    further: tuple[FurtherMetric, ...] = ()
    boxes: dict[str, Postprocessing] = {}
    """The declared postprocessing by output, where the metric may compare the boxes that it gives;
    else nothing."""

    sets: tuple[str, ...] = ("calibration", "evaluation")
    """Which sets of samples were given: of `calibration`, `tuning` and `evaluation`."""

    callables: dict[str, str] = {}
    """Set to the function that yields it, where it is no file."""

    preprocessing: bool = False
    states: dict[str, str] = {}
    """Input to the output that is fed back as that input; empty for a model without state."""

    integers: bool = True
    """Whether integer variants are to be made."""

    keep: frozenset[str] = frozenset()
    min_retention: float = 0.99
    repair_trials: int = 24
    repair_s: float = 600.0
    tuning_trials: int = 0
    """Per task, for the runtime that can be tuned."""

    tuned: bool = False
    """Whether there is a tuning database."""

    min_runs: int = 200
    min_duration_s: float = 0.3
    emulation_s: float = 60.0
    """How long an emulated variant may answer evaluation samples."""


class PlanInputs(msgspec.Struct, frozen=True, kw_only=True):
    """All that a plan depends on beside the profiles."""

    facts: ModelFacts
    """What is known of the model."""

    host: Host
    settings: PlanSettings
    runtimes: Runtimes
