"""The answers of the HTTP API about models; `controller.schemas` has the others."""

from __future__ import annotations

from dataclasses import dataclass, field

from controller.domain.states import ReleaseState


@dataclass(kw_only=True)
class ModelRelease:
    """A release of a model, and how many devices have it."""

    release: str
    """`name:version`."""

    state: ReleaseState
    running: int
    """How many enrolled devices run it."""

    desired: int
    """How many should."""

    unloaded: int = 0
    """How many of those that run it let no variant of it serve: a client has unloaded the model, or
    it is parked."""


@dataclass(kw_only=True)
class Model:
    """A model: the releases of one name."""

    name: str
    """Empty for packages that are not ours, on devices that have one model."""

    running: int
    """How many enrolled devices run any package of it, also one that is not ours."""

    desired: int
    """How many should run a release of it."""

    unloaded: int = 0
    """How many of those that run a package of it let no variant serve."""

    releases: list[ModelRelease] = field(default_factory=list)
    """The newest first."""


@dataclass(kw_only=True)
class RemovedModel:
    """That a model was taken away from devices."""

    model: str
    devices: int
    """How many had it or were to have it."""

    kept: list[str] = field(default_factory=list)
    """Those that keep it until they get another one: their agents have one model and cannot remove
    it."""
