"""`fleet` is ended by SIGTERM in the middle of its work: nothing temporary remains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.models import ROOT
from tests.simulators.hostile_registry import (
    Handler,
    HostileRegistry,
    blob_path,
    hostile_registry,
)
from tests.simulators.packages import TRUST, two_variants
from tests.simulators.patience import PATIENCE_S, until
from wire.codec import sha256_hex, to_json

MADE = two_variants("1")
LAST = next(content for path, content in MADE.files.items() if path.endswith("model.json"))


@dataclass
class Stalled:
    """A server that stops in the middle of a file."""

    registry: HostileRegistry
    came: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def stall(self, handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(LAST)))
        handler.end_headers()
        handler.wfile.write(LAST[:1])
        self.came.set()
        self.over.wait(PATIENCE_S)
        handler.close_connection = True


@pytest.fixture
def server() -> Iterator[Stalled]:
    with hostile_registry() as registry:
        stalled = Stalled(registry)
        registry.instead[f"/v1/blobs/{sha256_hex(LAST)}"] = stalled.stall
        registry.instead[blob_path(LAST)] = stalled.stall
        try:
            yield stalled
        finally:
            stalled.over.set()


def ended(server: Stalled, temporary: Path, *arguments: str) -> None:
    """Run a command, and end it when it waits for the rest of a file."""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "controller.cli", *arguments],
        cwd=ROOT,
        env=os.environ | {"FLEET_TOKEN": "token", "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
    ) as process:
        until(lambda: server.came.is_set() or process.poll() is not None, "the file")
        assert process.poll() is None, process.communicate()
        assert list(temporary.iterdir()), "something temporary is there"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, said) == (-signal.SIGTERM, b"")
    assert list(temporary.iterdir()) == []


def test_an_export_leaves_no_hidden_file(server: Stalled, tmp_path: Path) -> None:
    release = {
        "name": MADE.index.name,
        "version": MADE.index.version,
        "digest": MADE.digest,
        "size_bytes": 1,
        "state": "published",
        "published_at_s": 0.0,
        "envelope_sha256": sha256_hex(MADE.envelope),
        "envelope_size_bytes": len(MADE.envelope),
    }
    server.registry.contents["/v1/releases/digits:1"] = to_json(release)
    for blob in MADE.blobs:
        server.registry.contents[f"/v1/blobs/{sha256_hex(blob)}"] = blob
    where = ("--url", server.registry.url, "package", "export", "digits:1")
    ended(server, tmp_path, *where, "--to", str(tmp_path / "file"))


def test_a_release_from_a_registry_leaves_no_directory(server: Stalled, tmp_path: Path) -> None:
    server.registry.serve_package(MADE)
    trust, temporary = tmp_path / "trust.json", tmp_path / "temporary"
    trust.write_bytes(to_json(TRUST))
    temporary.mkdir()
    host = blob_path(b"").split("/blobs/")[0].removeprefix("/v2/")
    reference = f"oci://{server.registry.host}/{host}:1"
    where = ("--url", server.registry.url, "release", "publish", reference)
    ended(server, temporary, *where, "--trust", str(trust), "--registry-clear-text")
