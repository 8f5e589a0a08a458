"""A directory of real hooks that write down when they run and answer as a test says."""

from __future__ import annotations

import shlex
from pathlib import Path

from agent.install.hooks.settings import HookSettings

HOOK = """#!/bin/sh
name=${{0##*/}}
echo "$name" >> {journal}
env > {answers}/"$name.env"
if [ -s {answers}/"$name" ]; then . {answers}/"$name"; fi
"""


class HookDirectory:
    """The hooks of one device.

    Args:
        place: A directory that only its owner may write to; it need not exist.
    """

    def __init__(self, place: Path) -> None:
        self.path = place / "hooks.d"
        self._answers = place / "answers"
        self._journal = place / "journal"
        for directory in (place, self.path, self._answers):
            directory.mkdir(mode=0o755, exist_ok=True)

    def settings(self, **limits: float) -> HookSettings:
        return HookSettings(directory=self.path, **limits)

    def add(self, *names: str, answer: str = "") -> None:
        """Add hooks. The answer is a line for a shell; without one the hook says yes."""
        text = HOOK.format(
            journal=shlex.quote(str(self._journal)), answers=shlex.quote(str(self._answers))
        )
        for name in names:
            self.answer(name, answer)
            (self.path / name).write_text(text)
            (self.path / name).chmod(0o755)

    def answer(self, name: str, line: str) -> None:
        """Change what a hook answers from its next run on."""
        (self._answers / name).write_text(f"{line}\n" if line else "")

    @property
    def ran(self) -> list[str]:
        """The hooks that ran, in their order."""
        return self._journal.read_text().split() if self._journal.exists() else []

    def forget(self) -> None:
        """Begin a new journal."""
        self._journal.unlink(missing_ok=True)

    def variables(self, name: str) -> dict[str, str]:
        """The environment in which a hook ran last."""
        lines = (self._answers / f"{name}.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)
