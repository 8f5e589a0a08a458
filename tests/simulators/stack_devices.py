"""Agents as processes, which enrol with a controller and a broker as users start them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from controller.metadata.edit import put, with_release
from controller.metadata.online import signer_of
from controller.metadata.signing import changed_files, signed
from controller.metadata.store import authored_of
from tests.simulators.agent_process import At, Device
from tests.simulators.packages import SignedPackage
from tests.simulators.patience import until
from tests.simulators.stack import Stack
from wire.clock import SystemClock
from wire.codec import sha256_hex
from wire.metadata import MetadataFile


class StackDevice(Device):
    """An agent with its files, below the directory of the stack.

    Args:
        stack: The controller and the broker.
        name: The device.
        token: With which it enrols.
        settings: What else stands in `agent.toml`: whole tables.
        port: Where it reaches the broker, if not directly.
    """

    def __init__(
        self, stack: Stack, name: str, token: str, settings: str = "", port: int | None = None
    ) -> None:
        directory: Path = stack.home.parent / name
        directory.mkdir()
        super().__init__(directory, At(stack.broker_port if port is None else port))
        self.name = name
        self._stack = stack
        (directory / "trust.json").write_bytes((stack.home / "root.json").read_bytes())
        (directory / "token").write_text(f"{token}\n")
        lines = self.config_path.read_text().splitlines()
        lines[0] = f"device = {json.dumps(name)}"
        lines.insert(lines.index("[broker]") + 1, f"ca_file = {json.dumps(stack.broker.ca_file)}")
        self.config_path.write_text("\n".join([*lines, settings]))

    @property
    def shown(self) -> dict[str, Any]:
        """The device as the controller knows it; empty before it has enrolled."""
        done = self._stack.fleet("device", "show", self.name, "--json")
        return dict(done.json) if done.code == 0 else {}

    def until_online(self) -> dict[str, Any]:
        """Wait until the controller has heard its hello; return what it shows."""
        return until(lambda: s if (s := self.shown).get("online") else None, f"{self.name} online")

    def installs(self) -> list[dict[str, Any]]:
        """Return what its events say of its installs, the oldest first."""
        done = self._stack.ok("why", self.name, "--kind", "install", "--json")
        return [event["data"] for event in done.json if "bytes_by_source" in event["data"]][::-1]

    def bytes_by_source(self, release: str) -> dict[str, int]:
        """Wait until telemetry says how a release came; return it.

        Args:
            release: Its name and version.
        """

        def find() -> dict[str, int] | None:
            ended = [each for each in self.installs() if each["release"] == release]
            return ended[-1]["bytes_by_source"] if ended else None

        return until(find, lambda: f"an install by {self.name}: {self.installs()}")


def list_release(stack: Stack, api: httpx.Client, made: SignedPackage) -> None:
    """Put a package on the fleet's trusted list, with the stack's own key."""
    files = api.get("/v1/metadata/files").raise_for_status().json()["files"]
    before = authored_of(tuple(MetadataFile(name=n, content=c) for n, c in files.items()))
    index = made.index
    found = with_release(
        before,
        index.name,
        index.version,
        sha256=made.digest,
        size_bytes=len(index.to_bytes()),
        now_s=SystemClock().now_s(),
    )
    if found is None:
        return
    after = signed(put(before, *found), [signer_of(stack.release_key.read_bytes())])
    changes = {file.name: file.content for file in changed_files(before, after)}
    api.post("/v1/metadata", json={"files": changes}).raise_for_status()


def publish(stack: Stack, made: SignedPackage) -> None:
    """Publish a release that the stack's own key has signed."""
    token = (stack.home / "api.token").read_text().strip()
    with httpx.Client(
        base_url=f"http://127.0.0.1:{stack.api_port}",
        headers={"Authorization": f"Bearer {token}"},
        trust_env=False,
    ) as api:
        list_release(stack, api, made)
        for blob in made.blobs:
            api.put(f"/v1/blobs/{sha256_hex(blob)}", content=blob).raise_for_status()
        body = {"envelope_sha256": made.ref.envelope_sha256}
        api.post("/v1/releases", json=body).raise_for_status()
