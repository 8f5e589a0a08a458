"""Keys that sign, wherever they lie: in a file, in a PKCS#11 token, or at a key management service.

```
release.key                     32 secret bytes, or PKCS#8 as PEM, perhaps with a passphrase
hsm:2?label=fleet               a PKCS#11 token: the number of the key, the label of the token
awskms:KEY  gcpkms:KEY          a key management service, named as it names the key
azurekms:VAULT/KEY  hv:KEY
```

Rules:
- A key in a file that others can read is refused, as in `packager.package.keys`.
- What asks a token or a service is securesystemslib's; each needs its extra of this package.
- No secret byte is ever printed or put into an error.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from securesystemslib.exceptions import UnsupportedLibraryError
from securesystemslib.signer import (
    AWSSigner,
    AzureSigner,
    CryptoSigner,
    GCPSigner,
    HSMSigner,
    Key,
    Signer,
    SSlibKey,
    VaultSigner,
)

from packager.errors import KeyFileError
from packager.package.keys import NAME_A_KEY, check_private, read_key, write_key
from wire.trust.envelope import SEED_BYTES, keyid_of

MAX_KEY_BYTES: Final = 64 * 1024
KINDS: Final = ("ed25519", "ecdsa")
_PEM: Final = b"-----BEGIN "
_PUBLIC: Final = b"-----BEGIN PUBLIC KEY"
_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE"

PublicKey: TypeAlias = Key
"""The public half of a key."""

KeySigner: TypeAlias = Signer
"""What signs with a key that was opened."""

Secret = Callable[[str], str]
"""Returns the passphrase or PIN of a key; takes what is asked for, in words."""


def generate_pem(path: Path, kind: str, passphrase: str) -> SSlibKey:
    """Make a new key in a file of PEM.

    Args:
        path: The file to make; it must not exist.
        kind: One of `KINDS`; `ecdsa` is on the curve P-256.
        passphrase: Encrypts it; empty for none.

    Returns:
        Its public half.

    Raises:
        KeyFileError: The file exists or cannot be written.
    """
    key = (
        ed25519.Ed25519PrivateKey.generate()
        if kind == "ed25519"
        else ec.generate_private_key(ec.SECP256R1())
    )
    encryption = BestAvailableEncryption(passphrase.encode()) if passphrase else NoEncryption()
    content = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
    write_key(path, content)
    return _named(SSlibKey.from_crypto(key.public_key()))


def open_signer(where: str, secret: Secret) -> Signer:
    """Open a key that signs.

    Args:
        where: A path, or one of the forms above.
        secret: Asked for a passphrase or PIN, if the key needs one.

    Returns:
        What signs; its public key is `public_key`.

    Raises:
        KeyFileError: There is no such key, or it cannot be used.
    """
    scheme, _, rest = where.partition(":")
    finder = _SERVICES.get(scheme)
    if finder is None:
        return _from_file(Path(where.removeprefix("file:")), secret)
    try:
        return finder(where, rest, secret)
    except UnsupportedLibraryError as exc:
        raise KeyFileError(
            f"{where} needs software that is not installed",
            remedy=f"pip install 'edgefleet[{_EXTRAS[scheme]}]'",
        ) from exc
    except Exception as exc:  # each service has errors of its own
        raise KeyFileError(
            f"{where} cannot be used: {_line(exc)}", remedy=_HINTS.get(scheme, "check its name")
        ) from exc


def sign_with(signer: Signer, where: str, data: bytes) -> bytes:
    """Return a signature over bytes, raw as an envelope has it.

    Raises:
        KeyFileError: The token or service did not sign.
    """
    try:
        return bytes.fromhex(signer.sign(data).signature)
    except Exception as exc:
        raise KeyFileError(f"{where} does not sign: {_line(exc)}") from exc


def open_public(where: str, secret: Secret) -> Key:
    """Return the public half of a key.

    Args:
        where: As for `open_signer`, or a file with a public key as PEM.
        secret: As for `open_signer`.

    Returns:
        The public key.

    Raises:
        KeyFileError: There is no such key.
    """
    if where.partition(":")[0] not in _SERVICES:
        content = read_key(Path(where.removeprefix("file:")), MAX_KEY_BYTES)[0]
        if content.startswith(_PUBLIC):
            try:
                return _named(SSlibKey.from_crypto(load_pem_public_key(content)))
            except ValueError as exc:
                raise KeyFileError(f"{where} is no public key: {_line(exc)}") from exc
    return open_signer(where, secret).public_key


def public_pem(key: Key) -> bytes:
    """Return a public key as PEM."""
    public = str(key.keyval["public"])
    if key.keytype != "ed25519":
        return public.encode()
    raw = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
    return raw.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _from_file(path: Path, secret: Secret) -> Signer:
    content, mode = read_key(path, MAX_KEY_BYTES)
    if content.startswith(_PUBLIC):
        raise KeyFileError(
            f"{path} is the public half of a key", remedy="signing needs the private one"
        )
    is_pem = content.startswith(_PEM) and not content.startswith(_CERTIFICATE)
    if len(content) != SEED_BYTES and not is_pem:
        raise KeyFileError(f"{path} is not a signing key", remedy=NAME_A_KEY)
    check_private(path, mode)
    try:
        if len(content) == SEED_BYTES:
            key: Any = ed25519.Ed25519PrivateKey.from_private_bytes(content)
        else:
            is_locked = b"ENCRYPTED" in content.partition(b"\n")[0]
            key = load_pem_private_key(
                content, secret(f"passphrase of {path}").encode() if is_locked else None
            )
        return CryptoSigner(key, _named(SSlibKey.from_crypto(key.public_key())))
    except (ValueError, TypeError) as exc:
        raise KeyFileError(
            f"{path} cannot be used: {_line(exc)}", remedy="check its passphrase"
        ) from exc


def _named(key: SSlibKey) -> SSlibKey:
    """Give an Ed25519 key the name that it has in envelopes, too.

    Raises:
        ValueError: Devices do not check keys of that kind.
    """
    if key.keytype == "ed25519":
        key.keyid = keyid_of(bytes.fromhex(key.keyval["public"]))
    elif key.keytype not in KINDS:
        raise ValueError(f"a key of the kind {key.keytype}, which devices do not check")
    return key


def _hsm(where: str, rest: str, secret: Secret) -> Signer:
    number, _, query = rest.partition("?")
    label = query.removeprefix("label=") or None
    asked: dict[str, str] = {}

    def pin(_name: str) -> str:
        if not asked:
            asked["pin"] = secret(f"PIN of {where}")
        return asked["pin"]

    uri, key = HSMSigner.import_(int(number) if number else None, label, pin)
    return HSMSigner.from_priv_key_uri(uri, key, pin)


def _service(kind: Any) -> Callable[[str, str, Secret], Signer]:  # noqa: ANN401 - its classes share no import
    def find(_where: str, rest: str, _secret: Secret) -> Signer:
        uri, key = kind.import_(rest)
        found: Signer = kind.from_priv_key_uri(uri, key)
        return found

    return find


def _azure(_where: str, rest: str, _secret: Secret) -> Signer:
    vault, _, name = rest.partition("/")
    uri, key = AzureSigner.import_(vault, name)
    return AzureSigner.from_priv_key_uri(uri, key)


_SERVICES: Final[dict[str, Callable[[str, str, Secret], Signer]]] = {
    "hsm": _hsm,
    "awskms": _service(AWSSigner),
    "gcpkms": _service(GCPSigner),
    "azurekms": _azure,
    "hv": _service(VaultSigner),
}
_EXTRAS: Final = {
    "hsm": "hsm", "awskms": "awskms", "gcpkms": "gcpkms", "azurekms": "azurekms", "hv": "vault",
}  # fmt: skip
_HINTS: Final = {
    "hsm": "set PYKCS11LIB to the token's library, and name its key as hsm:NUMBER?label=TOKEN"
}


def _line(exc: Exception) -> str:
    return (str(exc) or type(exc).__name__).splitlines()[0][:200].lower()
