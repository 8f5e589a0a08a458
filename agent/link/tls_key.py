"""The key with which this device speaks TLS, and its certificate: made with the program `openssl`.

Rules:
- The key never leaves the device: it lies in a file that only the agent can read, or the
  configuration names a file that stands for a key in a TPM or a token, by OpenSSL's providers.
- The certificate is written in one step, and only if it belongs to the key.
- Only asking for a certificate needs the program. It makes requests for keys of every provider; a
  library that can do that takes a device 16 MB.
"""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from agent.errors import CertificateError, storage_faults
from wire.files import write_atomic

TLS_KEY_FILE: Final = "tls.key"
CERTIFICATE_FILE: Final = "tls.pem"
TIMEOUT_S: Final = 60.0
"""A TPM signs within a second; a slow processor makes a key within less."""

NEW_KEY: Final = ("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
# Who asks stands in the request to enrol: the controller writes the name into the certificate.
REQUEST: Final = ("req", "-new", "-sha256", "-subj", "/CN=edgefleet device", "-batch")
INSTALL: Final = "install it: apt install openssl"


class TlsKey:
    """The key, and the certificate beside it.

    Args:
        directory: Where both are kept.
        key_file: A key that exists; None for one of the agent's own, which it makes.
    """

    def __init__(self, directory: Path, key_file: Path | None = None) -> None:
        self.key_file = key_file or directory / TLS_KEY_FILE
        self.cert_file = directory / CERTIFICATE_FILE
        self._is_own = key_file is None

    def request(self) -> str:
        """Return a certificate signing request, PEM; makes the key if there is none.

        Raises:
            CertificateError: There is no `openssl`, or it failed.
            StorageError: The key cannot be written.
        """
        if self._is_own and not self.key_file.exists():
            made = _openssl(*NEW_KEY)
            with storage_faults("cannot store the key for TLS"):
                write_atomic(self.key_file, made)
        # With -key the program asks for nothing: a PIN stands in OpenSSL's configuration.
        return _openssl(*REQUEST, "-key", str(self.key_file)).decode("ascii")

    def save(self, pem: str) -> None:
        """Keep a certificate, in place of an earlier one.

        Args:
            pem: The certificate.

        Raises:
            CertificateError: It is not of this key, or the key cannot be used.
            StorageError: It cannot be written.
        """
        with storage_faults("cannot store the certificate"):
            # Only a file can be tried. It is beside the other, on the same disk.
            with tempfile.NamedTemporaryFile(dir=self.cert_file.parent) as tried:
                tried.write(pem.encode())
                tried.flush()
                self._try(Path(tried.name))
            write_atomic(self.cert_file, pem.encode())

    def _try(self, cert_file: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            # Without a password OpenSSL asks for one on the terminal.
            context.load_cert_chain(cert_file, self.key_file, password="")
        except ssl.SSLError as exc:
            raise CertificateError(
                f"the certificate that the controller sent is not of the key {self.key_file}",
                remedy="look whether the agent can use that key",
            ) from exc


def _openssl(*arguments: str) -> bytes:
    """Run the program; return what it writes.

    Raises:
        CertificateError: There is none, or it failed.
    """
    program = shutil.which("openssl")
    if program is None:
        raise CertificateError("the program openssl is not on this device", remedy=INSTALL)
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, check=False, timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL, umask=0o077, env=os.environ | {"LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise CertificateError(f"openssl cannot be run: {exc}", remedy=INSTALL) from exc
    if done.returncode != 0:
        text = done.stderr.decode(errors="replace")
        # Its own words come first, before those of the library, which name its source files.
        said = [line for line in text.splitlines() if line and ":error:" not in line]
        raise CertificateError(
            f"openssl asked for no certificate: {said[0] if said else 'no reason'}",
            remedy="look whether the agent can use the key that broker.key_file names",
        )
    return done.stdout
