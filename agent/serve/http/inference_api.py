"""The paths of the Open Inference Protocol, without HTTP: a request in, an answer out.

The module reads how urgent a request is and how long it may take, but not its tensors. Clients set
this as for Triton, with the parameters `priority` and `timeout` (microseconds, 0 for none) of the
request, or with the header `Inference-Timeout-Ms`. If a client sets both times, the shorter counts.
The parameters `deferrable` and `durable` are our own: the request may wait, and must survive a
restart meanwhile.

Rules:
- This module refuses every request that it can refuse without a worker.
- It reads the JSON only if one of the four names occurs in it, and only these values.
- It does not find a name that is written with escapes; no client does that.
- The worker refuses what is not JSON.
- Nothing here uses a socket; nothing imports NumPy or a runtime.

Source:
    Open Inference Protocol (KServe v2), REST; `agent.serve.http.extensions` for what Triton adds,
    except for its schedule policy, which is here.
"""

from __future__ import annotations

import hmac
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec

from agent.serve.advice import HEADER, Advice
from agent.serve.errors import RegionError, UnknownModelError
from agent.serve.frames import RETRY_AFTER, Reply
from agent.serve.http import extensions
from agent.serve.http.deferred_api import PREFIX, DeferredApi
from agent.serve.http.repository_api import RepositoryApi
from agent.serve.http.request import RefusedRequestError
from agent.serve.routes import InferenceCall
from agent.serve.served import NOT_READY, ModelsPort, Served, answer, why_not_ready
from wire.codec import to_builtins, to_json
from wire.errors import WireFormatError

SERVER_NAME: Final = "edgefleet"
HEADER_LENGTH: Final = "inference-header-content-length"
READING: Final = ("GET", "HEAD")
LIVE: Final = "/v2/health/live"
READY: Final = "/v2/health/ready"
ADVICE: Final = "/v2/health/advice"
_MODEL: Final = re.compile(
    r"/v2/models/([^/]{1,200})(?:/versions/([^/]{1,200}))?(/ready|/infer|/config|/stats)?"
)
_ALL_STATISTICS: Final = "/v2/models/stats"
TIMEOUT_HEADER: Final = "inference-timeout-ms"
MAX_JSON_BYTES: Final = 16 * 1024 * 1024
"""The worker refuses JSON that is longer than this."""

_NAMED: Final = re.compile(rb'"(?:priority|timeout|deferrable|durable)"')
_MS: Final = re.compile(r"[1-9][0-9]{0,8}")
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_DIGITS: Final = re.compile(r"[0-9]{1,12}")

LOADING: Final = ("model_repository",)
"""Named among the extensions where clients may load models."""

Model: TypeAlias = tuple[str, str | None]
"""Name and version that the client asks for; None for the version that serves."""


class _Parameters(msgspec.Struct, frozen=True):
    priority: _Count = 0
    timeout: _Count = 0
    deferrable: bool = False
    durable: bool = False


class _Head(msgspec.Struct, frozen=True):
    parameters: _Parameters = _Parameters()


_DECODER: Final = msgspec.json.Decoder(_Head)
_NONE: Final = _Parameters()


class Options(NamedTuple):
    """What a client asks of a request beside its tensors."""

    priority: int = 0
    """0 is the default."""

    timeout_s: float | None = None
    """How long the request may take; None for no limit."""

    deferrable: bool = False
    """Whether it may wait until the device has nothing else to do."""

    durable: bool = False
    """Whether it must survive a restart while it waits."""


