"""The command line `fleet`: parses, asks the controller, prints.

Rules:
- A fault is one line on standard error, `fleet: <what>; <remedy>`, and exit code 2; 0 is success;
  1 is "it ran, but the answer is no". Of a fault in a selector two more lines show the place.
- A command that only reads answers within 0.4 s: a module of commands and its slow imports are
  loaded only by the commands that need them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from controller.cli.arguments import hoist_global_options
from controller.cli.commands import lazy_group
from wire.console.help_page import VERSION_TEXT
from wire.console.output import write
from wire.console.program import INTERRUPTED, cleaned_up_at_sigterm, fault, run_program
from wire.version import VERSION

COMMANDS: Final = {
    "init": ("controller.cli.admin", "Make the data directory of a controller."),
    "build": ("controller.cli.builds", "Build a package from a model."),
    "why": ("controller.cli.devices", "Show what a device decided, and why."),
    "broker": ("controller.cli.admin", "Run the local MQTT broker."),
    "controller": ("controller.cli.admin", "Run, back up and restore the controller."),
    "token": ("controller.cli.admin", "Make and end tokens that devices enrol with."),
    "access": ("controller.cli.access", "Make and end API tokens for people and programs."),
    "audit": ("controller.cli.audit", "Show who did what, and check that log."),
    "tool": ("controller.cli.tools", "Install external converters."),
    "profile": ("controller.cli.packages", "Show kinds of devices."),
    "package": ("controller.cli.packages", "Check and sign packages on this disk."),
    "key": ("controller.cli.keys", "Make keys, and say what each may sign."),
    "device": ("controller.cli.devices", "Show and manage the devices of the fleet."),
    "group": ("controller.cli.groups", "Give selectors a name."),
    "policy": ("controller.cli.policies", "Set how devices choose among their variants."),
    "release": ("controller.cli.releases", "Publish packages."),
    "model": ("controller.cli.models", "Show models, and take one away from devices."),
    "rollout": ("controller.cli.rollouts", "Bring releases to devices, in stages."),
    "simulate": ("controller.cli.simulate", "Play virtual devices over the real broker."),
    "measure": ("controller.cli.measure", "Measure releases on lent devices."),
    "telemetry": ("controller.cli.telemetry", "Show what the devices measured."),
    "capture": ("controller.cli.captures", "Take samples from devices, to train again."),
    "shadow": ("controller.cli.shadows", "Run a release beside the one that serves."),
    "alert": ("controller.cli.alerts", "Watch the telemetry, and tell when it is wrong."),
}
"""In the order of the help: the module of each command, and what it does."""

HELP: Final = """Build, sign, roll out and watch models on a fleet of devices.

The options --home, --url, --token-file, --ca-file and --api-clear-text may stand anywhere on the
line.

Examples:
    fleet init ./my-fleet
    fleet device list --home ./my-fleet
    fleet rollout create detector:1.0.0 --stage 1 --stage 100% --watch
"""


def build_app() -> typer.Typer:
    """Return the application with all its commands."""
    app = typer.Typer(
        name="fleet",
        help=HELP,
        cls=lazy_group(COMMANDS),
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_root)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: The command line; None means this process's.

    Returns:
        The exit status.
    """
    with cleaned_up_at_sigterm():
        return run_program("fleet", _run, arguments)


def _run(arguments: list[str]) -> int:
    command = typer.main.get_command(build_app())
    try:
        result = command.main(
            args=hoist_global_options(arguments), prog_name="fleet", standalone_mode=False
        )
    except typer.TyperException as exc:
        return _usage_fault(exc)
    except typer.Abort:
        return INTERRUPTED
    except SystemExit as exc:  # Typer's end of a completion, or when the reader has gone
        if exc.code:
            raise BrokenPipeError from exc
        return 0
    return result if isinstance(result, int) else 0


def _show_version(context: typer.Context, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        write(f"fleet {VERSION}")
        raise typer.Exit


def _root(
    context: typer.Context,
    *,
    home: Annotated[
        Path | None,
        typer.Option(help="Data directory of the controller (or FLEET_HOME).", metavar="DIR"),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Address of the controller (or FLEET_URL).", metavar="URL")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with its API token (or FLEET_TOKEN).", metavar="FILE"),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            help="Authority of its certificate, for an https:// address (or FLEET_CA_FILE).",
            metavar="FILE",
        ),
    ] = None,
    api_clear_text: Annotated[
        bool,
        typer.Option(
            "--api-clear-text",
            help="Send the API token to another machine without TLS: who is on the way can read it "
            "(or FLEET_API_CLEAR_TEXT=1).",
        ),
    ] = False,
    _version: Annotated[
        bool,
        typer.Option("--version", help=VERSION_TEXT, is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    from controller.client.target import ConnectionOptions  # the help needs nothing of the client

    context.obj = ConnectionOptions(
        home=home,
        url=url,
        token_file=token_file,
        ca_file=ca_file,
        api_clear_text=api_clear_text,
    )


def _usage_fault(exc: typer.TyperException) -> int:
    meant = getattr(exc, "possibilities", None)
    text = (exc.message if meant else exc.format_message()).strip().rstrip(".")
    if meant:
        text += f" (did you mean {' or '.join(meant)}?)"
    context = getattr(exc, "ctx", None)
    path = getattr(context, "command_path", "fleet")
    return fault("fleet", f"{text[:1].lower()}{text[1:]}; see `{path} --help`")
