"""Where a broker is, with what it is trusted, and why it cannot be reached.

Rules:
- A fault is one line that names the address or the file, with what to do.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import msgspec

from wire.errors import TransportError

NO_TLS_REASONS = frozenset({
    "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF_WHILE_READING",
    "WRONG_VERSION_NUMBER",
})  # fmt: skip
"""OpenSSL's reasons when what answers is not TLS."""

CERTIFICATE_REMEDIES = {
    9: "set this machine's clock",
    10: "renew it with `fleet broker certificate`",
    62: "it must be made for that name: broker.names in controller.toml",
    64: "it must be made for that address: broker.names in controller.toml",
}
"""By OpenSSL's numbers: X509_V_ERR_CERT_NOT_YET_VALID, _CERT_HAS_EXPIRED, _HOSTNAME_MISMATCH,
_IP_ADDRESS_MISMATCH."""

CERTIFICATE_ALERTS = frozenset({
    "SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_CERTIFICATE_EXPIRED",
    "SSLV3_ALERT_CERTIFICATE_REVOKED", "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE", "TLSV1_ALERT_UNKNOWN_CA",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED",
})  # fmt: skip
"""OpenSSL's reasons when the broker refuses the certificate that a client shows, or that it shows
none."""

LOOK_AT_BROKER = "look whether it runs and the network is up"
LOOK_AT_SETTING = "whether the host and the port under [broker] are right"
OTHER_CERTIFICATE_REMEDY = "ca_file must be that broker's ca.pem"


class BrokerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the broker, and the certificates for TLS."""

    host: str = "127.0.0.1"
    port: int = 1883
    ca_file: str | None = None
    """PEM file of the authority that signed the broker's certificate; None means no TLS."""

    cert_file: str | None = None
    key_file: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def why_unreachable(fault: OSError, address: BrokerAddress) -> str:
    """Say in one line why no connection could be made.

    Args:
        fault: What was raised.
        address: To which.
    """
    if isinstance(fault, ssl.SSLCertVerificationError):
        reason = fault.verify_message.rstrip(".").lower()
        remedy = CERTIFICATE_REMEDIES.get(fault.verify_code, OTHER_CERTIFICATE_REMEDY)
        return f"the certificate of the broker at {address} is refused: {reason}; {remedy}"
    if is_certificate_refused(fault):
        return f"the broker at {address} refuses this side's certificate: {_alert(fault)}"
    is_no_tls = isinstance(fault, ssl.SSLError) and fault.reason in NO_TLS_REASONS
    if address.ca_file and (is_no_tls or isinstance(fault, ConnectionResetError)):
        return f"the broker at {address} does not speak TLS, for which ca_file asks"
    if isinstance(fault, ssl.SSLError):
        return f"TLS with the broker at {address} failed: {(fault.reason or str(fault)).lower()}"
    if isinstance(fault, socket.gaierror):
        return f"no address is known for the broker's name {address.host}; look {LOOK_AT_SETTING}"
    fact = (fault.strerror or str(fault)).lower()
    return f"no MQTT broker answers at {address}: {fact}; {LOOK_AT_BROKER}, and {LOOK_AT_SETTING}"


def is_certificate_refused(fault: OSError) -> bool:
    """Tell whether a broker refused the certificate of this side.

    Args:
        fault: What was raised.
    """
    return isinstance(fault, ssl.SSLError) and fault.reason in CERTIFICATE_ALERTS


def _alert(fault: OSError) -> str:
    """Return a broker's reason without OpenSSL's words around it."""
    reason = (isinstance(fault, ssl.SSLError) and fault.reason) or str(fault)
    return reason.partition("_ALERT_")[2].replace("_", " ").lower()


def tls_context(address: BrokerAddress) -> ssl.SSLContext:
    """Return with what a broker is trusted.

    Args:
        address: With a `ca_file`.

    Returns:
        The context of a client.

    Raises:
        TransportError: A file cannot be read or is none of a certificate.
    """
    try:
        context = ssl.create_default_context(cafile=address.ca_file)
        if address.cert_file is not None:
            # Without a password OpenSSL asks for one on the terminal.
            context.load_cert_chain(address.cert_file, address.key_file, password="")
    except (OSError, ssl.SSLError) as exc:
        files = [name for name in (address.ca_file, address.cert_file, address.key_file) if name]
        names = ", ".join(Path(name).name for name in files)
        raise TransportError(f"cannot use the TLS files {names}: {exc}") from exc
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
