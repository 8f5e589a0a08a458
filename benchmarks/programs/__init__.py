"""Programs that a benchmark runs in processes of their own, each by its path."""

from __future__ import annotations

from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent


def program(name: str) -> str:
    """Return the path of a program.

    Args:
        name: Its file without `.py`.

    Returns:
        The path, for the interpreter's command line.

    Raises:
        FileNotFoundError: There is none.
    """
    return str((HERE / f"{name}.py").resolve(strict=True))
