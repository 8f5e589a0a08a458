"""The key for TLS: made once, private, and no certificate of another key takes its place."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from agent.errors import CertificateError, StorageError
from agent.link.tls_key import CERTIFICATE_FILE, TLS_KEY_FILE, TlsKey


def signed(directory: Path, request: str) -> str:
    """Return a certificate for a request, signed by some authority."""
    (directory / "csr").write_text(request)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-subj", "/CN=some", "-keyout", directory / "ca.key", "-out", directory / "ca"],
        check=True, capture_output=True,
    )  # fmt: skip
    return subprocess.run(
        ["openssl", "x509", "-req", "-in", directory / "csr", "-CA", directory / "ca",
         "-CAkey", directory / "ca.key", "-set_serial", "1", "-days", "1"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip


def test_the_key_is_made_once_and_is_for_the_agent_alone(tmp_path: Path) -> None:
    key = TlsKey(tmp_path)
    assert not (tmp_path / TLS_KEY_FILE).exists(), "none is made before it is needed"
    key.request()
    made = (tmp_path / TLS_KEY_FILE).read_bytes()
    assert stat.S_IMODE((tmp_path / TLS_KEY_FILE).stat().st_mode) == 0o600
    TlsKey(tmp_path).request()
    assert (tmp_path / TLS_KEY_FILE).read_bytes() == made


def test_a_request_is_signed_by_the_key_and_holds_no_secret(tmp_path: Path) -> None:
    (tmp_path / "csr").write_text(TlsKey(tmp_path).request())
    done = subprocess.run(
        ["openssl", "req", "-in", tmp_path / "csr", "-noout", "-verify", "-text"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert "verify OK" in done.stdout + done.stderr
    assert "NIST CURVE: P-256" in done.stdout
    assert "PRIVATE" not in (tmp_path / "csr").read_text()


def test_a_certificate_of_the_key_is_kept(tmp_path: Path) -> None:
    key = TlsKey(tmp_path)
    pem = signed(tmp_path, key.request())
    key.save(pem)
    assert (tmp_path / CERTIFICATE_FILE).read_text() == pem


@pytest.mark.parametrize("which", ["another key", "no certificate", "nothing"])
def test_what_does_not_belong_to_the_key_is_refused_and_changes_nothing(
    tmp_path: Path, which: str
) -> None:
    (tmp_path / "other").mkdir()
    key, other = TlsKey(tmp_path), TlsKey(tmp_path / "other")
    good = signed(tmp_path, key.request())
    key.save(good)
    bad = {"another key": signed(tmp_path, other.request()), "no certificate": "x", "nothing": ""}
    with pytest.raises(CertificateError, match=r"is not of the key"):
        key.save(bad[which])
    assert (tmp_path / CERTIFICATE_FILE).read_text() == good


def test_a_key_that_the_configuration_names_is_used_and_never_made(tmp_path: Path) -> None:
    own = tmp_path / "own.key"
    key = TlsKey(tmp_path, own)
    with pytest.raises(CertificateError, match=r"broker\.key_file"):
        key.request()
    assert not own.exists()
    (tmp_path / "x").mkdir()
    TlsKey(tmp_path / "x").request()
    own.write_bytes((tmp_path / "x" / TLS_KEY_FILE).read_bytes())
    key.save(signed(tmp_path, key.request()))
    assert not (tmp_path / TLS_KEY_FILE).exists()


def test_an_encrypted_key_is_refused_and_asks_nobody(tmp_path: Path) -> None:
    own = tmp_path / "own.key"
    subprocess.run(
        ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-aes256", "-pass", "pass:secret", "-out", own],
        check=True, capture_output=True,
    )  # fmt: skip
    with pytest.raises(CertificateError):
        TlsKey(tmp_path, own).request()


def test_a_device_without_the_program_is_told_what_to_install(tmp_path: Path) -> None:
    path = os.environ["PATH"]
    os.environ["PATH"] = str(tmp_path)
    try:
        with pytest.raises(CertificateError) as caught:
            TlsKey(tmp_path).request()
    finally:
        os.environ["PATH"] = path
    assert str(caught.value) == (
        "the program openssl is not on this device; install it: apt install openssl"
    )


def test_a_state_directory_that_cannot_be_written_is_a_fault_of_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        TlsKey(tmp_path / "missing").request()
