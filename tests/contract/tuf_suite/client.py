#!/usr/bin/env -S python3 -P
"""A device's trust as the program that tuf-conformance tests: `init`, `refresh` and `download`.

The suite's server stands in the place of the controller, and this program in the place of what
carries files to a device. It reads them over HTTP, and hands them to the agent's own keeper of
metadata, as a message would. What the keeper has checked in its process and believed is copied
to where the suite looks.

Rules:
- Nothing here checks anything. What the keeper does not believe, did not come.
- A file is fetched only when what the device has names it, so that the suite sees how far it got.
- A target is a release, as on a device: the content counts if a list has NAME/VERSION with its
  digest.

Source:
    tuf-conformance, CLIENT-CLI.md.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tuf.api.metadata import Metadata

from agent.trust.keeper import MetadataTrust
from wire.clock import SystemClock
from wire.codec import sha256_hex
from wire.console.output import write
from wire.metadata import MAX_ROOTS, MetadataFile, file_name
from wire.trust.roles import DIRECTOR, ROOT, SNAPSHOT, TARGETS, TIMESTAMP

MISSING: Final = 404


class Lines:
    """Prints what the keeper tells."""

    def event(self, kind: str, reason: str, data: Mapping[str, object]) -> None:
        write(f"{kind}: {reason} {dict(data)}")

    def add(self, metric: str, amount: float, attributes: Mapping[str, str]) -> None:
        """Take a figure."""

    def observe(self, metric: str, value: float, attributes: Mapping[str, str]) -> None:
        """Take a figure."""


class Device:
    """A device and the carrier that serves it.

    Args:
        folder: Where the suite looks for what is trusted.
        url: Of the suite's metadata.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self._shown = folder
        self._url = url
        self._kept = folder / "device" / "metadata"
        self.trust = MetadataTrust(
            folder / "device.root", "conformance", folder / "device", Lines(), SystemClock()
        )

    def refresh(self) -> bool:
        """Bring the newest metadata; return whether it is believed and fresh."""
        try:
            return self._has_root() and self._brought() and self.trust.stale is None
        finally:
            for file in self._kept.glob("*.json"):
                shutil.copyfile(file, self._shown / file.name)

    def takes(self, target: str, content_url: str) -> bytes | None:
        """Return the content of a target, or None if the device would not take it."""
        name, _, version = target.partition("/")
        self.trust.want(name)
        targets, snapshot = self._read(TARGETS), self._read(SNAPSHOT)
        prefixes = [""]
        for role, _ in targets.signed.delegations.get_roles_for_target(target):
            meta = snapshot.signed.meta.get(f"{role}.json")
            if role != DIRECTOR and meta is not None and self._bring(file_name(role, meta.version)):
                found = self._read(role).signed.targets.get(target)
                prefixes = [f"{each}." for each in found.hashes.values()] if found else prefixes
        folder, slash, last = target.rpartition("/")
        content = _fetched(content_url, f"{folder}{slash}{prefixes[0]}{last}")
        if content is None:
            return None
        why = self.trust.later(name, version, sha256_hex(content))
        write(f"{target}: {why or 'is listed'}")
        return content if why is None else None

    def _has_root(self) -> bool:
        """Let the device check the root that it came with, before anything is fetched."""
        if self._read(ROOT) is None:
            self.trust.receive((), now=True)
        return self._read(ROOT) is not None

    def _brought(self) -> bool:
        """Bring what the device asks for, one after the other, until it believes the whole."""
        wanted: str | None = TIMESTAMP
        asked = set()
        roots = self._newer_roots()
        while wanted is not None and wanted not in asked:
            asked.add(wanted)
            if not self._bring(wanted, roots if wanted == TIMESTAMP else ()):
                return False
            if self.trust.versions.lacks_files is not True:  # nothing failed or is missing
                return True
            wanted = self._lacking()
        return False

    def _newer_roots(self) -> list[MetadataFile]:
        roots = []
        for version in range(self._read(ROOT).signed.version + 1, MAX_ROOTS + 1):
            name = file_name(ROOT, version)
            content = _fetched(self._url, f"{name}.json")
            if content is None:
                break
            roots.append(MetadataFile(name=name, content=content.decode()))
        return roots

    def _lacking(self) -> str | None:
        """Return the name of the file that the device needs next by what it has, or None."""
        timestamp, snapshot = self._read(TIMESTAMP), self._read(SNAPSHOT)
        if timestamp is None:
            return None
        version = timestamp.signed.snapshot_meta.version
        if snapshot is None or snapshot.signed.version != version:
            return file_name(SNAPSHOT, version)
        version, targets = snapshot.signed.meta["targets.json"].version, self._read(TARGETS)
        if targets is None or targets.signed.version != version:
            return file_name(TARGETS, version)
        return None

    def _bring(self, name: str, others: Iterable[MetadataFile] = ()) -> bool:
        """Hand a file to the device, with others; return whether the server has it."""
        content = _fetched(self._url, f"{name}.json")
        files = [*others]
        if content is not None:
            files.append(MetadataFile(name=name, content=content.decode()))
        self.trust.receive(files, now=True)
        return content is not None

    def _read(self, role: str) -> Any:
        """Return what the device trusts of a role, or None."""
        file = self._kept / f"{role}.json"
        return Metadata.from_file(str(file)) if file.exists() else None


def _fetched(url: str, name: str) -> bytes | None:
    try:
        with urllib.request.urlopen(url + name) as answer:  # noqa: S310 - the suite's own server
            content: bytes = answer.read()
            return content
    except urllib.error.HTTPError as exc:
        if exc.code != MISSING:
            raise
        return None


def main() -> bool:
    """Carry out the command line; return whether all went well."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--metadata-dir", type=Path, required=True)
    for option in ("--metadata-url", "--target-base-url"):
        parser.add_argument(option, default="")
    parser.add_argument("--target-dir", type=Path)
    parser.add_argument("--target-name", action="append", default=[])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("init").add_argument("root", type=Path)
    commands.add_parser("refresh")
    commands.add_parser("download")
    options = parser.parse_args()
    if options.command == "init":
        for copy in ("root.json", "device.root"):
            shutil.copyfile(options.root, options.metadata_dir / copy)
        return True
    device = Device(options.metadata_dir, options.metadata_url)
    if not device.refresh():
        return False
    for target in options.target_name if options.command == "download" else ():
        content = device.takes(target, options.target_base_url)
        if content is None:
            return False
        (options.target_dir / urllib.parse.quote(target, "")).write_bytes(content)
    return True


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
