"""Makes the authority of the devices' certificates in a directory that has none.

Rules:
- One that exists is never replaced: devices would have to come back all at once.
"""

from __future__ import annotations

from pathlib import Path

from controller.app.home import CONFIG_FILE
from controller.app.new_home import certificates_text
from controller.broker.certificates import make_authority
from controller.broker.errors import HomeError
from controller.certificate_settings import DeviceCertificatesConfig
from controller.config import load_config
from wire.files import PRIVATE, write_new


def add_authority(directory: Path) -> str:
    """Make the authority of the devices' certificates.

    Args:
        directory: The controller's data directory.

    Returns:
        What to write into `controller.toml`; empty if it has the table already.

    Raises:
        CertificateError: There is no `openssl`, or it failed.
        HomeError: There is an authority, or a file cannot be written.
        SettingsError: The settings cannot be read.
    """
    directory = directory.absolute()
    config = load_config(directory / CONFIG_FILE).device_certificates
    named = config or DeviceCertificatesConfig()
    ca_file, key_file = directory / named.ca_file, directory / named.key_file
    for path in (ca_file, key_file):
        if path.exists():
            raise HomeError(f"{path} exists already", remedy="use it as it is, or move it away")
    try:
        for path in (ca_file, key_file):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = make_authority(key_file.parent, "devices")
        # The key comes first: without it the authority would be of no use.
        write_new(key_file, authority.key, mode=PRIVATE)
        write_new(ca_file, authority.certificate, mode=PRIVATE)
    except OSError as exc:
        raise HomeError(
            f"cannot write {exc.filename}: {(exc.strerror or str(exc)).lower()}",
            remedy="run as the owner of the directory",
        ) from exc
    return "" if config else certificates_text(None).strip()
