"""Certificates for a day, made with the `openssl` command."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, kw_only=True)
class Certificate:
    cert_file: Path
    key_file: Path


class Authority:
    """Who signs certificates.

    Args:
        directory: Where the files go.
        name: Of the authority.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self.ca_file = directory / f"{name}.pem"
        self._key_file = directory / f"{name}.key"
        openssl(
            *("req", "-x509", *NEW_KEY, "-keyout", self._key_file, "-out", self.ca_file),
            *("-days", "1", "-subj", f"/CN={name}"),
        )

    def issue(self, name: str) -> Certificate:
        """Sign a certificate of 127.0.0.1."""
        stem = self._directory / f"{self._name}-{name}"
        request, extensions = stem.with_suffix(".csr"), stem.with_suffix(".ext")
        certificate = Certificate(
            cert_file=stem.with_suffix(".pem"), key_file=stem.with_suffix(".key")
        )
        extensions.write_text("subjectAltName=IP:127.0.0.1\n")
        openssl(
            *("req", "-new", *NEW_KEY, "-keyout", certificate.key_file, "-out", request),
            *("-subj", f"/CN={name}"),
        )
        openssl(
            *("x509", "-req", "-in", request, "-out", certificate.cert_file, "-days", "1"),
            *("-CA", self.ca_file, "-CAkey", self._key_file, "-CAcreateserial"),
            *("-extfile", extensions),
        )
        return certificate

    def client(self, certificate: Certificate | None) -> ssl.SSLContext:
        """Return what a client uses that believes this authority alone."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        if certificate is not None:
            context.load_cert_chain(certificate.cert_file, certificate.key_file)
        return context


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
