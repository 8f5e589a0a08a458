"""The commands, arguments and options of `fleet-agent`, and examples of each.

Rules:
- A running agent has this module in memory, so it imports nothing heavy. Other modules make help
  pages and completion scripts, and are imported only when they are needed.
- A fault in the command line gives one line on standard error, and exit code 2.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from wire.console.program import fault
from wire.version import VERSION

PROGRAM: Final = "fleet-agent"
DEFAULT_CONFIG: Final = Path("/etc/edgefleet/agent.toml")
SHELLS: Final = ("bash", "zsh", "fish")

Run = Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """A parser whose help is a page of `wire.console.help_page`.

    Args:
        examples: Command lines that its help shows.
        options: Options of `argparse.ArgumentParser`.
    """

    def __init__(self, *, examples: Sequence[str] = (), **options: Any) -> None:  # noqa: ANN401 - argparse's
        super().__init__(add_help=False, **options)
        self.examples = examples
        self.add_argument("-h", "--help", action="help")

    def format_help(self) -> str:  # noqa: D102 - argparse's
        from agent.cli.help import help_text

        return help_text(self)

    def error(self, message: str) -> NoReturn:  # noqa: D102 - argparse's
        self.exit(fault(PROGRAM, f"{message}; see `{self.prog} --help`"))


class Subcommands:
    """The commands of a parser.

    Args:
        parser: The parser that gets them.
    """

    def __init__(self, parser: Parser) -> None:
        self._subparsers = parser.add_subparsers(metavar="COMMAND")

    def add(self, name: str, text: str, run: Run, *examples: str) -> Parser:
        """Add a command.

        Args:
            name: Name of the command.
            text: What it does; the list of commands shows the first paragraph.
            run: Runs the command.
            examples: The part after the command in each example; none for the command alone.

        Returns:
            Its parser.
        """
        lines = [f"{PROGRAM} {name} {example}".strip() for example in examples or ("",)]
        parser: Parser = self._subparsers.add_parser(
            name, help=text.partition("\n\n")[0], description=text, examples=lines
        )
        parser.set_defaults(run=run)
        return parser


def build_parser(runs: dict[str, Run]) -> Parser:
    """Return the parser of the whole command line.

    Args:
        runs: The function that runs each command, by name.

    Returns:
        The parser; a parsed command line has `run`, unless no command was typed.
    """
    parser = Parser(
        prog=PROGRAM,
        description="Run the agent of this device, or ask the one that runs.",
        examples=(f"{PROGRAM} status", f"{PROGRAM} why --since 1d"),
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {VERSION}")
    commands = Subcommands(parser)
    run = commands.add("run", "Run the agent in the foreground.", runs["run"])
    status = commands.add(
        "status",
        "Show the state of the device and what it runs.\n\nThe exit status is 0 when every model "
        "that is shown serves, 1 when one serves no variant or there is no model, and 2 when the "
        "agent does not answer.",
        runs["status"],
        "",
        "--json",
    )
    why = commands.add(
        "why",
        "Show what the agent decided, and why.\n\nWhen no agent answers, this shows what it has "
        "stored.",
        runs["why"],
        "",
        "--since 1d --kind switch",
    )
    why.add_argument(
        "--since", default="1h", metavar="TIME", help="How far back, such as 30m or 7d."
    )
    why.add_argument(
        "--kind",
        action="append",
        metavar="KIND",
        help="Show only this kind, such as switch or install.",
    )
    variants = commands.add("variants", "List the variants on this device.", runs["variants"])
    pin = commands.add(
        "pin",
        "Let one variant serve, whatever the policy says.",
        runs["pin"],
        "onnxruntime-int8",
        "--clear",
    )
    for sub, what in (
        (status, "Show the device with this model alone."),
        (why, "Show only what is about this model, or about the device as a whole."),
        (variants, "List only the variants of this model."),
        (pin, "The model of the variant; needed if the device has several."),
    ):
        sub.add_argument("--model", metavar="NAME", help=what)
    which = pin.add_mutually_exclusive_group(required=True)
    which.add_argument("variant", nargs="?", metavar="VARIANT", help="Name of the variant.")
    which.add_argument("--clear", action="store_true", help="Let the policy choose again.")
    install = _add_install(commands, runs["install"])
    trust = _add_trust(commands, runs["trust"])
    override = _add_override(commands, runs["override"])
    record = _add_record(commands, runs["record"])
    _add_replay(commands, runs["replay"])
    profile = _add_profile(commands, runs["profile"])
    completion = commands.add(
        "completion",
        "Print a script that completes commands in a shell.",
        runs["completion"],
        "bash > /etc/bash_completion.d/fleet-agent",
        "zsh > ~/.zfunc/_fleet-agent",
        "fish > ~/.config/fish/completions/fleet-agent.fish",
    )
    completion.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish.")
    for sub in (run, status, why, variants, pin, install, trust, override, record):
        sub.add_argument(
            "--config",
            type=Path,
            default=DEFAULT_CONFIG,
            metavar="FILE",
            help="TOML file of the agent.",
        )
    for sub in (status, why, variants, pin, install, trust, override, profile):
        sub.add_argument("--json", action="store_true", help="Print as JSON.")
    return parser


def _add_install(commands: Subcommands, run: Run) -> Parser:
    install = commands.add(
        "install",
        "Store a package from a file, so that nothing is fetched.\n\nThe file is what `fleet "
        "package export` wrote. It is checked like a package that comes over the network. An "
        "install that waits for it goes on at once. A package that was not ordered for this device "
        "is kept until it is, or until its storage is needed.",
        run,
        "/media/stick/detector-1.0.0.tar",
    )
    install.add_argument("file", type=Path, metavar="FILE", help="File of the package.")
    return install


def _add_trust(commands: Subcommands, run: Run) -> Parser:
    trust = commands.add(
        "trust",
        "Take the fleet's trusted metadata from a file.\n\nFor a device without a network. The "
        "file is what `fleet key export` wrote. It is checked like metadata that comes over the "
        "network. The exit status is 1 when it is refused, or when the device still has none that "
        "is fresh.",
        run,
        "/media/stick/metadata.json",
    )
    trust.add_argument("file", type=Path, metavar="FILE", help="File of the metadata.")
    return trust


def _add_override(commands: Subcommands, run: Run) -> Parser:
    override = commands.add(
        "override",
        "Let one install go on, whatever holds it.\n\nIt is the one that a hook, the window, the "
        "battery or a budget holds now, else the next one that these would hold or fail. The hooks "
        "still run, and what comes is still counted.",
        run,
        "",
        "--for 8h",
        "--clear",
    )
    how = override.add_mutually_exclusive_group()
    how.add_argument(
        "--for", dest="length", default="1h", metavar="TIME", help="How long it holds, 1d at most."
    )
    how.add_argument(
        "--clear", action="store_true", help="Let hooks, window, battery and budgets count."
    )
    return override


def _add_record(commands: Subcommands, run: Run) -> Parser:
    record = commands.add(
        "record",
        "Record the surroundings of this device as a trace.\n\nThe trace holds heat, battery, "
        "memory and load over time, for `fleet-agent replay`.",
        run,
        "summer.jsonl --for 1h",
        "summer.jsonl --for 1d --every 10s",
    )
    record.add_argument(
        "trace", type=Path, metavar="FILE", help="File of the trace. It must not exist yet."
    )
    record.add_argument(
        "--for", dest="length", default="10m", metavar="TIME", help="How long to record."
    )
    record.add_argument(
        "--every", default="1s", metavar="TIME", help="Time between two lines of the trace."
    )
    record.add_argument(
        "--board", type=Path, metavar="FILE", help="JSON file with figures of the board."
    )
    record.add_argument(
        "--deadline-ms",
        type=float,
        default=100.0,
        metavar="MS",
        help="Time within which the application needs an answer.",
    )
    return record


def _add_profile(commands: Subcommands, run: Run) -> Parser:
    profile = commands.add(
        "profile",
        "Describe this device as a profile.\n\nThe profile names the runtimes that are installed "
        "here. Where the kernel tells no limit of heat, it has none.",
        run,
        "detect",
        "detect --name my-board -o /etc/edgefleet/profile.toml",
    )
    profile.add_argument(
        "action", choices=("detect",), metavar="detect", help="Look at this device."
    )
    profile.add_argument(
        "--name", metavar="NAME", help="Name of the profile. The default is that of the board."
    )
    profile.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="Write the profile to this file."
    )
    return profile


def _add_replay(commands: Subcommands, run: Run) -> None:
    replay = commands.add(
        "replay",
        "Show what a policy would do over a trace.\n\nThis needs no agent.",
        run,
        "hot-afternoon",
        "summer.jsonl --policy adaptive --package detector-1.0.0",
    )
    replay.add_argument("trace", metavar="TRACE", help="File, or name of a shipped trace.")
    replay.add_argument(
        "--policy",
        default="adaptive",
        metavar="POLICY",
        help="Name of a policy, or TOML or JSON file with the keys of [policy] in agent.toml.",
    )
    source = replay.add_mutually_exclusive_group()
    source.add_argument(
        "--package", type=Path, metavar="DIR", help="Package whose variants are used."
    )
    source.add_argument(
        "--variants", type=Path, metavar="FILE", help="JSON file of variants to use."
    )
    replay.add_argument("--pin", metavar="VARIANT", help="Let this variant serve all the time.")
    replay.add_argument(
        "--deadline-ms", type=float, metavar="MS", help="Deadline in place of the trace's own."
    )
    replay.add_argument("--json", action="store_true", help="Print as JSON, with every tick.")
