"""`fleet-agent install`: hands a package file to the agent that runs.

Rules:
- The agent reads the file through this process, with the operator's rights. Its own user need not
  see the stick, and a stick that fails ends this process alone.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, Final

from agent.app.config import AgentConfig
from agent.app.control import SOCKET_FILE, ask
from agent.errors import ControlError
from wire.console.sizes import bytes_text
from wire.console.text import local_time
from wire.files import open_file, read_part

REMEDY: Final = "look at the medium, or copy the file again; what has come is kept"
NO_FILE: Final = "give the path of a file that `fleet package export` or `fleet key export` wrote"
NAMES_NO_FILE: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
NOT_ALLOWED: Final = "let the user of this command read it, or give the command as one who may"


def hand_over(path: Path, config: AgentConfig, command: str = "install") -> dict[str, Any]:
    """Let the agent take a file.

    Args:
        path: The file.
        config: The agent's configuration.
        command: What to do with it: `install` for a package, `metadata` for trusted metadata.

    Returns:
        The agent's answer.

    Raises:
        ControlError: The file cannot be read, no agent answers, or it refuses the file.
    """
    try:
        with open_file(path) as file:
            descriptor = file.fileno()
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ControlError(f"cannot read {path}: it is not a file", remedy=NO_FILE)

            def part(offset: int, length: int) -> bytes:
                return _part(path, descriptor, offset, length)

            answer: dict[str, Any] = ask(
                config.state_dir / SOCKET_FILE,
                command,
                {"size_bytes": status.st_size},
                part=part,
            )
            return answer
    except OSError as exc:
        raise ControlError(_unreadable(path, exc), remedy=_remedy(exc)) from exc


def trust_lines(answer: dict[str, Any]) -> list[str]:
    """Return what the agent believes now, for people."""
    told = ["newer metadata is trusted" if answer["newer"] else "nothing newer is trusted"]
    if answer["refused"]:
        told.append(f"refused: {answer['refused']}")
    if answer["stale"]:
        told.append(f"nothing new is taken: {answer['stale']}")
    elif answer["expires_at_s"] is not None:
        told.append(f"it is fresh until {local_time(answer['expires_at_s'])}")
    return told


def lines(answer: dict[str, Any]) -> list[str]:
    """Return what the agent did, for people."""
    release = answer["release"]
    came, had = (bytes_text(answer[key]) for key in ("stored_bytes", "had_bytes"))
    variants = ", ".join(answer["variants"])
    told = [f"stored {release} ({variants}): {came} from the file, {had} were here"]
    if answer["revision"] is not None:
        told.append(f"took revision {answer['revision']} of the desired state from the file")
    if answer["not_taken"]:
        told.append(f"did not take the desired state from the file: {answer['not_taken']}")
    if answer.get("runs"):
        told.append("this release runs already: there is nothing to install")
    elif answer["is_target"]:
        told.append("it is the desired release; `fleet-agent status` shows how its install goes on")
    else:
        told.append(
            "the controller has not ordered it for this device; when it does, nothing is fetched"
        )
    return told


def _part(path: Path, descriptor: int, offset: int, length: int) -> bytes:
    try:
        return read_part(descriptor, offset, length)
    except OSError as exc:
        raise ControlError(_unreadable(path, exc), remedy=REMEDY) from exc


def _remedy(fault: OSError) -> str:
    if isinstance(fault, PermissionError):
        return NOT_ALLOWED
    return NO_FILE if isinstance(fault, NAMES_NO_FILE) else REMEDY


def _unreadable(path: Path, exc: OSError) -> str:
    return f"cannot read {path}: {(exc.strerror or str(exc)).lower()}"
