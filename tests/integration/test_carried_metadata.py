"""The metadata in a file of `fleet package export --device` is all that a fresh device needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.trust.keeper import MetadataTrust
from controller.cli.carried import metadata_for
from controller.client import Fleet
from controller.client.target import Target
from packager.package.content import directory_content
from tests.integration.test_hostile_controller import Hostile
from tests.integration.test_metadata_attacks import Events
from tests.simulators.agent_process import null_package
from wire.clock import SystemClock
from wire.metadata import metadata_from
from wire.package.index import PAYLOAD_TYPE
from wire.trust.roles import ROOT


@pytest.mark.parametrize("has_own_role", [False, True])
def test_a_device_that_has_only_its_first_root_believes_it(
    tmp_path: Path, *, has_own_role: bool
) -> None:
    controller = Hostile()
    fleet, made = controller.shown, null_package("1.0.0")
    root = fleet.write_root(tmp_path / "root.json")
    fleet.rotate(ROOT)
    if has_own_role:
        fleet.delegate("digits")
    fleet.list_package(made)
    made.write_to(tmp_path / "package")
    try:
        with Fleet(Target(url=controller.options[1], token="t" * 32)) as api:
            data = metadata_for(api, directory_content(tmp_path / "package"))
    finally:
        controller.close()
    trust = MetadataTrust(root, fleet.authored.fleet, tmp_path / "trust", Events(), SystemClock())
    assert data is not None
    assert trust.receive(metadata_from(data), now=True)
    assert trust.unseal(made.envelope, role="release", payload_type=PAYLOAD_TYPE)
    assert trust.later("digits", "1.0.0", made.digest) is None
