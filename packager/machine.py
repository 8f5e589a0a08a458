"""Which machine this is and which packages it has: what measured figures and cache keys depend on.

Rules:
- No tool is imported to ask for its version.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from runtime_adapters.processor import CPUINFO, kernel_fields

_SOURCES: Final = frozenset({".py", ".c", ".lock"})


def machine_name(cpuinfo: Path = CPUINFO) -> str:
    """Return the architecture and the processor's name, such as `x86_64 Intel(R) N100`."""
    architecture = os.uname().machine
    fields = kernel_fields(cpuinfo)
    name = fields.get("model name") or fields.get("Model") or ""
    return f"{architecture} {name or platform.processor() or 'unknown processor'}"


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those Python packages that are installed, by name."""
    found: dict[str, str] = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def code_digest() -> str:
    """Return the digest of the code that steps run: a changed step makes a new result."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for folder in ("packager", "runtime_adapters", "wire"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in _SOURCES:
                name = path.relative_to(root).as_posix()
                digest.update(f"{name}\n".encode() + path.read_bytes())
    return digest.hexdigest()
