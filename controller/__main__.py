"""The command `fleet`: one clear line where this environment is that of a device."""

from __future__ import annotations

import signal
import sys

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C while modules are imported ends the program at once, without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> int:
    """Run `fleet`.

    Returns:
        The exit status.

    Raises:
        ModuleNotFoundError: A module of our own is missing.
    """
    try:
        from controller.cli import main as command
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.split(".")[0] in {"controller", "wire"}:
            raise
        sys.stderr.write(
            f"fleet: {exc.name} is not installed: this environment is that of a device; "
            "install 'edgefleet[controller]', and 'edgefleet[packager]' to build packages\n"
        )
        return 2
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return command()


if __name__ == "__main__":
    sys.exit(main())
