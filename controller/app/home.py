"""The controller's data directory, as every command finds it; `controller.app.new_home` makes it.

```
my-fleet/
  controller.toml              where everything is; the only file for people to edit
  api.token                    secret of the HTTP API
  broker.password              secret of the controller's own broker account
  downloads.key                secret that signs links to blobs, made at its first use
  root.json                    the first root of trusted metadata, to be installed on the devices
  trust.json                   public keys, for those that know no trusted metadata
  ca.pem                       authority of the broker's certificate, to be installed on the devices
  keys/director.key            signs desired states
  keys/snapshot.key            signs which lists of releases belong together
  keys/timestamp.key           signs that they still do
  metadata/                    trusted metadata: who may sign what, and which releases there are
  keys/devices-ca.key          signs the devices' certificates
  keys/devices-ca.pem          authority of the devices' certificates, for the broker
  broker/dynamic-security.json accounts of a local broker
  broker/server.pem            certificate of a local broker, with its key
  controller.db                the database, unless `database_url` names another
  blobs/                       content of published packages
my-fleet-offline/
  release.key                  signs packages and lists them: belongs to the machine that builds
  root-1.key ... root-3.key    two of them sign who may sign the rest; belong to three places
  targets.key                  signs who may order and list: needed when such a key changes
  ca.key                       signs the broker's certificate: needed to renew it
```

Rules:
- Nothing that runs reads the offline directory: who takes over the controller cannot sign a
  package.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from controller.config import connectable, load_config

CONFIG_FILE = "controller.toml"
DATABASE_FILE = "controller.db"
BROKER_FOLDER = "broker"
CA_FILE = "ca.pem"
TRUST_FILE = "trust.json"
ROOT_FILE = "root.json"
PUBLIC_FILES = (CA_FILE, TRUST_FILE, ROOT_FILE)
"""What devices get. Everybody may read it, so that a copy that root makes can be read there."""

CA_KEY_FILE = "ca.key"
RELEASE_KEY_FILE = "release.key"
TARGETS_KEY_FILE = "targets.key"
ROOT_KEY_FILES = ("root-1.key", "root-2.key", "root-3.key")
DIRECTOR_KEY_FILE = "keys/director.key"
SNAPSHOT_KEY_FILE = "keys/snapshot.key"
TIMESTAMP_KEY_FILE = "keys/timestamp.key"


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeAddresses:
    """The address of a data directory's API, as other programs need it."""

    api_url: str
    token_file: Path
    ca_file: Path | None
    """Authority of the API's certificate; None for those of the system."""

    clear_text: bool
    """Whether the token may go to another machine without TLS."""


def read_home(directory: Path) -> HomeAddresses:
    """Read the address of a data directory's API.

    Args:
        directory: As `fleet init` made it.

    Returns:
        The address, and where its token is.

    Raises:
        SettingsError: Its `controller.toml` is missing or cannot be understood.
    """
    config = load_config(directory / CONFIG_FILE)
    api = config.api
    host = connectable(api.host)
    scheme = "http" if api.cert_file is None else "https"
    return HomeAddresses(
        api_url=f"{scheme}://{f'[{host}]' if ':' in host else host}:{api.port}",
        token_file=Path(api.token_file),
        ca_file=None if api.ca_file is None else Path(api.ca_file),
        clear_text=api.clear_text,
    )


def offline_directory(directory: Path) -> Path:
    """Return where the keys are made that a controller does not need.

    Args:
        directory: The controller's data directory.

    Returns:
        A directory beside it.
    """
    home = directory.absolute()
    return home.parent / f"{home.name}-offline"


def inside(home: Path, path: str | Path) -> Path | None:
    """Return where a path lies in a data directory; links and `..` are followed.

    Args:
        home: The data directory; it need not exist.
        path: An absolute path.

    Returns:
        The path relative to the directory, or None when it lies outside.
    """
    real, top = Path(os.path.realpath(path)), Path(os.path.realpath(home))
    return real.relative_to(top) if real.is_relative_to(top) else None
