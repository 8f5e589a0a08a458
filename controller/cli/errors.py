"""What can go wrong on the command line; `controller.client.errors` has the rest."""

from __future__ import annotations

from controller.client.errors import ArgumentError
from wire.errors import FleetError

__all__ = ["ArgumentError", "CliError", "NotVerifiedError", "PackageFilesError"]


class CliError(FleetError):
    """A command cannot be done as it was given."""

    code = "cli"


class PackageFilesError(CliError):
    """A package directory does not match its signed index."""

    code = "cli.package"


class NotVerifiedError(CliError):
    """A package was checked, and it is not what was signed, or nobody vouches for it."""

    code = "cli.not_verified"
    answers_no = True
