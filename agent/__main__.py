"""The command `fleet-agent`; `python -m agent` is the same."""

from __future__ import annotations

import signal
import sys

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C while modules are imported ends the program at once, without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> int:
    """Run `fleet-agent`.

    Returns:
        The exit status.
    """
    from agent.cli.main import main as command

    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return command()


if __name__ == "__main__":
    sys.exit(main())
