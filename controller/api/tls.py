"""TLS for the HTTP API.

Rules:
- TLS 1.2 or newer.
- A certificate or key that cannot be used is one clear error before anything starts.
"""

from __future__ import annotations

import ssl

from controller.errors import SettingsError


def server_tls(cert_file: str, key_file: str) -> ssl.SSLContext:
    """Return what the API needs for TLS.

    Args:
        cert_file: The certificate and those up to its authority, PEM.
        key_file: Its private key, PEM, not encrypted.

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
            f"cannot use {cert_file} and {key_file} for the API's TLS: {reason}",
            remedy="let api.cert_file and api.key_file name a certificate and its unencrypted key",
        ) from exc
    return context
