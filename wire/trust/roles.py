"""The roles of trusted metadata (TUF), for those who sign it and those who check it. Pure.

The roles are those of The Update Framework. Beside its four, `targets` delegates two kinds:

```
root        who may sign root, targets, snapshot and timestamp
targets     who may sign desired states (director) and lists of releases
director    signs desired states; it has no metadata file of its own
releases    lists the releases of every model that has no role of its own
NAME        lists the releases of the model NAME alone, if it has a role of its own
snapshot    the versions of all lists
timestamp   the version of the snapshot; expires soon, so that a freeze is seen
```

Rules:
- A release is a target with the path `NAME/VERSION`. Its content is the index of the package, so
  its SHA-256 is the digest of the package.

Source:
    The Update Framework Specification 1.0.34, sections 3 and 4.
"""

from __future__ import annotations

import re
from typing import Final

ROOT: Final = "root"
TARGETS: Final = "targets"
SNAPSHOT: Final = "snapshot"
TIMESTAMP: Final = "timestamp"
TOP_LEVEL: Final = (ROOT, TARGETS, SNAPSHOT, TIMESTAMP)

DIRECTOR: Final = "director"
DIRECTOR_PATHS: Final = "DESIRED/*"
"""The name space of desired states, which are signed, but are no targets. No name of a release has
capitals."""

RELEASES: Final = "releases"
ALL_RELEASES: Final = "*/*"
RESERVED: Final = frozenset({*TOP_LEVEL, DIRECTOR, RELEASES})
"""Names that no role of a model can have."""

FLEET_FIELD: Final = "x-edgefleet-fleet"
"""Field of the root with 32 hexadecimal digits, the same in all its versions: which fleet it is."""

ISSUED_FIELD: Final = "x-edgefleet-issued-s"
"""Field of the timestamp with whole seconds since 1970: it was not signed before then."""

ED25519: Final = "ed25519"
"""The only kind of keys that sign desired states: what checks them is small."""

_NOT_LISTS: Final = frozenset({*TOP_LEVEL, DIRECTOR})
_ROLE: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def target_path(name: str, version: str) -> str:
    """Return the path of the target that a release is."""
    return f"{name}/{version}"


def role_paths(role: str) -> str:
    """Return the pattern of the paths that a role which `targets` delegates to may vouch for."""
    return {DIRECTOR: DIRECTOR_PATHS, RELEASES: ALL_RELEASES}.get(role, f"{role}/*")


def is_role(name: str) -> bool:
    """Tell whether a text can be the name of a role that lists releases.

    It is then safe in a file name, and its files have other names than those of the top roles.
    """
    return _ROLE.fullmatch(name) is not None and name.rpartition(".")[2] not in _NOT_LISTS
