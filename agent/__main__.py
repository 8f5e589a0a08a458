"""The command `fleet-agent`; `python -m agent` is the same."""

from __future__ import annotations

import sys

from wire.console.loading import silent_interrupts


def main() -> int:
    """Run `fleet-agent`.

    Returns:
        The exit status.
    """
    with silent_interrupts():
        from agent.cli.main import main as command
    return command()


if __name__ == "__main__":
    sys.exit(main())
