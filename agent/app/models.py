"""The models of this device: makes the parts of each when it is wanted, and ends them with it.

Rules:
- A model exists from the moment at which a desired state names it, or at which something of it is
  found on the disk, until it has been removed from the disk.
- Each model has a thread for its installs. What happens in one touches no other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from agent.errors import ControlError
from agent.install.installer import Installer
from agent.install.states import State
from agent.install.store import ModelStore
from agent.install.thread import Installs
from agent.install.workflow import Machine
from agent.select.adaptation import Adaptation
from agent.serve.model_server import ModelServer
from agent.serve.router import Router
from wire.desired import ModelState
from wire.errors import FleetError
from wire.presence import ServedModel

if TYPE_CHECKING:
    from agent.install.hooks.effects import HookedEffects


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of one model."""

    name: str
    store: ModelStore
    model_server: ModelServer
    adaptation: Adaptation
    installer: Installer
    hooked: HookedEffects | None
    """None if nothing can hold its installs."""

    machine: Machine
    installs: Installs

    @property
    def served(self) -> ServedModel:
        """What the controller is told of it."""
        release, variant = self.adaptation.in_service()
        revision = self.store.state.revision
        return ServedModel(name=self.name, revision=revision, release=release, variant=variant)


class Pending(NamedTuple):
    """An install that is under way, or waits."""

    model: str
    revision: int
    digest: str | None
    """The package; None if nothing is ordered any more."""


class Models:
    """All models of this device. For any thread.

    Args:
        make: Makes the parts of a model; its installs do not run yet.
        forget: Undoes what `make` did outside of these parts.
    """

    def __init__(self, make: Callable[[str], Model], forget: Callable[[Model], None]) -> None:
        self._make = make
        self._forget = forget
        self._lock = threading.RLock()
        self._models: dict[str, Model] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._guarded: Callable[[Callable[[], None]], Callable[[], None]] | None = None

    def __iter__(self) -> Iterator[Model]:
        """Return the models, sorted by name."""
        return iter(tuple(self._models.values()))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all models, sorted."""
        return tuple(self._models)

    def get(self, name: str) -> Model | None:
        """Return a model; None if the device has none of that name."""
        return self._models.get(name)

    def router(self, name: str) -> Router | None:
        """Return what answers requests for a model; None if the device has none of that name."""
        found = self._models.get(name)
        return found.model_server.router if found is not None else None

    def named(self, name: object) -> Model:
        """Return the model that a person names, or the only one.

        Args:
            name: The name; None where none is given.

        Raises:
            ControlError: There is no such model, or a name is needed.
        """
        names = ", ".join(self._models) or "none"
        if name is None and len(self._models) == 1:
            return next(iter(self._models.values()))
        if name is None:
            raise ControlError(
                "this device has no model yet"
                if not self._models
                else f"this device has several models: {names}",
                remedy="name one of them with --model NAME"
                if self._models
                else "wait until a release has come",
            )
        found = self._models.get(name) if isinstance(name, str) else None
        if found is None:
            raise ControlError(
                f"there is no model {str(name)[:64]!r}", remedy=f"this device has: {names}"
            )
        return found

    def ensure(self, name: str) -> Model:
        """Return a model, and make it if it is new."""
        with self._lock:
            found = self._models.get(name)
            if found is None:
                found = self._make(name)
                self._models = dict(sorted({**self._models, name: found}.items()))
                self._run(found)
            return found

    def offer(self, desired: ModelState, *, has_sources: bool) -> None:
        """Pass on what is desired of a model.

        Args:
            desired: What to run.
            has_sources: Whether the controller has other sources than messages.
        """
        with self._lock:
            self.ensure(desired.name).installs.offer(desired, has_sources=has_sources)

    def remove(self, name: str) -> None:
        """Remove a model from the device as soon as its install has ended."""
        with self._lock:
            found = self._models.get(name)
            if found is not None:
                found.installs.offer_removal()

    def start(self, guarded: Callable[[Callable[[], None]], Callable[[], None]]) -> None:
        """Let the installs of all models run, those of later ones too.

        Args:
            guarded: Wraps what a thread runs.
        """
        with self._lock:
            self._guarded = guarded
            for model in self._models.values():
                self._run(model)

    @property
    def pending(self) -> tuple[Pending, ...]:
        """What is being installed, or waits to be."""
        return tuple(pending for model in self for pending in _pending(model))

    def stop(self) -> None:
        """Finish the requests that have begun and end all workers. Calling it twice is safe.

        All models end at once: one whose worker hangs must not take the time of the others.
        """
        ending = [
            threading.Thread(target=model.model_server.stop, name="stop", daemon=True)
            for model in self
        ]
        for thread in ending:
            thread.start()
        for thread in ending:
            thread.join()

    def join(self, timeout_s: float) -> None:
        """Wait for the ends of the installs, after the stop of the agent."""
        for thread in tuple(self._threads.values()):
            thread.join(timeout_s)

    def _run(self, model: Model) -> None:
        if self._guarded is None:
            return
        thread = threading.Thread(
            target=self._guarded(lambda: self._install(model)),
            name=f"install-{model.name}"[:15],
            daemon=True,
        )
        self._threads[model.name] = thread
        thread.start()

    def _install(self, model: Model) -> None:
        while model.installs.run():
            with self._lock:
                if model.installs.has_job:  # it is wanted again
                    continue
                self._models = {n: each for n, each in self._models.items() if n != model.name}
                self._threads.pop(model.name, None)
                self._forget(model)
                return


def _pending(model: Model) -> Iterator[Pending]:
    record, newer = model.store.state, model.installs.newer
    if record.state is not State.IDLE:
        target = record.target.digest if record.target else None
        yield Pending(model.name, record.revision, target)
    if newer is not None:
        yield Pending(model.name, newer.revision, newer.release.digest if newer.release else None)


def restore_fault(model: Model) -> FleetError | None:
    """Serve again what served a model before a restart.

    Args:
        model: The model.

    Returns:
        Why nothing of it can serve; None if it serves, or has nothing to serve.
    """
    try:
        model.installer.restore()
    except FleetError as exc:
        return exc
    return None
