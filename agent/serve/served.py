"""The models that the endpoint serves, each with its router and its statistics.

Rules:
- A request is for one model, and its router alone decides about it: what happens to one model does
  not touch the requests for another.
- The device is ready when it serves a model, and each model that has been put into service answers.
"""

from __future__ import annotations

import threading
from typing import Final, NamedTuple, Protocol

from agent.serve.answered import Listener
from agent.serve.errors import UnknownModelError
from agent.serve.frames import RETRY_AFTER, Reply
from agent.serve.pool import Prepared
from agent.serve.routes import InferenceCall
from agent.serve.routing import NOT_LOADED
from agent.serve.statistics import Statistics
from wire.clock import Clock, SystemClock

NONE_HERE: Final = Reply.refusal(503, NOT_LOADED, RETRY_AFTER)
NOT_READY: Final = "no model is ready"


class InferencePort(Protocol):
    """Answers requests for one model: its router, or an echo in tests."""

    @property
    def active(self) -> Prepared | None:
        """The variant that serves now."""
        ...

    @property
    def kept(self) -> Prepared | None:
        """The version before, if it answers requests that name it."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether a request would be answered now."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether a variant serves and has no request."""
        ...

    def listen(self, listener: Listener) -> None:
        """Call a listener for each request from now on."""
        ...

    def handle(self, call: InferenceCall) -> Reply:
        """Answer a request."""
        ...


class LoadingPort(Protocol):
    """Puts a model into memory, and takes it out."""

    @property
    def is_loaded(self) -> bool:
        """Whether a package of it has been put into service."""
        ...

    @property
    def rests(self) -> str:
        """Why it does not answer and need not, such as that a client unloaded it; else empty."""
        ...

    @property
    def version(self) -> str:
        """The version that is in service; empty if there is none."""
        ...

    def load(self) -> None:
        """Let it serve again; raises a FleetError if it cannot."""
        ...

    def unload(self) -> None:
        """End its workers; what is on the device stays."""
        ...


class Served(NamedTuple):
    """One model at the endpoint."""

    name: str
    router: InferencePort
    statistics: Statistics
    loading: LoadingPort | None
    """None if it is always loaded, as in tests."""

    @property
    def versions(self) -> tuple[Prepared, ...]:
        """What answers requests: the version that serves first, then the one before if it does."""
        found = (self.router.active, self.router.kept)
        return tuple(each for each in found if each is not None)

    def is_ready(self, version: Prepared) -> bool:
        """Tell whether a version that serves would answer now."""
        is_active = version is self.router.active
        return self.router.is_ready if is_active else version.worker.is_alive

    def version(self, asked: str | None) -> Prepared | None:
        """Return a version that answers requests; None for the one that serves."""
        active = self.router.active
        if asked is None or (active is not None and active.model.version == asked):
            return active
        return next((each for each in self.versions if each.model.version == asked), None)

    @property
    def is_expected(self) -> bool:
        """Whether it has been put into service and does not rest, so that it should answer."""
        return self.loading is None or (self.loading.is_loaded and not self.loading.rests)

    @property
    def why_not_ready(self) -> str:
        """Why it does not answer now, for clients."""
        return (self.loading.rests if self.loading is not None else "") or NOT_READY


class ModelsPort(Protocol):
    """The models of an endpoint."""

    def find(self, name: str) -> Served | None:
        """Return a model; None if the device has none of that name."""
        ...

    def all(self) -> tuple[Served, ...]:
        """Return all models, sorted by name."""
        ...


class ServedModels:
    """The models of this device. For any thread.

    Args:
        clock: For statistics.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._models: dict[str, Served] = {}
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Call a listener for each request for any model from now on, later ones too."""
        with self._lock:
            self._listeners.append(listener)
            for served in self._models.values():
                served.router.listen(listener)

    def add(self, name: str, router: InferencePort, loading: LoadingPort | None = None) -> None:
        """Serve a model from now on.

        Args:
            name: Its name.
            router: Answers its requests.
            loading: Puts it into memory and takes it out; None if it is always loaded.
        """
        served = _served(name, router, self._clock, loading)
        with self._lock:
            for listener in self._listeners:
                router.listen(listener)
            self._models = dict(sorted({**self._models, name: served}.items()))

    def remove(self, name: str) -> None:
        """Serve a model no more."""
        with self._lock:
            self._models = {key: model for key, model in self._models.items() if key != name}

    def find(self, name: str) -> Served | None:
        """Return a model; None if the device has none of that name."""
        return self._models.get(name)

    def all(self) -> tuple[Served, ...]:
        """Return all models, sorted by name."""
        return tuple(self._models.values())

    @property
    def is_idle(self) -> bool:
        """Whether a model serves, and none has a request."""
        serving = [model.router for model in self.all() if model.router.active is not None]
        return bool(serving) and all(router.is_idle for router in serving)

    def handle(self, call: InferenceCall) -> Reply:
        """Answer a request for any model."""
        return answer(self, call)


def answer(models: ModelsPort, call: InferenceCall) -> Reply:
    """Answer a request for any model.

    Args:
        models: The models of the device.
        call: The request.

    Returns:
        The answer of its router; 404 if there is no such model, 503 if there is none at all.
    """
    model = models.find(call.model)
    if model is not None:
        return model.router.handle(call)
    if not models.all():
        return NONE_HERE
    return Reply.refusal(404, str(UnknownModelError(call.model, call.version)))


def is_ready(models: ModelsPort) -> bool:
    """Tell whether every model that has been put into service would answer now, and one at least.

    Args:
        models: The models of the device.
    """
    expected = [model for model in models.all() if model.is_expected]
    return bool(expected) and all(model.router.is_ready for model in expected)


def why_not_ready(models: ModelsPort) -> str:
    """Return why the device is not ready, for clients; empty if it is.

    Args:
        models: The models of the device.
    """
    if is_ready(models):
        return ""
    found = models.all()
    if any(model.is_expected for model in found):
        return NOT_READY
    resting = [model.why_not_ready for model in found]
    return "; ".join(why for why in resting if why != NOT_READY) or NOT_READY


class Alone:
    """One router as all models of an endpoint, whatever name a client asks for.

    Args:
        router: Answers requests, and refuses those for other models.
        clock: For statistics.
    """

    def __init__(self, router: InferencePort, clock: Clock | None = None) -> None:
        self._served = _served("", router, clock or SystemClock(), None)

    def find(self, _name: str) -> Served | None:
        """Return the model."""
        return self._served

    def all(self) -> tuple[Served, ...]:
        """Return the model."""
        return (self._served,)


def _served(name: str, router: InferencePort, clock: Clock, loading: LoadingPort | None) -> Served:
    statistics = Statistics(clock)
    router.listen(statistics.count)
    return Served(name, router, statistics, loading)
