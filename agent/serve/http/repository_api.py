"""The model repository of the Open Inference Protocol: what serves, and loading by clients.

Rules:
- A client may unload and load a model only where the operator allows it. What is on the device
  stays: an unloaded model frees its memory, and answers 503 until it is loaded again, until a
  release of it is installed, or until the agent starts again.
- A page in a browser may not: the browser sends its request from wherever the page is.
- Clients cannot bring other models or versions: a rollout does that.

Source:
    Triton Inference Server, protocol/extension_model_repository.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from agent.serve.errors import UnknownModelError
from agent.serve.frames import RETRY_AFTER, Reply
from agent.serve.served import ModelsPort, Served
from wire.codec import from_json, to_json
from wire.errors import FleetError, WireFormatError

INDEX: Final = "/v2/repository/index"
PREFIX: Final = "/v2/repository/"
MAX_BODY_BYTES: Final = 4096
NOT_ALLOWED: Final = (
    "clients may not load models here: a rollout changes them (`fleet rollout create`), and "
    "`allow_load = true` below [endpoint] in agent.toml lets clients load what is on the device"
)
ONLY_WHAT_IS_HERE: Final = (
    "a client loads what is on the device, as its policy runs it: a configuration or files with "
    "the request are not taken"
)
NOT_FOR_PAGES: Final = "a page in a browser may not load or unload models"
_LOADING: Final = re.compile(r"/v2/repository/models/([^/]{1,200})/(load|unload)")
_READY: Final = {"state": "READY", "reason": ""}


class IndexRequest(msgspec.Struct, frozen=True):
    """Which models the repository index should list."""

    ready: bool = False
    """Only models that are ready."""


class _LoadRequest(msgspec.Struct, frozen=True):
    parameters: dict[str, Any] = {}


class RepositoryApi:
    """Answers below `/v2/repository/`.

    Args:
        models: The models of the device.
        allow_load: Whether clients may load and unload them.
    """

    def __init__(self, models: ModelsPort, *, allow_load: bool) -> None:
        self._models = models
        self._allow_load = allow_load

    def answer(
        self, method: str, path: str, body: memoryview, *, is_page: bool = False
    ) -> Reply | None:
        """Answer a request.

        Args:
            method: HTTP method.
            path: Path of the request.
            body: As received.
            is_page: Whether a page in a browser asks.

        Returns:
            The answer; None if there is no such path.
        """
        loading = _LOADING.fullmatch(path)
        if path != INDEX and loading is None:
            return None
        if method != "POST":
            return Reply.refusal(405, "this path requires POST", {"Allow": "POST"})
        if len(body) > MAX_BODY_BYTES:
            return Reply.refusal(400, "the request is too long")
        try:
            if loading is None:
                return self._index(body)
            return self._load(loading[1], body, is_load=loading[2] == "load", is_page=is_page)
        except WireFormatError as exc:
            return Reply.refusal(400, exc.message)

    def _index(self, body: memoryview) -> Reply:
        """Return the index.

        Raises:
            WireFormatError: The body is no such request.
        """
        wanted = from_json(bytes(body), IndexRequest) if body else IndexRequest()
        rows = [row for model in self._models.all() for row in _rows(model)]
        shown = [row for row in rows if row["state"] == "READY" or not wanted.ready]
        return Reply(
            status=200,
            headers={"Content-Type": "application/json"},
            body=memoryview(to_json(shown)),
        )

    def _load(self, name: str, body: memoryview, *, is_load: bool, is_page: bool) -> Reply:
        """Load or unload a model.

        Raises:
            WireFormatError: The body is no such request.
        """
        if not self._allow_load:
            return Reply.refusal(501, NOT_ALLOWED)
        if is_page:
            return Reply.refusal(403, NOT_FOR_PAGES)
        asked = from_json(bytes(body), _LoadRequest) if body else _LoadRequest()
        if is_load and asked.parameters:
            return Reply.refusal(400, ONLY_WHAT_IS_HERE)
        found = self._models.find(name)
        if found is None or found.loading is None or not found.loading.is_loaded:
            return Reply.refusal(404, str(UnknownModelError(name, None)))
        if not is_load:
            found.loading.unload()
        else:
            try:
                found.loading.load()
            except FleetError as exc:
                return Reply.refusal(503, exc.message, RETRY_AFTER)
        return Reply(status=200, headers={}, body=memoryview(b""))


def _rows(model: Served) -> Iterator[dict[str, Any]]:
    active = model.router.active
    if active is not None:
        state = _READY if model.router.is_ready else _unavailable("its worker is being replaced")
        yield {"name": active.model.name, "version": active.model.version} | state
    elif model.loading is not None and model.loading.rests:
        state = _unavailable(model.loading.rests)
        yield {"name": model.name, "version": model.loading.version} | state
    kept = model.router.kept
    if kept is not None and kept.worker.is_alive:
        yield {"name": kept.model.name, "version": kept.model.version} | _READY


def _unavailable(reason: str) -> dict[str, str]:
    return {"state": "UNAVAILABLE", "reason": reason}
