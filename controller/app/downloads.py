"""Puts downloads together: the secret of the links, the places, the listener.

Rules:
- The secret is made when it is first needed, and only its owner can read it. Who loses it loses
  nothing but the links that are valid: devices ask for new ones.
"""

from __future__ import annotations

import configparser
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, assert_never

from controller.api.downloads import Downloads
from controller.api.protocol import DOWNLOADS, ConnectionLimits
from controller.api.server import HttpServer
from controller.api.tls import tls_of
from controller.config import ControllerConfig
from controller.delivery.links import SECRET_BYTES, Links
from controller.delivery.places import BucketPlace, CheckedPlace, OpenPlace, Place
from controller.delivery.presigned import Credentials
from controller.download_settings import (
    DownloadsConfig,
    LinkPlace,
    PlaceConfig,
    PlainPlace,
    S3Place,
)
from controller.errors import SettingsError, StorageError
from controller.named_files import read_small
from wire.clock import Clock
from wire.files import PRIVATE, write_atomic

SECRET_FILE: Final = "downloads.key"  # noqa: S105 - a file name
ACCOUNT_SECTION: Final = "default"
_SECRET: Final = re.compile(rb"[0-9a-f]{%d}\n?" % (2 * SECRET_BYTES))


class DownloadListener:
    """The download listener, and the places that devices are told of.

    Args:
        config: The settings.
        open_blob: Opens a blob by its digest.
        clock: Wall time.

    Raises:
        SettingsError: A file that the settings name is unusable, or TLS is missing.
        StorageError: The secret cannot be written.
        ListenError: The port is taken.
    """

    def __init__(
        self, config: ControllerConfig, open_blob: Callable[[str], BinaryIO], clock: Clock
    ) -> None:
        downloads = config.downloads
        self._server: HttpServer | None = None
        links = None
        if downloads.port is not None:
            tls = tls_of(downloads, DOWNLOADS)
            links = Links(link_secret(Path(config.data_dir) / SECRET_FILE))
            limits = ConnectionLimits(
                total=downloads.connections, per_client=downloads.connections_per_client
            )
            self._server = HttpServer(
                downloads.host, downloads.port, tls=tls, limits=limits, of=DOWNLOADS
            )
            self._app = Downloads(open_blob, links, clock, limits=limits)
        try:
            self.places = tuple(_places(downloads, links, self.address))
        except SettingsError:
            self.stop()
            raise

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port; None without a listener."""
        return None if self._server is None else (self._server.host, self._server.port)

    def start(self) -> None:
        """Begin to serve."""
        if self._server is not None:
            self._server.start(self._app)

    def stop_soon(self) -> None:
        """Begin to stop; returns at once."""
        if self._server is not None:
            self._server.stop_soon()

    def stop(self) -> None:
        """Let running requests finish for a bounded time, then close."""
        if self._server is not None:
            self._server.stop()


def link_secret(path: Path) -> bytes:
    """Return what signs links; make it if there is none.

    Args:
        path: Its file.

    Returns:
        The secret.

    Raises:
        SettingsError: There is another file.
        StorageError: It cannot be written.
    """
    if not path.exists():
        try:
            write_atomic(path, f"{secrets.token_hex(SECRET_BYTES)}\n".encode(), mode=PRIVATE)
        except OSError as exc:
            raise StorageError(
                f"cannot write the secret of links {path}: {(exc.strerror or str(exc)).lower()}",
                remedy="give the data directory to the user that runs the controller",
            ) from exc
    text = read_small(path, "the secret of links")
    if _SECRET.fullmatch(text) is None:
        raise SettingsError(
            f"{path} is not a secret of links",
            remedy="remove it: the controller makes a new one, and devices ask for new links",
        )
    return bytes.fromhex(text.decode())


def read_credentials(path: str) -> Credentials:
    """Return the account of an S3-compatible store.

    Args:
        path: A file in the form of `~/.aws/credentials`.

    Returns:
        What its section `default` holds.

    Raises:
        SettingsError: It cannot be read, or has no such section.
    """
    text = read_small(Path(path), "the account of a store")
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text.decode())
        account = dict(parser.items(ACCOUNT_SECTION))
        return Credentials(
            access_key=account["aws_access_key_id"],
            secret_key=account["aws_secret_access_key"],
            session_token=account.get("aws_session_token", ""),
        )
    except (UnicodeDecodeError, configparser.Error, KeyError) as exc:
        # Their own words may hold a line of the file, and so a secret.
        raise SettingsError(
            f"{path} does not name an account ({type(exc).__name__})",
            remedy=f"write aws_access_key_id and aws_secret_access_key below [{ACCOUNT_SECTION}], "
            "each as NAME = VALUE",
        ) from None


def _places(
    config: DownloadsConfig, links: Links | None, address: tuple[str, int] | None
) -> list[Place]:
    """Return the places in the order of preference: the listener comes last.

    Raises:
        SettingsError: The account of a bucket cannot be read.
    """
    places = [_place(place, links) for place in config.places]
    if links is not None and address is not None:
        host, port = address
        scheme = "http" if config.cert_file is None else "https"
        own = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        places.append(CheckedPlace(config.public_url or own, links))
    return places


def _place(config: PlaceConfig, links: Links | None) -> Place:
    """Return one place.

    Raises:
        SettingsError: Its account cannot be read.
    """
    match config:
        case LinkPlace():
            if links is None:
                raise SettingsError(
                    'downloads.places of kind "link" need downloads.port',
                    remedy="set downloads.port in controller.toml",
                )
            return CheckedPlace(config.url, links)
        case S3Place():
            account = read_credentials(config.credentials_file)
            return BucketPlace(config.url, config.prefix, config.region, account)
        case PlainPlace():
            return OpenPlace(config.url)
        case _:
            assert_never(config)
