"""Who brings a key that devices check only with an extra is told so, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.metadata.edit import with_keys
from packager.package.signers import generate_pem
from tests.integration.test_hostile_controller import Hostile
from tests.simulators.repository import Repository
from tests.simulators.stack import Done, fleet_here
from wire.clock import SystemClock
from wire.trust.roles import RELEASES, ROOT, TARGETS

WARNING = "warning: a device checks such a key only with the extra `ecdsa`"


class Operator:
    """An operator with keys, and a controller that shows his fleet."""

    def __init__(self, folder: Path, controller: Hostile) -> None:
        self.fleet: Repository = controller.shown
        self._options = controller.options
        self._folder = folder
        self.fleet.write_root(folder / "root.json")
        for role in (ROOT, TARGETS, RELEASES):
            (folder / f"{role}.key").write_bytes(self.fleet.seeds[role][0])
            (folder / f"{role}.key").chmod(0o600)
        self.ecdsa = generate_pem(folder / "ecdsa.key", "ecdsa", "")

    def key(self, *arguments: str) -> Done:
        """Run a command with these keys."""
        signers = [part for role in (TARGETS, RELEASES) for part in ("--key", self.path(role))]
        return fleet_here(*self._options, "key", *arguments, *signers)

    def path(self, name: str) -> str:
        """Return the path of a key."""
        return str(self._folder / f"{name}.key")


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Operator]:
    monkeypatch.setenv("FLEET_TOKEN", "a-token-of-the-operator-0123456789")
    controller = Hostile()
    yield Operator(tmp_path, controller)
    controller.close()


def test_a_new_ecdsa_key_is_said_to_need_the_extra_on_devices(tmp_path: Path) -> None:
    made = fleet_here("key", "generate", str(tmp_path / "a.key"), "--kind", "ecdsa")
    assert [line for line in made.err.splitlines() if line.startswith(WARNING)] == [
        made.err.rstrip("\n")
    ]
    assert "install 'edgefleet[ecdsa]' on all devices before it signs" in made.err
    assert fleet_here("key", "generate", str(tmp_path / "b.key")).err == ""


@pytest.mark.parametrize("command", [("rotate", RELEASES), ("delegate", "digits")])
def test_the_first_ecdsa_key_of_a_fleet_is_warned_of(
    operator: Operator, command: tuple[str, str]
) -> None:
    given = operator.key(*command, "--to", operator.path("ecdsa"))
    assert given.code == 0, given.err
    assert given.err.count(WARNING) == 1
    # Once the fleet has such a key, its devices have the extra. Versions follow the time, and what
    # is older than what the command signed is refused.
    now_s = SystemClock().now_s() + 1
    targets = with_keys(operator.fleet.authored, RELEASES, now_s, add=[operator.ecdsa])
    operator.fleet.change(TARGETS, targets)
    again = operator.key("delegate", "faces", "--to", operator.path("ecdsa"))
    assert again.code == 0, again.err
    assert WARNING not in again.err


def test_an_ed25519_key_needs_nothing(operator: Operator) -> None:
    given = operator.key("delegate", "digits", "--to", operator.path(ROOT))
    assert given.code == 0, given.err
    assert WARNING not in given.err
