"""What can go wrong on the command line; `controller.client.errors` has the rest."""

from __future__ import annotations

from wire.errors import FleetError


class CliError(FleetError):
    """A command cannot be done as it was given."""

    code = "cli"


class ArgumentError(CliError):
    """A value on the command line makes no sense."""

    code = "cli.argument"


class PackageFilesError(CliError):
    """A package directory does not match its signed index."""

    code = "cli.package"


class NotVerifiedError(CliError):
    """A package was checked, and it is not what was signed, or nobody vouches for it."""

    code = "cli.not_verified"
    answers_no = True
