"""The names of keys in trusted metadata: digests of the keys. Pure.

TUF leaves the name of a key to whoever writes the metadata. Here it is bound to the key, so people
who compare names compare keys.

Source:
    The Update Framework Specification 1.0.34, section 4.2 (KEYID), and the canonical JSON of OLPC.
"""

from __future__ import annotations

from collections.abc import Mapping

from wire.codec import sha256_hex
from wire.trust.envelope import keyid_of
from wire.trust.roles import ED25519


def key_names(key: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names that a key may have; none if it is no key.

    Args:
        key: As it stands in metadata: its kind, its scheme, its value, and whatever else.

    Returns:
        64 hexadecimal digits each: for an Ed25519 key first the name that it has in envelopes, and
        for each key those that tools for TUF give it, without and with other fields.
    """
    keyval = key.get("keyval")
    if not isinstance(keyval, Mapping) or not isinstance(keyval.get("public"), str):
        return ()
    plain = {name: key.get(name) for name in ("keytype", "keyval", "scheme")}
    try:
        texts = (_canonical(plain).encode(), _canonical(key).encode())
    except (RecursionError, UnicodeEncodeError):  # nested without end, or no text at all
        return ()
    common = tuple(dict.fromkeys(map(sha256_hex, texts)))
    if key.get("keytype") != ED25519:
        return common
    try:
        return keyid_of(bytes.fromhex(keyval["public"])), *common
    except ValueError:
        return ()


def _canonical(value: object) -> str:
    r"""Return a value as canonical JSON: sorted, without spaces, and only `"` and `\` marked."""
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, Mapping):
        members = (f"{_canonical(name)}:{_canonical(value[name])}" for name in sorted(value))
        return f"{{{','.join(members)}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_canonical, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)
