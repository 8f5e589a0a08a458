"""The README and the page of commands say what is so: help texts, commands, configuration.

`python -m tests.packaging.test_readme` writes the help texts into the page anew.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest import mock

import pytest

from agent.app.config import AgentConfig, BrokerConfig, EndpointConfig
from controller.cli import main

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
COMMANDS = ROOT / "docs" / "commands.md"
HELP = re.compile(r"<!-- help: (?P<command>[^>]+?) -->\n```\n(?P<text>.*?)```", re.DOTALL)
BIN = Path(sys.executable).parent


@functools.cache
def help_of(command: str) -> str:
    program, *words = command.split()
    surroundings = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    if words:  # there are many, and a process takes most of a second
        said = io.StringIO()
        with mock.patch.dict(os.environ, surroundings), contextlib.redirect_stdout(said):
            assert main([*words, "--help"]) == 0
        text = said.getvalue()
    else:
        text = subprocess.run(
            [BIN / program, "--help"],
            capture_output=True, text=True, check=True, env=os.environ | surroundings,
        ).stdout  # fmt: skip
    return "\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n"


def subcommands(text: str) -> list[str]:
    block = text.partition("Commands:\n")[2].partition("\n\n")[0]
    return re.findall(r"(?m)^  ([a-z-]+) ", block)


@pytest.mark.parametrize(
    "match", list(HELP.finditer(COMMANDS.read_text())), ids=lambda m: m["command"]
)
def test_a_help_text_is_the_programs_own(match: re.Match[str]) -> None:
    assert match["text"] == help_of(match["command"])


def test_both_programs_and_every_group_of_commands_are_shown() -> None:
    shown = [m["command"] for m in HELP.finditer(COMMANDS.read_text())]
    groups = [f"fleet {name}" for name in subcommands(help_of("fleet"))]
    groups = [group for group in groups if subcommands(help_of(group))]
    assert shown == ["fleet", *groups, "fleet-agent"]


def test_every_fleet_command_has_help() -> None:
    silent = []
    for group in subcommands(help_of("fleet")):
        text = help_of(f"fleet {group}")
        nested = subcommands(text)
        # A command's words stand on the line after its usage; a listing has them beside the name.
        silent += [group] if len(text.splitlines()) < 3 else []
        silent += [
            f"{group} {name}" for name in nested if not re.search(rf"(?m)^  {name} +\S", text)
        ]
    assert silent == []


def test_every_listing_and_query_prints_json_too() -> None:
    asking = {"list", "show", "query", "events", "status", "why", "diff"}
    found = []
    for group in subcommands(help_of("fleet")):
        nested = subcommands(help_of(f"fleet {group}"))
        found += [f"fleet {group} {name}" for name in nested if name in asking]
        found += [f"fleet {group}"] if group in asking else []
    assert len(found) > 10
    without = [command for command in found if "--json" not in help_of(command)]
    assert without == ["fleet key show"]  # one line, and nothing else


def test_the_commands_of_the_walk_through_exist() -> None:
    text = README.read_text()
    walk = re.findall(r"(?m)^(fleet (?:[a-z]+ ?){1,2})", text)
    assert len(walk) > 5
    for line in walk:
        words = line.split()
        known = subcommands(help_of("fleet"))
        assert words[1] in known, line
        nested = subcommands(help_of(f"fleet {words[1]}"))
        assert not nested or words[2] in nested, line


def test_the_shown_configuration_is_one() -> None:
    block = re.search(r"```toml\n(.*?)```", README.read_text(), re.DOTALL)
    assert block is not None
    values = tomllib.loads(block[1])
    assert set(values) <= set(AgentConfig.__struct_fields__)
    assert set(values["broker"]) <= set(BrokerConfig.__struct_fields__)
    assert set(values["endpoint"]) <= set(EndpointConfig.__struct_fields__)


def write() -> None:
    text = HELP.sub(
        lambda m: f"<!-- help: {m['command']} -->\n```\n{help_of(m['command'])}```",
        COMMANDS.read_text(),
    )
    COMMANDS.write_text(text)


if __name__ == "__main__":
    write()
