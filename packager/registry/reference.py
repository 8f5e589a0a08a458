"""Reads references to packages in registries, as people type them. Pure.

```
oci://registry.example:5000/team/detector:1.2.0@sha256:<64 hex digits>
```

Rules:
- A fault does not repeat the text: somebody may have typed a password into it.

Source:
    OCI distribution spec 1.1, "Pulling manifests": the names of repositories and tags.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from packager.errors import RegistryError

SCHEME: Final = "oci://"
FORM: Final = "oci://HOST/REPOSITORY:TAG"
MAX_CHARS: Final = 512
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE: Final = re.compile(
    r"oci://(?P<host>(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?)"
    rf"/(?P<repository>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


class Reference(NamedTuple):
    """Where a package lies in a registry."""

    host: str
    """Its name or address, perhaps with a port."""

    repository: str
    tag: str = ""
    digest: str = ""
    """Of the manifest, `sha256:<64 hex digits>`; empty if any will do."""

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{SCHEME}{self.host}/{self.repository}{tag}{digest}"


def parse_reference(text: str) -> Reference:
    """Read a reference.

    Args:
        text: As it was typed.

    Returns:
        The reference.

    Raises:
        RegistryError: It has another form.
    """
    found = _REFERENCE.fullmatch(text) if len(text) <= MAX_CHARS else None
    if found is not None:
        return Reference(
            found["host"], found["repository"], found["tag"] or "", found["digest"] or ""
        )
    if "@" in text.removeprefix(SCHEME).partition("/")[0]:
        raise RegistryError(
            "a reference holds no user and no password",
            remedy="log in with `docker login` or `skopeo login`; fleet reads what they keep",
        )
    raise RegistryError(
        "that is not a reference to a package in a registry",
        remedy=f"write {FORM} or {FORM}@sha256:DIGEST, the repository in lower case",
    )
