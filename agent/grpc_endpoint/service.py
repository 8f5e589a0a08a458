"""What each call does: it becomes a request to the agent's own endpoint, which decides all.

Rules:
- Routing, deadlines, priorities and refusals are the endpoint's. Here calls are only translated.
- The gRPC deadline becomes the request's time; if the client sets `timeout`, too, the shorter
  one counts.
- A stream answers each request once, in order. A refused request does not end it.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from agent.grpc_endpoint import documents, translation
from agent.grpc_endpoint.backend import Backend, HttpReply
from agent.grpc_endpoint.messages import HEALTH, INFERENCE, Messages
from agent.grpc_endpoint.statuses import OK, RefusedCallError, check, trailing
from agent.grpc_endpoint.translation import InferAnswer, InferCall

SERVICE: Final = "inference.GRPCInferenceService"
MAX_TIMEOUT_MS: Final = 999_999_999
"""The greatest that the endpoint takes; a later deadline is none."""

WATCH_S: Final = 1.0
"""How often the health is looked at for who watches it."""

AUTHORIZATION: Final = "authorization"
_WANTS_FINAL: Final = "triton_enable_empty_final_response"


class Caller(NamedTuple):
    """Who calls, and how long the caller waits."""

    metadata: Mapping[str, str]
    left_s: float | None
    """None without a deadline."""


class Answer(NamedTuple):
    """An answer to a call."""

    content: bytes
    """The serialized message."""

    trailing: Mapping[str, str] = MappingProxyType({})
    """Metadata after it."""


class Service:
    """Answers calls.

    Args:
        backend: Asks the endpoint.
        messages: Reads and writes messages.
        token: What clients must show; None if they need none.
        limit_bytes: Longest request over HTTP.
    """

    def __init__(
        self, backend: Backend, messages: Messages, *, token: str | None, limit_bytes: int
    ) -> None:
        self._backend = backend
        self._messages = messages
        self._token = token
        self._limit_bytes = limit_bytes

    def may_call(self, method: str, metadata: Mapping[str, str]) -> bool:
        """Tell whether a client may make a call; asked before its message is read.

        Args:
            method: Such as `/inference.GRPCInferenceService/ModelInfer`.
            metadata: What the client sends with it.
        """
        service, _, call = method.strip("/").partition("/")
        is_open = (service, call) == (HEALTH + ".Health", "Check") or call in documents.OPEN
        if self._token is None or is_open:
            return True
        shown = metadata.get(AUTHORIZATION, "")
        return hmac.compare_digest(shown.encode(), f"Bearer {self._token}".encode())

    async def document(self, call: str, content: bytes, caller: Caller) -> Answer:
        """Answer a call that is about the server or about models.

        Args:
            call: One of `documents.CALLS`.
            content: Its message.
            caller: Who calls.

        Raises:
            RefusedCallError: The call is refused.
        """
        fields = self._messages.fields(f"{INFERENCE}.{call}Request", content)
        method, target, body = documents.asked(call, fields)
        reply = await self._backend.ask(method, target, self._headers(caller), [body])
        answer = documents.answer_of(call, *reply)
        return Answer(self._messages.message(f"{INFERENCE}.{call}Response", answer))

    async def infer(self, content: bytes, caller: Caller) -> Answer:
        """Answer a request for inference.

        Args:
            content: Its message.
            caller: Who calls.

        Raises:
            RefusedCallError: The request is refused.
        """
        answer, reply = await self._infer(self._messages.infer_call(content), caller)
        return Answer(self._messages.infer_answer(answer), trailing(reply.headers))

    async def infer_on_stream(self, content: bytes, caller: Caller) -> bytes:
        """Answer one request of a stream; a refusal is an answer too.

        Args:
            content: Its message.
            caller: Who calls.
        """
        call = None
        try:
            call = self._messages.infer_call(content)
            answer, _ = await self._infer(call, caller)
        except RefusedCallError as exc:
            return self._messages.stream_refusal(exc.message, call)
        says_final = call.parameters.get(_WANTS_FINAL) is True
        return self._messages.stream_answer(answer, says_final=says_final)

    async def health(self, content: bytes, caller: Caller) -> Answer:
        """Answer gRPC's own question for the health.

        Args:
            content: Its message.
            caller: Who calls.

        Raises:
            RefusedCallError: There is no such service.
        """
        status = await self._health(content, caller)
        if status == "SERVICE_UNKNOWN":
            raise RefusedCallError("NOT_FOUND", "there is no such service")
        return Answer(self._health_message(status))

    async def watch(self, content: bytes, caller: Caller) -> AsyncIterator[bytes]:
        """Tell the health now, and again whenever it has changed.

        Args:
            content: The message that names a service.
            caller: Who calls.

        Yields:
            A message for each change.
        """
        told = ""
        while True:
            status = await self._health(content, caller)
            if status != told:
                yield self._health_message(status)
                told = status
            await asyncio.sleep(WATCH_S)

    async def _infer(self, call: InferCall, caller: Caller) -> tuple[InferAnswer, HttpReply]:
        """Let the endpoint answer a request.

        Raises:
            RefusedCallError: It is refused.
        """
        header, raw = translation.request_parts(call, limit_bytes=self._limit_bytes)
        headers = self._headers(caller) | {translation.HEADER_LENGTH: str(len(header))}
        if caller.left_s is not None and caller.left_s * 1000 < MAX_TIMEOUT_MS:
            headers["inference-timeout-ms"] = str(max(int(caller.left_s * 1000), 1))
        path = f"{documents.model_path(call.model, call.version)}/infer"
        reply = await self._backend.ask("POST", path, headers, [header, *raw])
        check(*reply)
        return translation.answer_of(reply.headers, reply.body), reply

    async def _health(self, content: bytes, caller: Caller) -> str:
        fields = self._messages.fields(f"{HEALTH}.HealthCheckRequest", content)
        if fields.get("service", "") not in {"", SERVICE}:
            return "SERVICE_UNKNOWN"
        reply = await self._backend.ask("GET", documents.READY, self._headers(caller))
        return "SERVING" if reply.status == OK else "NOT_SERVING"

    def _health_message(self, status: str) -> bytes:
        return self._messages.message(f"{HEALTH}.HealthCheckResponse", {"status": status})

    def _headers(self, caller: Caller) -> dict[str, str]:
        """Return what the endpoint wants to know of the caller: it checks the token as well."""
        if self._token is None:
            return {}
        return {AUTHORIZATION: caller.metadata.get(AUTHORIZATION, "")}
