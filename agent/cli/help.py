"""Help pages of `fleet-agent`, made from its parser; the form is that of `fleet`."""

from __future__ import annotations

import argparse
import shutil

from agent.cli.parser import Parser
from wire.console.help_page import HELP_TEXT, VERSION_TEXT, Entry, HelpPage, render


def help_text(parser: Parser) -> str:
    """Return the help page of a command.

    Args:
        parser: Parser of the command.

    Returns:
        The page.
    """
    groups = subcommands(parser)
    arguments = positionals(parser)
    usage = [parser.prog, "[OPTIONS]", *map(_usage_name, arguments)]
    if groups:
        usage.append("COMMAND ...")
    page = HelpPage(
        usage=" ".join(usage),
        text=parser.description or "",
        arguments=[Entry(_usage_name(a), a.help or "", _notes(a)) for a in arguments],
        options=[_option_entry(option) for option in options(parser)],
        commands=[Entry(name, first_paragraph(sub)) for name, sub in groups.items()],
        examples=parser.examples,
    )
    return render(page, shutil.get_terminal_size().columns)


def subcommands(parser: Parser) -> dict[str, Parser]:
    """Return the parsers of the commands below a parser, by name."""
    found: dict[str, Parser] = {}
    for action in parser._actions:  # noqa: SLF001 - argparse has no other list of them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            found |= action.choices
    return found


def positionals(parser: Parser) -> list[argparse.Action]:
    """Return the arguments of a command."""
    return [
        action
        for action in parser._actions  # noqa: SLF001
        if not action.option_strings and not isinstance(action, argparse._SubParsersAction)  # noqa: SLF001
    ]


def options(parser: Parser) -> list[argparse.Action]:
    """Return the options of a command; the one for help is the last."""
    found = [action for action in parser._actions if action.option_strings]  # noqa: SLF001
    return sorted(found, key=lambda action: action.dest == "help")


def option_text(option: argparse.Action) -> str:
    """Return what an option does."""
    return {"help": HELP_TEXT, "version": VERSION_TEXT}.get(option.dest, option.help or "")


def first_paragraph(parser: Parser) -> str:
    """Return what a command does, for a list of commands."""
    return (parser.description or "").partition("\n\n")[0]


def _option_entry(option: argparse.Action) -> Entry:
    names = ", ".join(option.option_strings)
    value = "" if option.nargs == 0 else f" {option.metavar}"
    return Entry(names + value, option_text(option), _notes(option))


def _usage_name(argument: argparse.Action) -> str:
    return f"[{argument.metavar}]" if argument.nargs == "?" else str(argument.metavar)


def _notes(action: argparse.Action) -> tuple[str, ...]:
    notes = ["required"] if action.required else []
    if action.nargs != 0 and action.default is not None:
        is_float = isinstance(action.default, float)
        notes.append(f"default: {action.default:g}" if is_float else f"default: {action.default}")
    return tuple(notes)
