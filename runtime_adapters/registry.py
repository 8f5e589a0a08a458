"""Finds the adapter of a runtime, and imports it on first use.

Rules:
- No runtime is imported before a caller asks for it by name.
- The adapter of a runtime in the table is `ADAPTER` in `runtime_adapters.<name>.adapter`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import cast

from runtime_adapters.errors import RuntimeUnavailableError
from runtime_adapters.protocol import Adapter, Limits, Session
from runtime_adapters.runtimes import BY_NAME
from wire.package.variant import VariantInfo


def get(name: str) -> Adapter:
    """Return the adapter of a runtime.

    Args:
        name: The runtime, as in `VariantInfo.runtime`.

    Returns:
        The adapter, whose runtime can be imported.

    Raises:
        RuntimeUnavailableError: There is no such adapter, or its runtime is not installed.
    """
    if name not in BY_NAME:
        raise RuntimeUnavailableError(
            f"there is no adapter for the runtime {name[:80]!r}",
            remedy=f"the known runtimes are {', '.join(BY_NAME)}",
        )
    try:
        module = importlib.import_module(f"runtime_adapters.{name}.adapter")
        return cast("Adapter", module.ADAPTER)
    except (ImportError, OSError) as exc:  # OSError: a shared library of the runtime is missing
        reason = (str(exc).splitlines() or [""])[0]
        raise RuntimeUnavailableError(
            f"the runtime {name} cannot be imported: {reason[:200]}",
            remedy=f"install it with: pip install 'edgefleet[{name}]'",
        ) from exc


def open_session(directory: Path, info: VariantInfo, limits: Limits) -> Session:
    """Load a variant with the runtime that it names.

    Args:
        directory: The variant's directory, whose files have been verified.
        info: The variant's declaration.
        limits: What the session may use.

    Returns:
        A session that is ready.

    Raises:
        RuntimeUnavailableError: The runtime is not installed.
        LoadError: The runtime does not take this model or these options.
    """
    return get(info.runtime).load(directory, info, limits)