class InferenceApi:
    """Answers by path.

    Args:
        models: Answer requests for inference.
        token: Secret that clients show as a bearer token; None if clients need none.
        version: Of this software.
        deferred: Answers the paths of deferrable requests; None if this endpoint defers none.
        advice: Returns what applications should do now.
        allow_load: Whether clients may load and unload models.
        shared_memory: Knows the shared memory of clients; None if they may use none.
    """

    def __init__(
        self,
        models: ModelsPort,
        *,
        token: str | None = None,
        version: str = "",
        deferred: DeferredApi | None = None,
        advice: Callable[[], Advice] = Advice,
        allow_load: bool = False,
        shared_memory: extensions.SharedMemoryPort | None = None,
    ) -> None:
        self._models = models
        self._repository = RepositoryApi(models, allow_load=allow_load)
        self._shared_memory = shared_memory or extensions.NoSharedMemory()
        self._deferred = deferred or DeferredApi(None)
        self._advice = advice
        self._token = token
        self._about = {
            "name": SERVER_NAME,
            "version": version,
            "extensions": [
                *extensions.NAMES,
                *self._shared_memory.extensions,
                *(LOADING if allow_load else ()),
            ],
        }

    def refusal(self, target: str, headers: Mapping[str, str]) -> RefusedRequestError | None:
        """Refuse a client that does not show the token; everybody may ask for the health.

        Args:
            target: Path and query.
            headers: Those of the request, names in lower case.

        Returns:
            The refusal; None if the client may ask.
        """
        if self._token is None or target.partition("?")[0] in (LIVE, READY):
            return None
        shown = headers.get("authorization", "")
        if hmac.compare_digest(shown.encode(), f"Bearer {self._token}".encode()):
            return None
        return RefusedRequestError(401, "a bearer token is needed", {"WWW-Authenticate": "Bearer"})

    def answer(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: memoryview,
        connection: socket.socket | None = None,
    ) -> Reply:
        """Answer a request that `refusal` has not refused.

        Args:
            method: HTTP method.
            target: Path and query.
            headers: Those of the request, names in lower case.
            body: As received.
            connection: Where it comes from; only passed on.

        Returns:
            The answer.
        """
        path = target.partition("?")[0]
        if "origin" in headers:  # a page must not reach memory as the user of its browser
            connection = None
        if path == LIVE:
            return _reading(method, {"live": True})
        if path == READY:
            why = why_not_ready(self._models)
            return _not_ready(why) if why else _reading(method, {"ready": True})
        if path == ADVICE:
            return _reading(method, self._advice().document())
        if path.startswith(PREFIX):
            return self._deferred.answer(method, path)
        if path.startswith(extensions.SHARED_MEMORY):
            return self._shared_memory.answer(method, path, body, connection)
        return self._model(method, path, headers, body, connection)

    def _model(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: memoryview,
        connection: socket.socket | None,
    ) -> Reply:
        if path == "/v2":
            return _reading(method, self._about)
        reply = self._repository.answer(method, path, body, is_page="origin" in headers)
        if reply is not None:
            return reply
        if path == _ALL_STATISTICS:
            return self._all_statistics(method)
        match = _MODEL.fullmatch(path)
        if match is None:
            return extensions.not_offered(path) or Reply.refusal(404, f"there is no {path[:200]}")
        name, version, action = match.groups()
        if action == "/infer":
            return self._infer(method, (name, version), headers, body, connection)
        return self._describe(method, (name, version), action)

    def _infer(
        self,
        method: str,
        model: Model,
        headers: Mapping[str, str],
        body: memoryview,
        connection: socket.socket | None,
    ) -> Reply:
        if method != "POST":
            return Reply.refusal(405, "inference requires POST", {"Allow": "POST"})
        text = headers.get(HEADER_LENGTH)
        if text is not None and (_DIGITS.fullmatch(text) is None or int(text) > len(body)):
            return Reply.refusal(
                400, f"{HEADER_LENGTH} is not a number, or is longer than the body"
            )
        header_length = None if text is None else int(text)
        try:
            options = request_options(headers, body[:header_length])
            regions = self._shared_memory.of_request(
                body[:header_length], connection, deferrable=options.deferrable
            )
        except WireFormatError as exc:
            return Reply.refusal(400, exc.message)
        except RegionError as exc:
            return Reply.refusal(exc.status, str(exc))
        call = InferenceCall(
            model=model[0],
            version=model[1],
            header_length=header_length,
            body=body,
            priority=options.priority,
            timeout_s=options.timeout_s,
            regions=regions,
        )
        if options.deferrable:
            return self._unknown(model) or self._deferred.accept(call, durable=options.durable)
        return self._advised(answer(self._models, call))

    def _unknown(self, asked: Model) -> Reply | None:
        """Refuse a request for a model that does not serve; None if it may be asked."""
        served = self._models.find(asked[0])
        active = served.router.active if served is not None else None
        if served is None and self._models.all():
            return Reply.refusal(404, str(UnknownModelError(*asked)))
        found = served.version(asked[1]) if served is not None else None
        if active is None or (found is not None and asked[0] == found.model.name):
            return None
        return Reply.refusal(404, str(UnknownModelError(*asked)))

    def _advised(self, reply: Reply) -> Reply:
        """Add advice to an answer, if there is some."""
        header = self._advice().header
        if not header:
            return reply
        return msgspec.structs.replace(reply, headers=reply.headers | {HEADER: header})

    def _all_statistics(self, method: str) -> Reply:
        return _reading(method, _statistics(self._models.all()))

    def _describe(self, method: str, asked: Model, action: str | None) -> Reply:
        if (unknown := self._unknown(asked)) is not None:
            return unknown
        served = self._models.find(asked[0])
        found = served.version(asked[1]) if served is not None else None
        if served is None or found is None:
            return _not_ready(served.why_not_ready if served is not None else NOT_READY)
        model = found.model
        if action == "/ready":
            is_up = served.is_ready(found)
            ready = {"name": model.name, "ready": True}
            return _reading(method, ready) if is_up else _not_ready(served.why_not_ready)
        if action == "/config":
            return _reading(method, extensions.config_document(found))
        if action == "/stats":
            figures = served.statistics.document(model)
            return _reading(method, {"model_stats": [figures]})
        info = found.variant.info
        return _reading(
            method,
            {
                "name": model.name,
                "versions": [each.model.version for each in served.versions],
                "platform": info.runtime,
                "inputs": to_builtins(info.inputs),
                "outputs": to_builtins(info.outputs),
                "parameters": dict(model.parameters),
            },
        )


