"""Device profiles as files: the shipped ones, and a user's own.

Rules:
- A profile is found by name among the shipped ones, or read from a path that ends in `.toml`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from packager.errors import ProfileError
from packager.files import read_bounded
from runtime_adapters.runtimes import REAL
from wire.codec import MAX_JSON_BYTES
from wire.errors import WireFormatError
from wire.files import write_new
from wire.profile import DeviceProfile, profile_from_toml, profile_to_toml

_FOLDER: Final = Path(__file__).resolve().parent / "profiles"
_RUNTIMES: Final = frozenset(spec.name for spec in REAL)
_ALIASES: Final = {"x86-vnni": "x86-64-vnni"}


def profile_names() -> tuple[str, ...]:
    """Return the names of the shipped profiles."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def load_profile(name: str) -> DeviceProfile:
    """Read a profile.

    Args:
        name: Name of a shipped profile, or the path of a `.toml` file.

    Returns:
        The profile.

    Raises:
        ProfileError: There is none, or it is not valid.
    """
    own = name.endswith(".toml") or os.sep in name
    name = _ALIASES.get(name, name)
    if not own and name not in profile_names():
        raise ProfileError(
            f"there is no profile {name[:80]!r}",
            remedy=f"use {', '.join(profile_names())}, or the path of a .toml file",
        )
    path = Path(name) if own else _FOLDER / f"{name}.toml"
    try:
        profile = profile_from_toml(read_bounded(path, MAX_JSON_BYTES, ProfileError))
    except WireFormatError as exc:
        raise ProfileError(
            f"{path}: {exc.message}", remedy=exc.remedy or "`fleet profile show rpi4` shows one"
        ) from exc
    unknown = sorted(set(profile.runtimes) - _RUNTIMES)
    if unknown:
        raise ProfileError(
            f"{path}: there is no runtime {unknown[0][:80]!r}",
            remedy=f"use {', '.join(sorted(_RUNTIMES))}",
        )
    return profile


def save_profile(profile: DeviceProfile, path: Path) -> None:
    """Write a profile as a new TOML file.

    Args:
        profile: The profile.
        path: The file; it must not exist.

    Raises:
        ProfileError: It exists or cannot be written.
    """
    try:
        write_new(path, profile_to_toml(profile).encode())
    except FileExistsError as exc:
        raise ProfileError(f"{path} exists already", remedy="name another file") from exc
    except OSError as exc:
        raise ProfileError(
            f"{path} cannot be written: {exc.strerror}", remedy="name a file in another directory"
        ) from exc
