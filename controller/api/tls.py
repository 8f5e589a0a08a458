"""TLS for the HTTP servers of the controller.

Rules:
- TLS 1.2 or newer.
- What other machines reach has TLS, or does not start; unless the operator asks for clear text.
- A certificate or key that cannot be used is one clear error before anything starts.
"""

from __future__ import annotations

import ssl

from controller.api.protocol import API, Served
from controller.api_settings import ApiConfig
from controller.download_settings import DownloadsConfig
from controller.errors import SettingsError
from wire.hosts import is_loopback


def tls_of(settings: ApiConfig | DownloadsConfig, of: Served) -> ssl.SSLContext | None:
    """Return the certificate and key of a server, or None if it has no TLS.

    Args:
        settings: Its settings.
        of: What it is called.

    Returns:
        The context, or None.

    Raises:
        SettingsError: A file cannot be read, or is not what it should be; or it needs TLS.
    """
    if settings.cert_file is None or settings.key_file is None:
        if not (settings.clear_text or is_loopback(settings.host)):
            raise SettingsError(
                f"{of.name} at {settings.host} has no TLS: "
                f"{of.risk} would cross the network in the clear",
                remedy=f"set {of.table}.cert_file and {of.table}.key_file in controller.toml; "
                f"behind a proxy with TLS, set {of.table}.clear_text = true",
            )
        return None
    return server_tls(settings.cert_file, settings.key_file, of)


def server_tls(cert_file: str, key_file: str, of: Served = API) -> ssl.SSLContext:
    """Return what a server needs for TLS.

    Args:
        cert_file: The certificate and those up to its authority, PEM.
        key_file: Its private key, PEM, not encrypted.
        of: What the server is called.

    Returns:
        The context.

    Raises:
        SettingsError: A file cannot be read, or is not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password OpenSSL asks for one on the terminal, and the controller would hang.
        context.load_cert_chain(cert_file, key_file, password="")
    except OSError as exc:
        # OpenSSL's own words name its source files.
        is_content = isinstance(exc, ssl.SSLError)
        reason = "not the PEM data that belongs there" if is_content else str(exc.strerror).lower()
        raise SettingsError(
            f"cannot use {cert_file} and {key_file} for the TLS of {of.name}: {reason}",
            remedy=f"let {of.table}.cert_file and {of.table}.key_file name a certificate and its "
            "unencrypted key",
        ) from exc
    return context
