"""A user's own function, named as `module:callable` or `path/to/file.py:callable`.

Rules:
- This module only reads the user's folders; it leaves no byte code there.
- A step's process imports only the function that the user named. The build's own process imports
  no code of the user.
- The cache key contains the hash of the function's file, but not of the modules that it imports.
  After a change in those, use another cache or change the function's file.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from packager.errors import BuildError
from packager.fault_text import typed_line


def is_callable(text: str) -> bool:
    """Tell whether a text names a function rather than a file."""
    return ":" in text and not Path(text).exists()


def callable_file(text: str) -> Path:
    """Return the file that holds a function, without importing it.

    Args:
        text: `module:callable`, with the module beside the working directory or installed, or
            `path/to/file.py:callable`.

    Returns:
        The absolute path of the file.

    Raises:
        BuildError: The text is of another form, or there is no such file.
    """
    place, _, name = text.rpartition(":")
    if not place or not all(part.isidentifier() for part in name.split(".")):
        raise BuildError(
            f"{text[:80]!r} does not name a function",
            remedy="write it as module:callable, or as path/to/file.py:callable",
        )
    path = Path(place) if place.endswith(".py") else Path(*place.split(".")).with_suffix(".py")
    if path.is_file():
        return path.resolve()
    package = path.with_suffix("") / "__init__.py"
    if package.is_file():
        return package.resolve()
    if not place.endswith(".py"):
        found = _installed(place)
        if found is not None:
            return found
    raise BuildError(
        f"there is no file for {text[:80]!r}",
        remedy="name a module of the working directory, an installed one, or a .py file",
    )


def plain_name(text: str) -> str:
    """Return a function's name without the folder of its file, as packages and reports show it.

    Args:
        text: What the user wrote.

    Returns:
        `module:callable` or `file.py:callable`.
    """
    place, colon, name = text.rpartition(":")
    return f"{Path(place).name}{colon}{name}"


def load_callable(file: Path, text: str) -> Callable[..., Any]:
    """Import a function.

    Args:
        file: What `callable_file` returned.
        text: What the user wrote.

    Returns:
        The function.

    Raises:
        BuildError: The file cannot be imported, or has no such function.
    """
    name = text.rpartition(":")[2]
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise BuildError(f"{file.name} is not a Python module")
    sys.path.insert(0, str(file.parent))  # so that it may import modules of the same folder
    sys.dont_write_bytecode = True  # the user's folders are only read
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
        found: Any = module
        for part in name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as exc:
        raise BuildError(
            f"{text[:80]!r} cannot be imported: {typed_line(exc)}",
            remedy="try it with Python, in the environment of `fleet`",
        ) from exc
    if not callable(found):
        raise BuildError(
            f"{text[:80]!r} is not a function", remedy="name a function as module:callable"
        )
    function: Callable[..., Any] = found
    return function


def _installed(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None
