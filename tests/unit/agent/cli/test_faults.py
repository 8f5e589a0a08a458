"""What a command that cannot be done says: one line, with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.cli.main import main


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Write a configuration of an agent that does not run."""
    path = tmp_path / "agent.toml"
    path.write_text('device = "dev-1"\nstate_dir = "."\nprofile = "p"\ntrust = "t"\n')
    return path


def told(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Give a command that fails; return its one line."""
    assert main([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    return captured.err


def test_without_an_agent_another_configuration_may_be_named(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = told(capsys, "status", "--config", config)
    assert "no agent answers at " in line
    assert "name the agent's configuration with --config if it is another one" in line


def test_without_a_configuration_it_can_be_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = told(capsys, "status", "--config", tmp_path / "nowhere.toml")
    assert line.endswith("nowhere.toml: no such file or directory; name the agent's file with "
                         "--config FILE\n")  # fmt: skip


def test_a_package_file_that_is_not_there_is_asked_for(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, fault in ((tmp_path / "nowhere.tar", "no such file"), (tmp_path, "is a directory")):
        line = told(capsys, "install", path, "--config", config)
        assert fault in line
        assert line.endswith("or `fleet key export` wrote\n")


def test_the_help_of_status_names_its_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--help"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "The exit status is 0 when every model that is shown serves, 1 when " in words
    assert "and 2 when the agent does not answer" in words
