"""The command `fleet`: one clear line where what a command needs is not installed."""

from __future__ import annotations

import sys
from typing import Final

from runtime_adapters.runtimes import BY_NAME
from wire.console.loading import silent_interrupts
from wire.console.program import fault

OURS: Final = frozenset(
    {"agent", "controller", "packager", "runtime_adapters", "telemetry", "wire"}
)
PACKAGER: Final = frozenset({"jinja2", "matplotlib", "nncf", "onnx", "onnx_ir", "onnxslim"})
"""Modules that the extra `packager` alone brings, beside the runtimes."""

COMMAND_LINE: Final = frozenset({"rich", "typer"})
"""Modules that every extra with a command brings, so that no such extra is there without them."""


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
        return command()
    except ModuleNotFoundError as exc:
        module = (exc.name or "").partition(".")[0]
        if not module or module in OURS:
            raise
        return fault("fleet", f"{module} is not installed here; {_remedy(module)}")


def _remedy(module: str) -> str:
    if module in COMMAND_LINE:
        return (
            "install 'edgefleet[controller]' to run and manage a fleet, or 'edgefleet[packager]' "
            "to build packages; a device needs only `fleet-agent`, also for "
            "`fleet-agent profile detect`"
        )
    extra = "packager" if module in PACKAGER or module in BY_NAME else "controller"
    return f"this command needs it: pip install 'edgefleet[{extra}]'"


if __name__ == "__main__":
    sys.exit(main())
