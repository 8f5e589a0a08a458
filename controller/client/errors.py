"""What can go wrong between a client and the controller.

Rules:
- A `FaultError` is what the controller answered: its kind follows from the status, its code,
  message and remedy are the controller's.
- `retryable` says whether the same request may succeed later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wire.errors import FleetError


class ClientError(FleetError):
    """A request to the controller has no answer, or was refused."""

    code = "client"


class ArgumentError(ClientError):
    """A value as a person writes it, on the command line, in a file or in a program, cannot be."""

    code = "client.argument"


class IdentifierError(ClientError):
    """A text cannot be the name of anything."""

    code = "client.identifier"


class NoControllerError(ClientError):
    """No setting says where the controller is, or the file that says it cannot be read."""

    code = "client.no_controller"


class UnreachableError(ClientError):
    """The controller does not answer."""

    code = "client.unreachable"
    retryable = True


class DroppedError(UnreachableError):
    """The connection ended before the answer was whole; the controller may have done it."""

    code = "client.unreachable.dropped"


class AnswerError(ClientError):
    """The server that answered does not speak this API."""

    code = "client.answer"


class FaultError(ClientError):
    """The controller refused; its own code, message and remedy are kept.

    Args:
        message: As the controller said.
        remedy: As the controller said.
        fault_code: The stable name of the fault.
        status: The HTTP status.
        retry_after_s: When the controller wants to be asked again; 0 if it does not say.
        shown: Lines to print below it.
    """

    code = "client.fault"

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        fault_code: str = "",
        status: int = 0,
        retry_after_s: float = 0.0,
        shown: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.fault_code = fault_code
        self.status = status
        self.retry_after_s = retry_after_s
        self.shown = shown


class TokenRefusedError(FaultError):
    """The API token is wrong, has expired or was revoked (401)."""

    code = "client.fault.token"


class RoleError(FaultError):
    """The role of the API token does not allow the request (403)."""

    code = "client.fault.role"


class NotThereError(FaultError):
    """There is nothing with this name (404)."""

    code = "client.fault.not_there"


class StateError(FaultError):
    """The request contradicts the present state (409)."""

    code = "client.fault.state"


class RateError(FaultError):
    """The API token is used too often (429); the controller has done nothing."""

    code = "client.fault.rate"
    retryable = True


class UnavailableError(FaultError):
    """The controller cannot answer now (503)."""

    code = "client.fault.unavailable"
    retryable = True


FAULTS: Final[Mapping[int, type[FaultError]]] = {
    401: TokenRefusedError,
    403: RoleError,
    404: NotThereError,
    409: StateError,
    429: RateError,
    503: UnavailableError,
}
"""The family of each status; any other is a `FaultError`, such as 422, a request that makes no
sense."""
