"""What can go wrong between the supervisor, its worker processes and their callers.

Rules:
- Code that raises a `WorkerError` has ended the worker before, unless the worker is only busy.
"""

from __future__ import annotations

from typing import Final

from agent.errors import AgentError


class WorkerError(AgentError):
    """A worker process failed, or the model that it runs failed."""

    code = "agent.worker"


class WorkerLoadError(WorkerError):
    """A worker could not load its variant."""

    code = "agent.worker.load"


class WorkerCrashedError(WorkerError):
    """A worker ended while it was needed."""

    code = "agent.worker.crashed"
    retryable = True


class WorkerGoneError(WorkerCrashedError):
    """The worker had already ended when it was asked, or before this request's turn came."""

    code = "agent.worker.gone"


class WorkerTimeoutError(WorkerError):
    """A worker did not answer in time."""

    code = "agent.worker.timeout"
    retryable = True


class TooManySamplesError(WorkerTimeoutError):
    """A worker did not answer in time, because one request has too many samples.

    Args:
        samples: How many it has.
        timeout_s: How long the worker had.
    """

    code = "agent.worker.samples"
    retryable = False

    def __init__(self, samples: int, timeout_s: float) -> None:
        super().__init__(
            f"{samples} samples took longer than {timeout_s:g} s: send fewer in a request"
        )


class WorkerBusyError(WorkerError):
    """A request cannot wait for a worker: too many requests wait, or its time is too short.

    Args:
        message: What happened.
        retry_after_s: In how many seconds the client may try again.
    """

    code = "agent.worker.busy"
    retryable = True

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class WorkerShedError(WorkerBusyError):
    """A request that waited gave its place to a more urgent one."""

    code = "agent.worker.shed"


class DeadlineError(AgentError):
    """The deadline that the client set passed before the worker began the request."""

    code = "agent.serving.deadline"


class NotServingError(AgentError):
    """No variant serves now.

    Args:
        message: What happened.
        retry_after_s: In how many seconds the client may try again.
    """

    code = "agent.serving"
    retryable = True

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeferralError(AgentError):
    """A deferrable request cannot be kept, or what was kept of it is lost.

    Args:
        message: What happened.
        status: The HTTP status that tells it.
        retry_after_s: In how many seconds the client may try again, if the status is `FULL`.
    """

    code = "agent.serving.deferral"
    retryable = True
    FULL: Final = 503

    def __init__(self, message: str, *, status: int = FULL, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class RegionError(AgentError):
    """Shared memory that a client names cannot be used.

    Args:
        message: What happened.
        remedy: What the client can do.
        status: The HTTP status that tells it.
    """

    code = "agent.serving.region"

    def __init__(self, message: str, *, remedy: str = "", status: int = 400) -> None:
        super().__init__(message, remedy=remedy)
        self.status = status


class FeedbackError(AgentError):
    """What an application says of an answer cannot be taken.

    Args:
        message: What happened.
        remedy: What the client can do.
        status: The HTTP status that tells it.
    """

    code = "agent.serving.feedback"

    def __init__(self, message: str, *, remedy: str = "", status: int = 400) -> None:
        super().__init__(message, remedy=remedy)
        self.status = status


class UnknownModelError(AgentError):
    """A client asks for another model, or another version, than the one that serves.

    The text begins as Triton's does, because clients look for these words.

    Args:
        model: The name that the client asks for.
        version: The version that it asks for; None for any.
    """

    code = "agent.serving.unknown"

    def __init__(self, model: str, version: str | None) -> None:
        asked = f"{model[:140]!r}" + (f" version {version[:40]}" if version else "")
        super().__init__(
            f"Request for unknown model: {asked} is not found",
            remedy="POST /v2/repository/index names what this device serves",
        )


class EndpointError(AgentError):
    """The inference endpoint cannot be opened."""

    code = "agent.endpoint"
