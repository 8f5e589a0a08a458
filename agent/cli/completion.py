"""Scripts that complete `fleet-agent` in a shell, made from its parser.

Rules:
- A script contains all words itself: completion starts no program on the device.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final, NamedTuple

from agent.cli.help import first_paragraph, option_text, options, positionals, subcommands
from agent.cli.parser import PROGRAM, Parser

FILES: Final = "files"
FOLDERS: Final = "folders"
_PATHS: Final = {"FILE": FILES, "TRACE": FILES, "POLICY": FILES, "DIR": FOLDERS}


class Option(NamedTuple):
    """An option of a command."""

    names: tuple[str, ...]
    text: str
    takes_value: bool
    paths: str
    """`files` or `folders` if the value is the path of one, else empty."""


class Command(NamedTuple):
    """A command, its options and its argument."""

    name: str
    text: str
    options: tuple[Option, ...]
    words: tuple[str, ...]
    """The possible words of its argument, if only some words are possible."""

    paths: str
    """`files` if its argument is the path of a file."""


def completion_script(shell: str, parser: Parser) -> str:
    """Return a script for a shell.

    Args:
        shell: `bash`, `zsh` or `fish`.
        parser: Parser of the whole command line.

    Returns:
        The script, ending with a newline.
    """
    root = _command("", parser)
    commands = [_command(name, sub) for name, sub in subcommands(parser).items()]
    lines = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](root, commands)
    return "\n".join(lines) + "\n"


def _command(name: str, parser: Parser) -> Command:
    arguments = positionals(parser)
    words = tuple(str(word) for a in arguments for word in a.choices or ())
    paths = next((path for a in arguments if (path := _paths(a))), "")
    found = tuple(
        Option(tuple(o.option_strings), option_text(o), o.nargs != 0, _paths(o))
        for o in options(parser)
    )
    return Command(name, first_paragraph(parser), found, words, paths)


def _paths(action: argparse.Action) -> str:
    return _PATHS.get(str(action.metavar), "")


def _bash(root: Command, commands: list[Command]) -> Iterator[str]:
    yield f"# Completion of {PROGRAM} for bash."
    yield "_fleet_agent() {"
    yield '    local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"'
    yield '    local command="" words="" paths=""'
    yield '    if [ "$COMP_CWORD" -gt 1 ]; then command="${COMP_WORDS[1]}"; fi'
    yield '    case "$command" in'
    for command in (root, *commands):
        names = [name for option in command.options for name in option.names]
        found = (*command.words, *names) if command.name else (*(c.name for c in commands), *names)
        yield f"""    "{command.name}") words="{" ".join(found)}" paths="{command.paths}" ;;"""
    yield "    esac"
    yield '    case "$command $before" in'
    for command in commands:
        for option in command.options:
            if option.takes_value:
                cases = "|".join(f'"{command.name} {name}"' for name in option.names)
                yield f"""    {cases}) words="" paths="{option.paths}" ;;"""
    yield "    esac"
    yield '    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")'
    yield '    case "$paths" in'
    yield f"    {FILES}) compopt -o filenames 2>/dev/null"
    yield '        mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$current") ;;'
    yield f"    {FOLDERS}) compopt -o filenames 2>/dev/null"
    yield '        mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -d -- "$current") ;;'
    yield "    esac"
    yield "}"
    yield f"complete -F _fleet_agent {PROGRAM}"


def _zsh(root: Command, commands: list[Command]) -> Iterator[str]:
    yield f"#compdef {PROGRAM}"
    yield "_fleet_agent() {"
    yield "    local -a commands"
    yield "    commands=("
    yield from (f"        {_quoted(f'{c.name}:{c.text}')}" for c in commands)
    yield "    )"
    yield "    if (( CURRENT == 2 )); then"
    yield "        _describe -t commands command commands"
    yield f"        _arguments {' '.join(_zsh_options(root))}"
    yield "        return"
    yield "    fi"
    yield "    local command=$words[2]"
    yield "    shift words; (( CURRENT-- ))"
    yield '    case "$command" in'
    for command in commands:
        specs = [*_zsh_options(command)]
        if command.words:
            specs.append(_quoted(f"1:word:({' '.join(command.words)})"))
        if command.paths:
            specs.append(_quoted("1:file:_files"))
        yield f"    {command.name}) _arguments {' '.join(specs)} ;;"
    yield "    esac"
    yield "}"
    yield f"compdef _fleet_agent {PROGRAM}"


def _zsh_options(command: Command) -> Iterator[str]:
    for option in command.options:
        action = {FILES: "_files", FOLDERS: "_files -/"}.get(option.paths, "")
        value = f":value:{action}" if option.takes_value else ""
        text = option.text.replace("[", "(").replace("]", ")").replace(":", "\\:")
        for name in option.names:
            yield _quoted(f"{name}[{text}]{value}")


def _fish(root: Command, commands: list[Command]) -> Iterator[str]:
    yield f"# Completion of {PROGRAM} for fish."
    yield f"complete -c {PROGRAM} -f"
    for command in commands:
        yield (
            f"complete -c {PROGRAM} -n __fish_use_subcommand -a {command.name} "
            f"-d {_quoted(command.text)}"
        )
    for command in (root, *commands):
        where = f"__fish_seen_subcommand_from {command.name}" if command.name else ""
        line = f"complete -c {PROGRAM} -n {_quoted(where or '__fish_use_subcommand')}"
        for option in command.options:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in option.names
            )
            files = " -F" if option.paths else ""
            value = f" -r{files}" if option.takes_value else ""
            yield f"{line} {names}{value} -d {_quoted(option.text)}"
        if command.words:
            yield f"{line} -a {_quoted(' '.join(command.words))}"
        if command.paths:
            yield f"{line} -F"


def _quoted(text: str) -> str:
    escaped = text.replace("'", "'\\''")
    return f"'{escaped}'"
