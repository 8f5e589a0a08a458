"""Keys that sign, in files and in a PKCS#11 token; what cannot be used is one line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from securesystemslib.signer import Signer

from packager.errors import KeyFileError
from packager.package.keys import generate_key
from packager.package.signers import (
    KINDS,
    generate_pem,
    open_public,
    open_signer,
    public_pem,
    sign_with,
)

LIBRARY = Path("/usr/lib/softhsm/libsofthsm2.so")


def nobody(what: str) -> str:
    raise AssertionError(f"asked for {what}")


def proves(signer: Signer) -> bool:
    signer.public_key.verify_signature(signer.sign(b"content"), b"content")
    return len(sign_with(signer, "x", b"content")) >= 64


def test_a_key_of_32_bytes_has_the_name_that_it_has_in_envelopes(tmp_path: Path) -> None:
    key = generate_key(tmp_path / "k")
    signer = open_signer(str(tmp_path / "k"), nobody)
    assert signer.public_key.keyid == key.keyid
    assert open_signer(f"file:{tmp_path / 'k'}", nobody).public_key == signer.public_key
    assert proves(signer)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("passphrase", ["", "correct horse"])
def test_a_pem_key_signs_with_its_passphrase(tmp_path: Path, kind: str, passphrase: str) -> None:
    path = tmp_path / "k.pem"
    public = generate_pem(path, kind, passphrase)
    signer = open_signer(str(path), lambda _what: passphrase)
    assert (signer.public_key, path.stat().st_mode & 0o777) == (public, 0o600)
    assert proves(signer)
    if passphrase:
        with pytest.raises(KeyFileError, match="cannot be used"):
            open_signer(str(path), lambda _what: "wrong")
    (tmp_path / "public.pem").write_bytes(public_pem(public))
    assert open_public(str(tmp_path / "public.pem"), nobody) == public
    with pytest.raises(KeyFileError, match="exists already"):
        generate_pem(path, kind, passphrase)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    generate_pem(tmp_path / "k.pem", "ecdsa", "")
    (tmp_path / "k.pem").chmod(0o640)
    with pytest.raises(KeyFileError, match="can be read by others") as caught:
        open_signer(str(tmp_path / "k.pem"), nobody)
    assert "chmod 600" in caught.value.remedy


@pytest.mark.parametrize("content", [b"", b"x" * 31, b"-----BEGIN PRIVATE KEY-----\nx\n"])
def test_what_is_no_key_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "k").write_bytes(content)
    (tmp_path / "k").chmod(0o600)
    with pytest.raises(KeyFileError) as caught:
        open_signer(str(tmp_path / "k"), nobody)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("where", ["awskms:x", "gcpkms:x", "azurekms:v/k"])
def test_a_service_without_its_software_names_the_extra(where: str) -> None:
    with pytest.raises(KeyFileError) as caught:
        open_signer(where, nobody)
    assert "pip install 'edgefleet[" in caught.value.remedy


@pytest.mark.skipif(not LIBRARY.exists(), reason="needs SoftHSM: apt-get install softhsm2")
class TestToken:
    """A key in a PKCS#11 token; SoftHSM stands for a real one."""

    @pytest.fixture(autouse=True)
    def token(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = tmp_path / "tokens"
        folder.mkdir()
        config = tmp_path / "softhsm2.conf"
        config.write_text(f"directories.tokendir = {folder}\nobjectstore.backend = file\n")
        monkeypatch.setenv("SOFTHSM2_CONF", str(config))
        monkeypatch.setenv("PYKCS11LIB", str(LIBRARY))
        tool = shutil.which("softhsm2-util")
        assert tool
        options = ("--label", "fleet", "--pin", "1234", "--so-pin", "123456")
        subprocess.run([tool, "--init-token", "--free", *options], check=True, capture_output=True)
        key = tmp_path / "token-key.pem"
        generate_pem(key, "ecdsa", "")
        named = ("--token", "fleet", "--pin", "1234", "--label", "k", "--id", "02")
        subprocess.run(
            [tool, "--import", str(key), *named], check=True, capture_output=True,
            env=os.environ,
        )  # fmt: skip

    # A process loads the library once, so each case is a process of its own.
    def test_it_signs_and_says_what_is_wrong(self, tmp_path: Path) -> None:
        script = tmp_path / "use.py"
        script.write_text(SCRIPT)
        done = subprocess.run(
            [sys.executable, str(script)], check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert done.stdout.splitlines() == [
            "signed ecdsa-sha2-nistp256",
            "wrong pin: does not sign",
            "wrong token: cannot be used",
            "wrong key: cannot be used",
        ], done.stderr


SCRIPT = """
from packager.errors import KeyFileError
from packager.package.signers import open_signer, sign_with

signer = open_signer("hsm:2?label=fleet", lambda what: "1234")
signer.public_key.verify_signature(signer.sign(b"content"), b"content")
print("signed", signer.public_key.scheme)
for name, where, pin in (
    ("pin", "hsm:2?label=fleet", "9999"),
    ("token", "hsm:2?label=other", "1234"),
    ("key", "hsm:7?label=fleet", "1234"),
):
    try:
        sign_with(open_signer(where, lambda what, pin=pin: pin), where, b"content")
    except KeyFileError as exc:
        assert "1234" not in str(exc) and "9999" not in str(exc)
        said = "does not sign" if "does not sign" in str(exc) else "cannot be used"
        print(f"wrong {name}: {said}")
"""
