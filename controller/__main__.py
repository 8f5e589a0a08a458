"""The command `fleet`: one clear line where this environment is that of a device."""

from __future__ import annotations

import sys

from wire.console.loading import silent_interrupts
from wire.console.program import fault


def main() -> int:
    """Run `fleet`.

    Returns:
        The exit status.

    Raises:
        ModuleNotFoundError: A module of our own is missing.
    """
    try:
        with silent_interrupts():
            from controller.cli import main as command
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.split(".")[0] in {"controller", "wire"}:
            raise
        return fault(
            "fleet",
            f"{exc.name} is not installed: this environment is that of a device; "
            "install 'edgefleet[controller]', and 'edgefleet[packager]' to build packages; a "
            "device itself needs only `fleet-agent`, also for `fleet-agent profile detect`",
        )
    return command()


if __name__ == "__main__":
    sys.exit(main())
