"""What the bill of materials and the provenance of a package tell. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from packager.licences import Licence
from wire.package.manifest import Manifest


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A program or library that took part in a build."""

    name: str
    version: str
    purl: str
    """Its package URL."""

    licence: Licence = Licence()


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the user gave to a build."""

    role: str
    """Such as `source` or `evaluation`: no name or path of the user's is told."""

    sha256: str
    form: Literal["file", "folder", "function"] = "file"
    """What the digest is of: the file; the names and digests of a folder's files; or the file that
    holds a function."""

    function: str = ""
    """`module:callable` or `file.py:callable`, where it is one."""


class Making(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a build beside its result."""

    edgefleet: Tool
    code_sha256: str
    """Digest of the code that steps run."""

    machine: str
    given: tuple[Given, ...]
    """In the order of their roles."""

    tools: tuple[Tool, ...]
    """In the order of their names."""

    made_with: dict[str, tuple[str, ...]]
    """Variant to the names of the tools that made its files."""

    profiles: dict[str, str]
    """Profile to the SHA-256 of what `fleet profile show` prints of it."""

    parameters: dict[str, Any]
    """What the user asked for."""

    licence: Licence = Licence()
    """That of the model."""


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """A package that is about to be written, and how it was built."""

    manifest: Manifest
    digests: Mapping[str, str]
    """The SHA-256 of every other file, by its path in the package."""

    making: Making
