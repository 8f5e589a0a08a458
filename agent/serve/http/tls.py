"""TLS for the inference endpoint, and the certificates that its clients have to show.

Rules:
- TLS 1.2 or newer.
- If an authority for clients is set, only clients with a certificate from it get an answer.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from agent.serve.errors import EndpointError


def server_tls(cert_file: Path, key_file: Path, client_ca_file: Path | None) -> ssl.SSLContext:
    """Return what the endpoint needs for TLS.

    Args:
        cert_file: The endpoint's certificate and those up to its authority, PEM.
        key_file: Its private key, PEM, not encrypted.
        client_ca_file: Authorities of the clients' certificates, PEM; None asks for none.

    Returns:
        The context.

    Raises:
        EndpointError: A file cannot be read, or is not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # asks clients for no certificate yet
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    reading = cert_file
    try:
        # Without a password OpenSSL asks for one on the terminal, and the agent would hang.
        context.load_cert_chain(cert_file, key_file, password="")
        if client_ca_file is not None:
            reading = client_ca_file
            context.load_verify_locations(client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as exc:
        reason = "not the PEM data that belongs there"  # OpenSSL's own words name its source files
        if not isinstance(exc, ssl.SSLError):
            reason = (exc.strerror or str(exc)).lower()
        raise EndpointError(
            f"cannot use {reading.name} for TLS: {reason}",
            remedy="name PEM files that can be read: certificate, unencrypted key, authority",
        ) from exc
    return context
