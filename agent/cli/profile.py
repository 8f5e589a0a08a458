"""`fleet-agent profile detect`: describes this device as a profile.

It is the same description as that of `fleet profile detect`, in an environment that has only what
the agent needs.
"""

from __future__ import annotations

from pathlib import Path

from agent.errors import ConfigError
from runtime_adapters.machine import detect_profile
from wire.codec import to_builtins, to_pretty_json
from wire.files import remedy_of, write_new
from wire.profile import profile_to_toml


def describe(name: str, output: Path | None, *, as_json: bool) -> str:
    """Describe this device.

    Args:
        name: Name of the profile; empty for that of the board.
        output: A new file for the profile; None to return its text.
        as_json: Return JSON in place of TOML.

    Returns:
        What to print; it ends with a newline.

    Raises:
        ConfigError: The file exists or cannot be written.
        WireFormatError: This device cannot be described.
    """
    profile = detect_profile(name)
    if output is None:
        return (
            to_pretty_json(to_builtins(profile)).decode() if as_json else profile_to_toml(profile)
        )
    try:
        write_new(output, profile_to_toml(profile).encode())
    except FileExistsError as exc:
        raise ConfigError(f"{output} exists already", remedy="name another file") from exc
    except OSError as exc:
        raise ConfigError(
            f"cannot write {output}: {(exc.strerror or str(exc)).lower()}",
            remedy=remedy_of(exc, "name a file in a directory in which you may write"),
        ) from exc
    return f"wrote {output}\n"
