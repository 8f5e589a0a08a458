"""What can go wrong in the controller.

Rules:
- The HTTP API gives each family one status; see `controller.api.faults`.
"""

from __future__ import annotations

from wire.console.place import place_lines
from wire.errors import FleetError


class ControllerError(FleetError):
    """The controller cannot do what was asked."""

    code = "controller"


class SettingsError(ControllerError):
    """A setting, a key file or a directory of the controller is unusable."""

    code = "controller.settings"


class DatabaseError(ControllerError):
    """The database does not answer or refused a statement."""

    code = "controller.database"
    retryable = True


class StorageError(ControllerError):
    """The disk cannot write or read a blob."""

    code = "controller.storage"
    retryable = True


class ListenError(ControllerError):
    """An HTTP server of the controller cannot listen where it was told to."""

    code = "controller.listen"


class BusyError(ControllerError):
    """An HTTP server of the controller has no free connection for this client."""

    code = "controller.busy"
    retryable = True


class CollectorError(ControllerError):
    """A collector of telemetry does not take what it is sent.

    Args:
        message: What happened.
        remedy: What the reader can do about it.
        retry_after_s: For how long the collector asks to be left alone.
        is_too_long: Whether it takes no request as long as this one.
    """

    code = "controller.collector"
    retryable = True

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        retry_after_s: float = 0.0,
        is_too_long: bool = False,
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after_s = retry_after_s
        self.is_too_long = is_too_long


class TelemetryLogError(ControllerError):
    """The log of telemetry cannot be used now."""

    code = "controller.telemetry_log"
    retryable = True


class UnauthorizedError(ControllerError):
    """The caller did not show the API token."""

    code = "controller.unauthorized"


class EndedTokenError(UnauthorizedError):
    """The caller showed an API token that has expired or was revoked."""

    code = "controller.unauthorized.ended"


class ForbiddenError(ControllerError):
    """The role of the caller's API token does not allow the request."""

    code = "controller.forbidden"


class OwnRolloutError(ForbiddenError):
    """Who made a rollout may not approve its stages."""

    code = "controller.forbidden.own_rollout"


class RateLimitedError(ControllerError):
    """A caller asks too often.

    Args:
        message: What happened.
        remedy: What the reader can do about it.
        retry_after_s: When it may ask again.
    """

    code = "controller.rate_limited"
    retryable = True

    def __init__(self, message: str, *, remedy: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after_s = retry_after_s


class WrongTokensError(RateLimitedError):
    """There were too many wrong API tokens from one address."""

    code = "controller.rate_limited.wrong_tokens"


class LinkError(ControllerError):
    """A link to a blob is not valid, or no longer."""

    code = "controller.link"


class UnknownError(ControllerError):
    """There is nothing with this name."""

    code = "controller.unknown"


class UnknownDeviceError(UnknownError):
    """No device of that name is enrolled."""

    code = "controller.unknown.device"


class UnknownReleaseError(UnknownError):
    """No release of that name has been published."""

    code = "controller.unknown.release"


class UnknownRolloutError(UnknownError):
    """There is no rollout of that name."""

    code = "controller.unknown.rollout"


class UnknownPolicyError(UnknownError):
    """There is no policy of that name."""

    code = "controller.unknown.policy"


class UnknownAlertError(UnknownError):
    """There is no rule of alerts of that name."""

    code = "controller.unknown.alert"


class UnknownGroupError(UnknownError):
    """There is no group of that name."""

    code = "controller.unknown.group"


class UnknownModelError(UnknownError):
    """There is no release of a model of that name."""

    code = "controller.unknown.model"


class UnknownMeasurementError(UnknownError):
    """There is no measurement of that name."""

    code = "controller.unknown.measurement"


class UnknownSavedQueryError(UnknownError):
    """There is no saved query of that name."""

    code = "controller.unknown.saved_query"


class UnknownCaptureError(UnknownError):
    """Nothing is captured of that model, or there is no such sample."""

    code = "controller.unknown.capture"


class UnknownShadowError(UnknownError):
    """No release runs as the shadow of that model."""

    code = "controller.unknown.shadow"


class UnknownTokenError(UnknownError):
    """There is no enrolment token of that name."""

    code = "controller.unknown.token"


class UnknownApiTokenError(UnknownError):
    """There is no API token of that name."""

    code = "controller.unknown.api_token"


class UnknownBlobError(UnknownError):
    """No blob of that digest has been uploaded."""

    code = "controller.unknown.blob"


class NoMetadataError(UnknownError):
    """This fleet has no trusted metadata."""

    code = "controller.unknown.metadata"


class ConflictError(ControllerError):
    """The request contradicts the present state."""

    code = "controller.conflict"


class IllegalTransitionError(ConflictError):
    """An object is in a state that does not allow the event."""

    code = "controller.transition"


class UnfitError(ConflictError):
    """Devices of a new rollout cannot take its release."""

    code = "controller.unfit"


class InvalidRequestError(ControllerError):
    """A request is well formed but makes no sense."""

    code = "controller.invalid"


class SelectorError(InvalidRequestError):
    """A selector cannot be understood.

    Args:
        message: What is wrong, in one line.
        remedy: What may be written.
        expression: The selector; empty where no place in it is wrong.
        character: Which character of it is wrong, from 1; 0 where none is.
    """

    code = "controller.selector"

    def __init__(
        self, message: str, *, remedy: str = "", expression: str = "", character: int = 0
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.expression = expression
        self.character = character
        self.shown = place_lines(expression, character)


class TooLargeError(ControllerError):
    """There are more bytes than the controller accepts."""

    code = "controller.too_large"


class EnrolmentError(ControllerError):
    """A device may not join the fleet; the error's text contains no secret."""

    code = "controller.enrolment"


class DeltaMakingError(ControllerError):
    """A delta could not be made."""

    code = "controller.delta"
