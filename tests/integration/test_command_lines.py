"""Both command lines: one form of help, examples that are true, versions, completion."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from agent.cli.help import subcommands
from agent.cli.main import RUNS
from agent.cli.main import main as fleet_agent
from agent.cli.parser import build_parser
from controller.cli import COMMANDS, build_app
from controller.cli import main as fleet
from controller.cli.arguments import hoist_global_options
from controller.cli.commands import first_paragraph
from wire.version import VERSION

BIN = Path(sys.executable).parent
PARTS = ["Arguments", "Options", "Commands", "Examples"]
ROOT_COMMAND = typer.main.get_command(build_app())
AGENT = build_parser(RUNS)


def fleet_commands() -> Iterator[tuple[str, ...]]:
    yield ()
    for name in COMMANDS:
        yield (name,)
        command = fleet_command(name)
        for sub in getattr(command, "commands", {}):
            yield (name, sub)


def fleet_command(name: str) -> Any:
    context: Any = ROOT_COMMAND.make_context("fleet", [name], resilient_parsing=True)
    return ROOT_COMMAND.get_command(context, name)  # type: ignore[attr-defined]


PAGES = [("fleet", *words) for words in fleet_commands()]
PAGES += [("fleet-agent",), *(("fleet-agent", name) for name in subcommands(AGENT))]


def help_page(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, str]:
    program, *rest = words
    try:
        code = (fleet if program == "fleet" else fleet_agent)([*rest, *more])
    except SystemExit as exc:
        code = int(exc.code or 0)
    return code, capsys.readouterr().out


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_every_page_has_one_form_and_examples(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, text = help_page(words, capsys, "--help")
    assert code == 0
    assert help_page(words, capsys, "-h") == (0, text)
    lines = text.splitlines()
    assert lines[0].startswith(f"Usage: {' '.join(words)} ")
    assert max(map(len, lines)) <= 80
    parts = re.findall(r"(?m)^([A-Z][a-z]+):$", text)
    assert parts == [part for part in PARTS if part in parts]
    assert {"Options", "Examples"} <= set(parts)
    assert "-h, --help" in text
    examples = [line.strip() for line in text.partition("Examples:\n")[2].splitlines()]
    assert examples
    for example in examples:
        assert example.startswith(" ".join(words[:1]))
        assert_parses(example)


def assert_parses(example: str) -> None:
    program, *words = shlex.split(example.partition(" > ")[0])
    if program == "fleet-agent":
        AGENT.parse_args(words)
        return
    context: Any = ROOT_COMMAND.make_context("fleet", hoist_global_options(words))
    rest = [*context._protected_args, *context.args]
    while rest:
        name, command, rest = context.command.resolve_command(context, rest)
        context = command.make_context(name, list(rest), parent=context)
        rest = [*getattr(context, "_protected_args", []), *context.args]


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_a_group_alone_shows_its_help(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = help_page(words, capsys, "--help")
    if "Commands:" in text:
        assert help_page(words, capsys) == (code, text)


def test_the_list_of_commands_says_what_they_say() -> None:
    told = {name: text for name, (_, text) in COMMANDS.items()}
    assert told == {name: first_paragraph(fleet_command(name)) for name in COMMANDS}


@pytest.mark.parametrize("program", ["fleet", "fleet-agent"])
def test_versions(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert help_page((program,), capsys, "--version") == (0, f"{program} {VERSION}\n")


@pytest.mark.parametrize("words", [["bogus"], ["status", "--bogus"], ["pin"], ["completion", "x"]])
def test_a_wrong_line_for_the_agent_is_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = fleet_agent(words)
    told = capsys.readouterr()
    assert (code, told.out, told.err.count("\n")) == (2, "", 1)
    assert told.err.startswith("fleet-agent: ")
    assert told.err.endswith("--help`\n")


COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
name=$(complete -p "$1" | sed 's/.*-F \\([^ ]*\\).*/\\1/')
"$name" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(program: str, script: str, words: str, folder: Path) -> list[str]:
    path = folder / "completion"
    path.write_text(script)
    done = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE, "-", str(path), program, *words.split(" ")],
        capture_output=True, text=True, check=False, cwd=folder, timeout=60,
        env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("st", ["status"]),
        ("", [*RUNS, "--version", "-h", "--help"]),
        ("why --s", ["--since"]),
        ("why --since ", []),
        ("completion ", ["bash", "zsh", "fish", "-h", "--help"]),
        ("status --config agent.t", ["agent.toml"]),
        ("replay --package ", ["folder"]),
        ("record mine", ["mine.jsonl"]),
    ],
)
def test_bash_completes_the_agent(
    words: str, found: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agent.toml").touch()
    (tmp_path / "mine.jsonl").touch()
    (tmp_path / "folder").mkdir()
    assert fleet_agent(["completion", "bash"]) == 0
    assert completed("fleet-agent", capsys.readouterr().out, words, tmp_path) == found


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_every_command_and_option(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fleet_agent(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(re.search(rf"\b{name}\b", script) for name in RUNS)
    assert "deadline-ms" in script


@pytest.mark.parametrize(
    ("words", "found"),
    [("dev", ["device"]), ("rollout ro", ["rollback"]), ("device list --sel", ["--selector"])],
)
def test_bash_completes_fleet(words: str, found: list[str], tmp_path: Path) -> None:
    # The command finds out in which shell it was started.
    shown = subprocess.run(
        ["bash", "-c", '"$0" --show-completion && true', BIN / "fleet"],
        capture_output=True, text=True, check=True,
        env=os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": ""},
    )  # fmt: skip
    assert completed("fleet", shown.stdout, words, tmp_path) == found