def _statistics(models: Iterable[Served]) -> dict[str, Any]:
    return {
        "model_stats": [
            served.statistics.document(each.model) for served in models for each in served.versions
        ]
    }


def _reading(method: str, document: object) -> Reply:
    if method not in READING:
        return Reply.refusal(405, "this path requires GET", {"Allow": ", ".join(READING)})
    return _document(document)


def _document(document: object) -> Reply:
    headers = {"Content-Type": "application/json"}
    return Reply(status=200, headers=headers, body=memoryview(to_json(document)))


def _not_ready(why: str) -> Reply:
    return Reply.refusal(503, why, RETRY_AFTER)


def request_options(headers: Mapping[str, str], head: memoryview) -> Options:
    """Read how urgent a request is, how long it may take, and whether it may wait.

    Args:
        headers: Those of the request, names in lower case.
        head: The JSON part of the body.

    Returns:
        The options.

    Raises:
        WireFormatError: An option is not of its type or range, or makes no sense without another.
    """
    parameters = _parameters(head)
    times_s = [parameters.timeout / 1e6] if parameters.timeout else []
    text = headers.get(TIMEOUT_HEADER)
    if text is not None:
        if _MS.fullmatch(text) is None:
            raise WireFormatError(f"{TIMEOUT_HEADER} is not a whole number of milliseconds")
        times_s.append(int(text) / 1000)
    if parameters.durable and not parameters.deferrable:
        raise WireFormatError("durable is for requests that are deferrable: set that too")
    return Options(
        priority=parameters.priority,
        timeout_s=min(times_s, default=None),
        deferrable=parameters.deferrable,
        durable=parameters.durable,
    )


def _parameters(head: memoryview) -> _Parameters:
    if len(head) > MAX_JSON_BYTES or _NAMED.search(head) is None:
        return _NONE
    try:
        return _DECODER.decode(head).parameters
    except msgspec.ValidationError as exc:
        raise WireFormatError(f"the JSON is not an inference request: {exc}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _NONE
