"""What may lie on a device: at the moment of a power cut, and when it has come to rest. Reads only.

Rules:
- Files are compared with the bytes that were signed, by this benchmark and not by the product.
- At any moment: all below `packages` is whole and as signed, what serves after a restart is among
  it, files that have their place below `incoming` are as signed, and the record can be read.
- At rest: what lies there is what lies on a device that never lost its power, name by name, with
  the package that serves and the one before it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from agent.app.learnt_file import FILE as LEARNT_FILE
from agent.install.records import AgentState, ModelRecord, StoredState
from agent.install.scrub.scrubber import FILE as SCRUB_FILE
from agent.install.store import MAX_STATE_BYTES, STATE_FILE
from agent.sealed import unseal
from benchmarks.powercuts.releases import NAME, Releases
from tests.simulators.packages import SignedPackage
from wire.errors import FleetError
from wire.package.index import ENVELOPE_FILE, is_digest

IN_TIME: Final = frozenset({SCRUB_FILE, LEARNT_FILE})
"""What a device writes when it has run for long enough, which not every one here has."""

PACKAGES: Final = "packages"
INCOMING: Final = "incoming"
SLOT: Final = f"serving/{NAME}"
MORE_BYTES: Final = 4096
"""By so much a file that is no package's may be larger than on a device without power cuts, such as
the record of the last install."""

SPOOL: Final = "telemetry.db"
SPOOL_BYTES: Final = 5 * 1024 * 1024
"""Largest size of the spool and its log on any device that runs: SQLite writes the log of 1000
pages, which are 4 MB, before it begins again from its start."""


def record_of(state_dir: Path) -> ModelRecord:
    """Return the record of the model; an empty one of a device that has none yet.

    Args:
        state_dir: Of the device.

    Raises:
        FleetError: It cannot be read.
    """
    try:
        data = (state_dir / STATE_FILE).read_bytes()
    except FileNotFoundError:
        return ModelRecord()
    stored = unseal(data, StoredState, limit_bytes=MAX_STATE_BYTES)
    state: AgentState = stored.upgraded(NAME)
    return state.models.get(NAME, ModelRecord())


def slot_of(state_dir: Path) -> str | None:
    """Return the digest that the link to the serving package names, or None."""
    try:
        return (state_dir / SLOT).readlink().name
    except FileNotFoundError:
        return None


def faults_when_cut(state_dir: Path, releases: Releases) -> list[str]:
    """Return what must not lie on a device whose power is gone.

    Args:
        state_dir: Of the device; nothing of it runs.
        releases: What was signed.

    Returns:
        Each fault as a line.
    """
    faults = []
    try:
        record_of(state_dir)
    except FleetError as exc:
        faults.append(f"{STATE_FILE}: {exc.message}")
    for directory in _digests(state_dir / PACKAGES):
        found = releases.of(directory.name)
        if found is None:
            faults.append(f"{PACKAGES}/{directory.name} is of nobody")
        else:
            faults += _not_as_signed(directory, found[1], whole=True)
    for directory in _digests(state_dir / INCOMING):
        found = releases.of(directory.name)
        if found is not None:
            faults += _not_as_signed(directory, found[1], whole=False)
    slot = slot_of(state_dir)
    if slot is not None and not (state_dir / PACKAGES / slot).is_dir():
        faults.append(f"{SLOT} names {slot[:12]}, which is not among the whole packages")
    return faults


def listing(state_dir: Path) -> dict[str, int]:
    """Return the size of each file and link below a directory by its name, directories with 0.

    Args:
        state_dir: Of a device; what goes while it is read is left out.
    """
    found = {}
    for path in sorted(state_dir.rglob("*")):
        try:
            size = 0 if path.is_dir() and not path.is_symlink() else path.lstat().st_size
        except FileNotFoundError:
            continue
        found[str(path.relative_to(state_dir))] = size
    return found


def calm_listing(state_dir: Path) -> dict[str, int]:
    """Return what lies on a device beside its packages."""
    everything = listing(state_dir)
    return {name: size for name, size in everything.items() if not _is_of_package(name)}


def faults_at_rest(state_dir: Path, calm: dict[str, int], releases: Releases) -> list[str]:
    """Return how a device that came to rest differs from one that never lost its power.

    Args:
        state_dir: Of the device.
        calm: `calm_listing` of the other one.
        releases: What was signed.

    Returns:
        Each fault as a line.
    """
    record = record_of(state_dir)
    wanted = {slot_of(state_dir), record.previous} - {None}
    expected = dict(calm)
    for digest in sorted(wanted, key=str):
        found = releases.of(str(digest))
        if found is not None:
            expected |= _package_listing(str(digest), found[1])
    there = listing(state_dir)
    more, fewer = there.keys() - expected - IN_TIME, expected.keys() - there - IN_TIME
    faults = [f"left over: {name} ({there[name]} bytes)" for name in more]
    faults += [f"missing: {name}" for name in fewer]
    for name in there.keys() & expected.keys():
        if there[name] > _most_bytes(name, expected[name]):
            faults.append(f"{name} has {there[name]} bytes, not {expected[name]}")
    return sorted(faults)


def _is_of_package(name: str) -> bool:
    top, _, rest = name.partition("/")
    return top in {PACKAGES, INCOMING} and rest != ""


def _most_bytes(name: str, calm_bytes: int) -> int:
    """Return the largest size of a file that is on a calm device, too."""
    if name.startswith(SPOOL):
        return SPOOL_BYTES
    return calm_bytes if _is_of_package(name) else calm_bytes + MORE_BYTES


def _package_listing(digest: str, made: SignedPackage) -> dict[str, int]:
    found = {f"{PACKAGES}/{digest}": 0}
    for name, content in (made.files | {ENVELOPE_FILE: made.envelope}).items():
        found[f"{PACKAGES}/{digest}/{name}"] = len(content)
        for parent in list(Path(name).parents)[:-1]:
            found[f"{PACKAGES}/{digest}/{parent}"] = 0
    return found


def _digests(place: Path) -> list[Path]:
    if not place.is_dir():
        return []
    return [path for path in sorted(place.iterdir()) if is_digest(path.name)]


def _not_as_signed(directory: Path, made: SignedPackage, *, whole: bool) -> list[str]:
    """Return which files of a package are missing, changed or more than were signed."""
    place = f"{directory.parent.name}/{directory.name[:12]}"
    signed = made.files | {ENVELOPE_FILE: made.envelope}
    there = {str(p.relative_to(directory)) for p in directory.rglob("*") if not p.is_dir()}
    faults = [f"{place}/{name} was not signed" for name in sorted(there - signed.keys())]
    if whole:
        faults += [f"{place}/{name} is missing" for name in sorted(signed.keys() - there)]
    for name in sorted(there & signed.keys()):
        if (directory / name).read_bytes() != signed[name]:
            faults.append(f"{place}/{name} is not as signed")
    return faults
