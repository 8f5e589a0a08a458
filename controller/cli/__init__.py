"""The command line `fleet`: parses, asks the controller, prints.

Rules:
- A fault is one line on standard error, `fleet: <what>; <remedy>`, and exit code 2; 0 is success;
  1 is "it ran, but the answer is no".
- `fleet --help` starts quickly: what is heavy is imported by the command that needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from controller.cli import (
    admin,
    builds,
    devices,
    packages,
    policies,
    releases,
    rollouts,
    telemetry,
)
from controller.cli.arguments import hoist_global_options
from controller.cli.client import ConnectionOptions
from controller.cli.output import remark
from wire.errors import FleetError

EXIT_FAULT = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
MAX_PATH = 200


def build_app() -> typer.Typer:
    """Return the application with all its commands."""
    app = typer.Typer(
        name="fleet",
        help="Build, sign, roll out and watch models on a fleet of devices.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_root)
    for module in (admin, builds, packages, devices, policies, releases, rollouts, telemetry):
        module.register(app)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: The command line; None means this process's.

    Returns:
        The exit code.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = typer.main.get_command(build_app())
    try:
        result = command.main(
            args=hoist_global_options(given) or ["--help"],
            prog_name="fleet",
            standalone_mode=False,
        )
        sys.stdout.flush()
    except FleetError as exc:
        return _fault(str(exc))
    except typer.TyperException as exc:
        return _usage_fault(exc)
    except (typer.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader has gone: `fleet device list | head`
        _drop_output()
        return EXIT_BROKEN_PIPE
    except OSError as exc:  # such as a full disk behind `>`, or a path that no system call takes
        _drop_output()
        reason = exc.strerror or str(exc)
        return _fault(f"{str(exc.filename)[:MAX_PATH]}: {reason}" if exc.filename else reason)
    return result if isinstance(result, int) else 0


def _root(
    context: typer.Context,
    home: Annotated[
        Path | None,
        typer.Option(help="Data directory of the controller (FLEET_HOME).", metavar="DIR"),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Address of the controller (FLEET_URL).", metavar="URL")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with its API token (or FLEET_TOKEN).", metavar="FILE"),
    ] = None,
) -> None:
    """Build, sign, roll out and watch models on a fleet of devices.

    --home, --url and --token-file may stand anywhere on the line.
    """
    context.obj = ConnectionOptions(home=home, url=url, token_file=token_file)


def _drop_output() -> None:
    """Forget what cannot be written: Python would try, and complain, once more at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fault(text: str) -> int:
    remark(f"fleet: {' '.join(text.split())}")
    return EXIT_FAULT


def _usage_fault(exc: typer.TyperException) -> int:
    message = exc.format_message().strip()
    if message.startswith("Usage:"):  # a group without a command: the message is its help
        remark(message)
        return EXIT_FAULT
    context = getattr(exc, "ctx", None)
    path = getattr(context, "command_path", "fleet")
    text = message.rstrip(".")
    return _fault(f"{text[:1].lower()}{text[1:]}; see `{path} --help`")
