"""What can go wrong between the command line and the controller."""

from __future__ import annotations

from wire.errors import FleetError


class CliError(FleetError):
    """A command cannot be done as it was given."""

    code = "cli"


class ArgumentError(CliError):
    """A value on the command line makes no sense."""

    code = "cli.argument"


class NoControllerError(CliError):
    """No setting says where the controller is, or the file that says it cannot be read."""

    code = "cli.no_controller"


class UnreachableError(CliError):
    """The controller does not answer."""

    code = "cli.unreachable"
    retryable = True


class AnswerError(CliError):
    """The server that answered does not speak this API."""

    code = "cli.answer"


class FaultError(CliError):
    """The controller refused; its own code, message and remedy are kept.

    Args:
        message: As the controller said.
        remedy: As the controller said.
        fault_code: The stable name of the fault.
        status: The HTTP status.
        shown: Lines to print below it.
    """

    code = "cli.fault"

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        fault_code: str = "",
        status: int = 0,
        shown: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.fault_code = fault_code
        self.status = status
        self.shown = shown


class PackageFilesError(CliError):
    """A package directory does not match its signed index."""

    code = "cli.package"


class NotVerifiedError(CliError):
    """A package was checked, and it is not what was signed, or nobody vouches for it."""

    code = "cli.not_verified"
    answers_no = True
