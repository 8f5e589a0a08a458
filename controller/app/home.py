"""The controller's data directory, as every command finds it; `controller.app.new_home` makes it.

```
controller.toml              where everything is; the only file for people to edit
api.token                    secret of the HTTP API
broker.password              secret of the controller's own broker account
trust.json                   public keys, to be installed on the devices
keys/release.key             signs packages; may be moved to the machine that builds
keys/director.key            signs desired states
broker/dynamic-security.json accounts of a local broker
blobs/                       content of published packages
```
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from controller.config import load_config

CONFIG_FILE = "controller.toml"
BROKER_FOLDER = "broker"
LISTEN_TO_CONNECT = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - looked up, not bound


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeAddresses:
    """The addresses of a data directory's servers, as other programs need them."""

    api_url: str
    token_file: Path
    ca_file: Path | None
    """Authority of the API's certificate; None for those of the system."""

    broker_host: str
    broker_port: int
    broker_directory: Path


def read_home(directory: Path) -> HomeAddresses:
    """Read the addresses of a data directory's servers.

    Args:
        directory: As `fleet init` made it.

    Returns:
        The addresses.

    Raises:
        SettingsError: Its `controller.toml` is missing or cannot be understood.
    """
    config = load_config(directory / CONFIG_FILE)
    api = config.api
    host = LISTEN_TO_CONNECT.get(api.host, api.host)
    scheme = "http" if api.cert_file is None else "https"
    return HomeAddresses(
        api_url=f"{scheme}://{f'[{host}]' if ':' in host else host}:{api.port}",
        token_file=Path(api.token_file),
        ca_file=None if api.ca_file is None else Path(api.ca_file),
        broker_host=config.broker.host,
        broker_port=config.broker.port,
        broker_directory=directory.absolute() / BROKER_FOLDER,
    )
