"""Reads the files that the configuration names: the profile, the trust root, the tokens."""

from __future__ import annotations

from pathlib import Path

from agent.app.config import AgentConfig, read_named
from agent.errors import ConfigError
from wire.errors import FleetError
from wire.profile import DeviceProfile, ProfileFile, profile_from_toml
from wire.settings_faults import plain_fault
from wire.trust.root import TrustRoot, trust_from_bytes


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


def load_trust(config: AgentConfig) -> TrustRoot:
    """Read the trust root that a configuration names.

    Args:
        config: The configuration.

    Returns:
        The keys that this device trusts.

    Raises:
        ConfigError: It cannot be read or is not a trust root.
    """
    content = read_named(config.trust, "trust root")
    try:
        return trust_from_bytes(content)
    except FleetError as exc:
        fault = plain_fault(exc.message, TrustRoot)
        raise ConfigError(f"{config.trust}: {fault}") from exc


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
