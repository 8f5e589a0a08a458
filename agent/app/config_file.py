"""Reads the agent's configuration: one TOML file.

```toml
device = "kiosk-17"
state_dir = "/var/lib/edgefleet"
profile = "/etc/edgefleet/profile.toml"
trust = "/etc/edgefleet/trust.json"
token_file = "/etc/edgefleet/token"

[broker]
host = "fleet.example.org"
port = 8883
ca_file = "/etc/edgefleet/ca.pem"

[endpoint]
port = 8500
```

Rules:
- An unknown key is refused: a misspelt limit must not become no limit.
- Relative paths are relative to the directory of the file, wherever the agent is started.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from agent.app.config import AgentConfig, serving_settings
from agent.app.config_faults import check_config
from agent.errors import ConfigError
from wire.codec import from_toml
from wire.errors import FleetError, TopicError
from wire.files import open_file
from wire.policy import Objective, PolicySpec, Sharing
from wire.settings_faults import no_such_setting, plain_fault
from wire.topics import checked_device

MAX_CONFIG_BYTES = 1024 * 1024


def load_config(path: Path) -> AgentConfig:
    """Read a configuration file.

    Args:
        path: Path of the file.

    Returns:
        The configuration, with absolute paths.

    Raises:
        ConfigError: It cannot be read, has an unknown or missing key, or an impossible value.
    """
    data = read_named(path, "configuration", "name the agent's file with --config FILE")
    try:
        values = from_toml(data, dict, limit_bytes=MAX_CONFIG_BYTES)
        config = msgspec.convert(values, AgentConfig, dec_hook=_path)
        _check_keys(values.get("policy", {}), PolicySpec, "policy")
        _check_keys(values.get("policy", {}).get("objective", {}), Objective, "policy.objective")
        _check_keys(values.get("policy", {}).get("sharing", {}), Sharing, "policy.sharing")
        serving_settings(config)
        checked_device(config.device)
    except (TopicError, ConfigError) as exc:
        raise ConfigError(f"{path}: {exc.message}", remedy=exc.remedy) from exc
    except (FleetError, msgspec.ValidationError) as exc:
        fault = plain_fault(str(exc), AgentConfig)
        raise ConfigError(f"{path}: {fault}", remedy="correct that line") from exc
    check_config(config, str(path))
    return _absolute(config, path.absolute().parent)


def read_named(path: Path, what: str, remedy: str = "check the path and the permissions") -> bytes:
    """Read a file that an operator named.

    Args:
        path: The file.
        what: What it is, for a fault.
        remedy: What to do if it cannot be read.

    Returns:
        Its content, at most a byte more than any such file may have.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        with open_file(path) as file:
            return file.read(MAX_CONFIG_BYTES + 1)
    except OSError as exc:
        raise ConfigError(
            f"cannot read the {what} {path}: {(exc.strerror or str(exc)).lower()}",
            remedy=remedy,
        ) from exc


def _path(kind: type, value: object) -> Path:
    """Make a path of a text; msgspec knows only plain types.

    Raises:
        ValueError: It is no path; msgspec adds the place in the file.
    """
    if kind is Path and isinstance(value, str) and value and "\0" not in value:
        return Path(value)
    raise ValueError("expected a path")


def _check_keys(values: dict[str, object], kind: type[msgspec.Struct], name: str) -> None:
    """Refuse keys that a table does not have: in a file they are misspelt; messages may have more.

    Raises:
        ConfigError: There is such a key.
    """
    strangers = sorted(set(values) - set(kind.__struct_fields__))
    if strangers:
        fault = no_such_setting(f"{name}.{strangers[0]}", AgentConfig)
        raise ConfigError(fault, remedy="correct that line")


def _absolute(config: AgentConfig, base: Path) -> AgentConfig:
    replace = msgspec.structs.replace

    def below(path: Path | None) -> Path | None:
        return None if path is None else base / path

    return replace(
        config,
        state_dir=base / config.state_dir,
        profile=base / config.profile,
        trust=base / config.trust,
        token_file=below(config.token_file),
        sysfs_root=base / config.sysfs_root,
        procfs_root=base / config.procfs_root,
        hooks=replace(config.hooks, directory=below(config.hooks.directory)),
        delivery=replace(config.delivery, ca_file=below(config.delivery.ca_file)),
        broker=replace(
            config.broker,
            ca_file=below(config.broker.ca_file),
            cert_file=below(config.broker.cert_file),
            key_file=below(config.broker.key_file),
        ),
        endpoint=replace(
            config.endpoint,
            unix_path=below(config.endpoint.unix_path),
            token_file=below(config.endpoint.token_file),
            cert_file=below(config.endpoint.cert_file),
            key_file=below(config.endpoint.key_file),
            client_ca_file=below(config.endpoint.client_ca_file),
            grpc=replace(config.endpoint.grpc, unix_path=below(config.endpoint.grpc.unix_path)),
        ),
    )
