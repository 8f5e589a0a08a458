"""What the URL of a database says about the file of an SQLite database.

Rules:
- A relative path begins at the directory of the settings, wherever the URL was given.
"""

from __future__ import annotations

import os
from pathlib import Path

from controller.errors import SettingsError


def sqlite_path(url: str) -> Path | None:
    """Return the path of the SQLite file that a database URL names; None for another database.

    Args:
        url: An SQLAlchemy URL.
    """
    scheme, separator, rest = url.partition(":///")
    path = rest.partition("?")[0]
    is_file = separator and scheme.partition("+")[0] == "sqlite" and path not in {"", ":memory:"}
    return Path(path) if is_file else None


def absolute_url(url: str, base: Path) -> str:
    """Return a database URL in which the path of an SQLite file is whole, without links and `..`.

    SQLAlchemy would take `..` from the text of a path, and miss what a link leads to.

    Args:
        url: As settings or a command line give it.
        base: The directory of the settings; a relative path begins there.

    Returns:
        The same for another database.

    Raises:
        SettingsError: No URL can hold the path.
    """
    path = sqlite_path(url)
    if path is None:
        return url
    whole = os.path.realpath(base / path)
    if "?" in whole:
        raise SettingsError(
            f"{whole} has a question mark, which the URL of a database cannot hold",
            remedy="choose another directory",
        )
    head, _, rest = url.partition(":///")
    _, mark, options = rest.partition("?")
    return f"{head}:///{whole}{mark}{options}"
