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


def key_names(keytype: str, scheme: str, keyval: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names that a key may have; none if it is no key.

    Args:
        keytype: The kind of the key, such as `ed25519`.
        scheme: How it signs.
        keyval: The public key: texts by name.

    Returns:
        64 hexadecimal digits each: for an Ed25519 key the name that it has in envelopes, and for
        each key the one that tools for TUF give it.
    """
    values = {name: value for name, value in keyval.items() if isinstance(value, str)}
    if len(values) != len(keyval) or "public" not in values:
        return ()
    members = ",".join(f"{_text(name)}:{_text(values[name])}" for name in sorted(values))
    key = f'{{"keytype":{_text(keytype)},"keyval":{{{members}}},"scheme":{_text(scheme)}}}'
    common = sha256_hex(key.encode())
    if keytype != ED25519:
        return (common,)
    try:
        return keyid_of(bytes.fromhex(values["public"])), common
    except ValueError:
        return ()


def _text(text: str) -> str:
    r"""Return a text in canonical JSON, which marks `"` and `\` alone."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
