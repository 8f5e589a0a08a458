"""Puts a state of a disk into a directory."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.crash_states.states import Link, Tree


def materialise(tree: Tree, directory: Path) -> None:
    """Make a directory hold exactly a tree, in place of what it held."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for path, content in sorted(tree.items()):
        place = directory / path
        if content is None:
            place.mkdir(mode=0o700)
        elif isinstance(content, Link):
            place.symlink_to(content.to)
        else:
            place.write_bytes(content)
            place.chmod(0o600)
