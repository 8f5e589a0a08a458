"""Which runtimes there are adapters for; each is imported on first use.

Rules:
- Nothing here imports a runtime before it is asked for by name.
- A new runtime is one module with an `ADAPTER` and one line in the table.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Final, cast

from runtime_adapters.errors import RuntimeUnavailableError
from runtime_adapters.protocol import Adapter, Limits, Session
from wire.package.manifest import VariantInfo

_MODULES: Final[dict[str, str]] = {
    "iree": "runtime_adapters.iree.adapter",
    "litert": "runtime_adapters.litert.adapter",
    "null": "runtime_adapters.null.adapter",
    "onnxruntime": "runtime_adapters.onnxruntime.adapter",
    "openvino": "runtime_adapters.openvino.adapter",
    "tvm": "runtime_adapters.tvm.adapter",
}
"""Runtime to the module that adapts it. A runtime's name is also that of the extra which installs
it."""


def names() -> tuple[str, ...]:
    """Return the names of all runtimes that there are adapters for, installed or not."""
    return tuple(_MODULES)


def get(name: str) -> Adapter:
    """Return the adapter of a runtime.

    Args:
        name: The runtime, as in `VariantInfo.runtime`.

    Returns:
        The adapter, whose runtime can be imported.

    Raises:
        RuntimeUnavailableError: There is no such adapter, or its runtime is not installed.
    """
    module = _MODULES.get(name)
    if module is None:
        raise RuntimeUnavailableError(
            f"there is no adapter for the runtime {name[:80]!r}",
            remedy=f"known are {', '.join(_MODULES)}",
        )
    try:
        return cast("Adapter", importlib.import_module(module).ADAPTER)
    except (ImportError, OSError) as exc:  # OSError: a shared library of the runtime is missing
        reason = (str(exc).splitlines() or [""])[0]
        raise RuntimeUnavailableError(
            f"the runtime {name} cannot be imported: {reason[:200]}",
            remedy=f"install it with: pip install 'edgefleet[{name}]'",
        ) from exc


def versions() -> dict[str, str]:
    """Return the version of every runtime that is installed here, by name; imports them all."""
    found: dict[str, str] = {}
    for name in _MODULES:
        try:
            found[name] = get(name).version()
        except RuntimeUnavailableError:
            continue
    return found


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
