"""Finds out which runtimes this device has, without importing one.

The agent's supervisor does so when it starts. It must stay small, so this module asks Python's own
finders, and needs neither `importlib.util` nor the metadata of packages.

Rules:
- A runtime counts as installed if its module can be found. The golden test shows whether it works.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from runtime_adapters.runtimes import RUNTIMES


def installed_runtimes() -> tuple[str, ...]:
    """Return the names of the runtimes that this Python can import."""
    return tuple(s.name for s in RUNTIMES if not s.modules or any(map(_is_there, s.modules)))


def _is_there(module: str) -> bool:
    """Tell whether a module can be found; of a dotted name, each part inside the one before."""
    folders: Sequence[str] | None = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        specs = (finder.find_spec(name, folders) for finder in sys.meta_path)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None:
            return False
        folders = spec.submodule_search_locations
    return True
