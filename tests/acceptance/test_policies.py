"""A policy that is set for the fleet: a real broker, controller and agents.

The devices run the null runtime. Of its two variants the better one serves by default; a policy to
which any memory is too little makes the other one serve, which shows by whose policy a device goes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.digits.box import Box, stopping, until
from runtime_adapters.golden import save_golden
from tests.simulators.agent_process import X, reference
from tests.simulators.packages import PROFILE, package, variant
from tests.simulators.patience import PATIENCE_S
from wire.package.golden import Golden, Tolerance
from wire.package.index import CHUNK_BYTES, asset_uri
from wire.trust.envelope import SigningKey

pytestmark = [pytest.mark.thorough, pytest.mark.broker, pytest.mark.timeout(1800)]

DEVICES = {"lab-1": "lab", "shop-1": "shop", "shop-2": "shop"}
FRUGAL = 'kind = "rules"\nlow_memory_bytes = 1_000_000_000_000_000\ndwell_s = {dwell_s}\n'
WAIT_S = 2 * PATIENCE_S


@pytest.fixture
def box() -> Iterator[Box]:
    """A fleet whose devices serve the first release."""
    # A short name: the path of a Unix socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ef-", ignore_cleanup_errors=True) as directory:
        root = Path(directory)
        with stopping(Box(root / "box")) as made:
            prepare(made)
            yield made
            assert made.stop() == []


def prepare(box: Box) -> None:
    box.initialize()
    for name in ("broker", "controller"):
        box.start(name)
    box.until_connected()
    token = box.fleet_json("token", "create", "--uses", str(len(DEVICES)))["token"]
    profile = box.root / "profile.toml"
    profile.write_text(
        f'name = "{PROFILE.name}"\narchitecture = "x86_64"\nruntimes = ["null"]\n'
        f"memory_bytes = {PROFILE.memory_bytes}\nstorage_bytes = {PROFILE.storage_bytes}\n"
    )
    for name, stage in DEVICES.items():
        box.add_device(name, profile, token, {"stage": stage})
        box.start(name)
    until("all online", lambda: online(box) == len(DEVICES), WAIT_S)
    publish(box, "1.0.0")
    rollout = str(box.fleet_json("rollout", "create", "digits:1.0.0")["id"])
    until("the first release", lambda: state(box, rollout) == "succeeded", WAIT_S)


def publish(box: Box, version: str) -> None:
    """Publish a package of two variants: better and larger, worse and smaller."""
    key = SigningKey(box.release_key.read_bytes())
    pairs, assets = [], {}
    for name, accuracy, memory_bytes in (("best", 0.99, 2**22), ("small", 0.90, 2**20)):
        content = f'{{"seed": {len(name)}}}'.encode()
        files = save_golden({"x": X}, reference(variant(name), content))
        assets[asset_uri(files)] = files
        golden = Golden(
            asset=asset_uri(files),
            samples=3,
            tolerances={"y": Tolerance(absolute=1e-5, relative=1e-4)},
        )
        made = variant(name, accuracy=accuracy, memory_bytes=memory_bytes, golden=golden)
        pairs.append((made, content))
    signed = package(version, pairs, assets=assets, key=key, chunk_bytes=CHUNK_BYTES)
    signed.write_to(box.root / version)
    box.fleet("release", "publish", box.root / version)


def online(box: Box) -> int:
    return sum(device["online"] for device in box.api("/v1/devices"))


def state(box: Box, rollout: str) -> str:
    return str(box.api(f"/v1/rollouts/{rollout}")["state"])


def serve(box: Box, variant_name: str, *names: str) -> bool:
    """Tell whether devices serve a variant, and the controller knows that they have its policy."""
    return all(
        box.status(name)["variant"] == variant_name
        and box.api(f"/v1/devices/{name}")["policy_accepted"]
        for name in names
    )


def installs(box: Box, name: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = box.api(f"/v1/devices/{name}/events?kind=install")
    return events


def set_policy(box: Box, name: str, *options: str, dwell_s: float = 0.0) -> None:
    file = box.root / f"{name}.toml"
    file.write_text(FRUGAL.format(dwell_s=dwell_s))
    box.fleet("policy", "set", name, "--file", file, *options)


def test_a_policy_reaches_running_agents_without_an_install(box: Box) -> None:
    assert serve(box, "best", *DEVICES)
    installed_s = {name: box.status(name)["last_report"]["at_s"] for name in DEVICES}

    set_policy(box, "lab", "--selector", "stage=lab", "--priority", "10")
    until("the policy in the lab", lambda: serve(box, "small", "lab-1"), WAIT_S)
    assert serve(box, "best", "shop-1", "shop-2")
    assert "policy           lab (accepted)" in box.fleet("device", "show", "lab-1")

    until("its reasons", lambda: len(policy_events(box, "lab-1")) == 1, WAIT_S)
    (told,) = policy_events(box, "lab-1")
    assert told["reason"] == "the controller set another policy: rules"
    assert told["data"]["changed"] == {
        "kind": "rules",
        "low_memory_bytes": 10**15,
        "dwell_s": 0.0,
    }
    until("the switch", lambda: last_switch(box, "lab-1")["data"]["to"] == "small", WAIT_S)
    switched = last_switch(box, "lab-1")
    assert switched["data"]["from"] == "best"
    assert "memory" in switched["reason"]

    box.fleet("device", "label", "shop-1", "stage=lab")
    until("the policy of the label", lambda: serve(box, "small", "shop-1"), WAIT_S)
    assert serve(box, "best", "shop-2")

    # The controller dies as soon as it has saved a policy: it comes nevertheless.
    set_policy(box, "everyone")
    box.kill("controller")
    box.start("controller")
    box.until_connected()
    until("the policy of all", lambda: serve(box, "small", *DEVICES), WAIT_S)
    assert [item["name"] for item in box.fleet_json("policy", "list")] == ["lab", "everyone"]

    for name in ("everyone", "lab"):
        box.fleet("policy", "remove", name)
    until("the default again", lambda: serve(box, "best", *DEVICES), WAIT_S)

    for name in DEVICES:
        status = box.status(name)
        assert (status["phase"], status["last_report"]["at_s"]) == ("idle", installed_s[name])
        assert len(installs(box, name)) == 1, "nothing was installed a second time"


def test_a_rollout_does_not_notice_and_what_restarts_remembers(box: Box) -> None:
    publish(box, "2.0.0")
    created = box.fleet_json(
        *("rollout", "create", "digits:2.0.0", "--stage", "1", "--stage", "100%", "--soak", "3s")
    )
    rollout = str(created["id"])
    until("the first order", lambda: started(box, rollout) > 0, WAIT_S)
    for number in range(6):
        set_policy(box, "all", dwell_s=number)
    until("the rollout's end", lambda: state(box, rollout) != "running", WAIT_S)
    found = box.api(f"/v1/rollouts/{rollout}")
    assert (found["state"], found["counts"]) == ("succeeded", {"succeeded": 3})
    assert not {"restore", "expire"} & {event["action"] for event in found["events"]}
    until("the last policy", lambda: serve(box, "small", *DEVICES), WAIT_S)
    for name in DEVICES:
        until("its installs", lambda name=name: len(installs(box, name)) == 2, WAIT_S)
        assert [item["data"]["outcome"] for item in installs(box, name)] == ["succeeded"] * 2
        assert box.status(name)["policy"]["dwell_s"] == 5.0

    # Without a controller, after a power cut: what was accepted holds.
    box.kill("controller")
    box.kill("lab-1")
    box.start("lab-1")
    until("the agent again", lambda: box.status("lab-1")["variant"] == "small", WAIT_S)
    assert box.status("lab-1")["policy"]["dwell_s"] == 5.0


def started(box: Box, rollout: str) -> int:
    parts = box.api(f"/v1/rollouts/{rollout}")["deployments"]
    return sum(part["started_at_s"] is not None for part in parts)


def last_switch(box: Box, device: str) -> dict[str, Any]:
    """Return the newest switch that the controller has heard of; it may come in a later batch."""
    found: list[dict[str, Any]] = box.fleet_json("why", device, "--kind", "switch")
    return found[-1]


def policy_events(box: Box, name: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = box.fleet_json("why", name, "--kind", "policy")
    return events
