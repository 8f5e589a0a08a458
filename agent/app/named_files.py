"""Reads the files that the configuration names: the profile, the trust root, the tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from agent.app.config import AgentConfig
from agent.app.config_file import read_named
from agent.errors import ConfigError
from agent.ports import RecorderPort
from agent.trust.keeper import MetadataTrust
from agent.trust.roots import fleet_of
from wire.clock import Clock
from wire.errors import FleetError
from wire.profile import DeviceProfile, ProfileFile, profile_from_toml
from wire.settings_faults import plain_fault
from wire.trust.root import Trust, TrustRoot, trust_from_bytes

TRUST_FOLDER: Final = "trust"
"""In the state directory: what came of trusted metadata."""


def load_profile(config: AgentConfig) -> DeviceProfile:
    """Read the profile that a configuration names.

    Args:
        config: The configuration.

    Returns:
        The profile.

    Raises:
        ConfigError: It cannot be read or is not a profile.
    """
    content = read_named(config.profile, "profile")
    try:
        return profile_from_toml(content)
    except FleetError as exc:
        fault = plain_fault(exc.message, ProfileFile)
        raise ConfigError(f"{config.profile}: {fault}") from exc


def load_trust(config: AgentConfig, events: RecorderPort, clock: Clock) -> Trust:
    """Read the trust root that a configuration names.

    Args:
        config: The configuration.
        events: Takes what becomes of trusted metadata.
        clock: Wall time.

    Returns:
        Whom this device trusts: by trusted metadata if the file is the first root of that, else by
        the keys in it.

    Raises:
        ConfigError: It cannot be read or is not a trust root.
        StorageError: The state directory cannot be used.
    """
    content = read_named(config.trust, "trust root")
    if (fleet := fleet_of(content)) is not None:
        return MetadataTrust(
            config.trust,
            fleet,
            config.state_dir / TRUST_FOLDER,
            events,
            clock,
            grace_s=config.trust_grace_s,
        )
    try:
        return trust_from_bytes(content)
    except FleetError as exc:
        fault = plain_fault(exc.message, TrustRoot)
        raise ConfigError(
            f"{config.trust} is neither a root.json nor a trust.json: {fault}",
            remedy="name the fleet's root.json as `trust` in agent.toml",
        ) from exc


def load_token(config: AgentConfig) -> str | None:
    """Read the enrolment token.

    Args:
        config: The configuration.

    Returns:
        The token, or None if none is configured.

    Raises:
        ConfigError: The file is missing, cannot be read or holds no token.
    """
    if config.token_file is None:
        return None
    remedy = "write a token from `fleet token create` there, which the agent may read"
    return _token(config.token_file, "enrolment token", remedy)


def load_endpoint_token(config: AgentConfig) -> str | None:
    """Read the token that requests for inference must carry.

    Args:
        config: The configuration.

    Returns:
        The token, or None if none is configured.

    Raises:
        ConfigError: The file cannot be read, or holds no token.
    """
    if config.endpoint.token_file is None:
        return None
    return _token(config.endpoint.token_file, "endpoint token", "write one line of plain text")


def _token(path: Path, what: str, remedy: str) -> str:
    token = read_named(path, what, remedy).decode(errors="replace").strip()
    if not token or not token.isascii() or not token.isprintable():
        raise ConfigError(f"{path} holds no {what}", remedy=remedy)
    return token
