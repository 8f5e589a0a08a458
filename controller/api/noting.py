"""Writes into the audit log what came of a request that changes something.

Rules:
- The row is there before the answer goes out. If it cannot be written, the answer says so.
- A request whose change was committed with its row gets another one only if it failed after that.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from http import HTTPStatus
from typing import Any

from fastapi.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from controller.api import faults as api_faults
from controller.services.audit_log import AuditLog
from controller.store.acting import Act, acting
from wire.errors import FleetError

_log = logging.getLogger(__name__)


class Noting:
    """Answers one request, and notes it.

    Args:
        app: What answers.
        act: The request.
        audit: The log.
    """

    def __init__(self, app: ASGIApp, act: Act, audit: AuditLog) -> None:
        self._app = app
        self._act = act
        self._audit = audit
        self._is_replaced = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request.

        Raises:
            Exception: What the application raises, once it is noted.
        """

        async def noted(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                fault = await self._note(message["status"])
                if fault is not None:
                    self._is_replaced = True
                    await api_faults.answer(fault)(scope, receive, send)
            if not self._is_replaced:
                await send(message)

        try:
            with acting(self._act):
                await self._app(scope, receive, noted)
        except Exception:
            await self._note(HTTPStatus.INTERNAL_SERVER_ERROR)
            raise

    async def _note(self, status: int) -> FleetError | None:
        """Write a row if there is need; return why it could not be done to an accepted request."""
        is_accepted = status < HTTPStatus.BAD_REQUEST
        if is_accepted and self._act.is_noted:
            return None
        try:
            await run_in_threadpool(self._audit.write, self._act, status)
        except FleetError as exc:
            _log.error("%s is not in the audit log: %s", self._act.action, exc)
            return exc if is_accepted else None
        return None
