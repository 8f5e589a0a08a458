"""Several models at one endpoint: each answers for itself, and readiness needs all of them."""

from __future__ import annotations

import json

import msgspec
import pytest

from agent.serve.answered import Listener
from agent.serve.frames import ModelIdentity, Reply
from agent.serve.http.inference_api import InferenceApi
from agent.serve.http.repository_api import INDEX
from agent.serve.pool import Prepared
from agent.serve.routes import InferenceCall
from agent.serve.served import (
    NOT_READY,
    Alone,
    ServedModels,
    answer,
    is_ready,
    why_not_ready,
)
from tests.simulators.answers import answered
from tests.simulators.clock import FakeClock


class Named:
    """Answers with its own name, and counts its requests."""

    active: Prepared | None = None
    kept: Prepared | None = None
    is_idle = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_ready = True
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def handle(self, call: InferenceCall) -> Reply:
        identity = ModelIdentity(name=self.name, version="1")
        for listener in self._listeners:
            listener(msgspec.structs.replace(answered(active=identity), asked_model=call.model))
        body = memoryview(f"{self.name}: {call.model}".encode())
        return Reply(status=200, headers={}, body=body)


def call(model: str, version: str | None = None) -> InferenceCall:
    return InferenceCall(model=model, version=version, header_length=None, body=memoryview(b""))


@pytest.fixture
def models() -> ServedModels:
    return ServedModels(FakeClock())


def put(models: ServedModels, *names: str) -> dict[str, Named]:
    routers = {name: Named(name) for name in names}
    for name, router in routers.items():
        models.add(name, router)
    return routers


def test_each_model_answers_its_own_requests(models: ServedModels) -> None:
    put(models, "speech", "digits")
    assert [served.name for served in models.all()] == ["digits", "speech"]
    for name in ("digits", "speech"):
        assert bytes(models.handle(call(name)).body) == f"{name}: {name}".encode()
        assert answer(models, call(name)).status == 200


@pytest.mark.parametrize("version", [None, "7"])
def test_an_unknown_name_is_told_and_disturbs_nobody(
    models: ServedModels, version: str | None
) -> None:
    put(models, "digits", "speech")
    reply = models.handle(call("faces", version))
    assert reply.status == 404
    error = json.loads(bytes(reply.body))["error"]
    assert error.startswith("Request for unknown model: 'faces'")
    assert ("version 7" in error) == (version is not None)
    assert bytes(models.handle(call("speech")).body) == b"speech: speech"


def test_without_any_model_a_client_comes_again_later(models: ServedModels) -> None:
    reply = models.handle(call("digits"))
    assert reply.status == 503
    assert "Retry-After" in reply.headers
    assert not is_ready(models)
    assert models.find("digits") is None
    assert models.all() == ()
    assert not models.is_idle


def test_a_model_that_was_removed_is_unknown_and_the_others_answer(models: ServedModels) -> None:
    put(models, "digits", "speech")
    models.remove("digits")
    models.remove("digits")
    assert models.handle(call("digits")).status == 404
    assert models.handle(call("speech")).status == 200
    models.remove("speech")
    assert models.handle(call("speech")).status == 503


def test_each_model_has_figures_of_its_own(models: ServedModels) -> None:
    put(models, "digits", "speech")
    for name in ("digits", "digits", "speech", "faces"):
        models.handle(call(name))
    counts = {
        served.name: served.statistics.document(ModelIdentity(name=served.name, version="1"))[
            "inference_stats"
        ]["success"]["count"]
        for served in models.all()
    }
    assert counts == {"digits": 2, "speech": 1}


def test_the_device_is_ready_when_every_model_in_service_is(models: ServedModels) -> None:
    routers = put(models, "digits", "speech")
    assert is_ready(models)
    routers["speech"].is_ready = False
    assert not is_ready(models)
    assert why_not_ready(models) == NOT_READY
    models.remove("speech")
    assert is_ready(models)


class Loading:
    """Says whether a model is in memory, as a test wants."""

    version = "1"

    def __init__(self) -> None:
        self.is_loaded = False
        self.rests = ""

    def load(self) -> None:
        self.is_loaded, self.rests = True, ""

    def unload(self) -> None:
        self.rests = "unloaded by a client"


def test_a_model_that_is_not_in_service_yet_holds_no_other_back(models: ServedModels) -> None:
    router, loading = Named("digits"), Loading()
    router.is_ready = False
    models.add("digits", router, loading)
    assert not is_ready(models), "nothing serves"
    put(models, "speech")
    assert is_ready(models), "the release of digits is still coming"
    loading.load()
    assert not is_ready(models), "digits has served, and does not answer"
    router.is_ready = True
    assert is_ready(models)


def test_a_model_that_a_client_has_unloaded_need_not_answer(models: ServedModels) -> None:
    router, loading = Named("digits"), Loading()
    models.add("digits", router, loading)
    put(models, "speech")
    loading.load()
    router.is_ready = False
    assert not is_ready(models)
    loading.unload()
    assert is_ready(models)
    assert why_not_ready(models) == ""
    models.remove("speech")
    assert not is_ready(models), "no model serves"
    assert why_not_ready(models) == "unloaded by a client"


def test_an_unloaded_model_says_so_wherever_a_client_asks_for_it(models: ServedModels) -> None:
    router, loading = Named("digits"), Loading()
    router.is_ready = False
    models.add("digits", router, loading)
    loading.load()
    loading.unload()
    api = InferenceApi(models)
    for path in ("/v2/models/digits", "/v2/models/digits/ready", "/v2/health/ready"):
        reply = api.answer("GET", path, {}, memoryview(b""))
        told = json.loads(bytes(reply.body))
        assert (reply.status, told) == (503, {"error": "unloaded by a client"}), path
    (row,) = json.loads(bytes(api.answer("POST", INDEX, {}, memoryview(b"")).body))
    assert (row["state"], row["reason"]) == ("UNAVAILABLE", "unloaded by a client")


def test_a_router_alone_is_asked_whatever_the_name() -> None:
    router = Named("digits")
    alone = Alone(router)
    for name in ("digits", "faces"):
        assert bytes(answer(alone, call(name)).body) == f"digits: {name}".encode()
    assert is_ready(alone)
    router.is_ready = False
    assert not is_ready(alone)
