"""`fleet controller backup` and `restore`, with a real controller, broker and devices."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.simulators.packages import package, variant
from tests.simulators.patience import until
from tests.simulators.stack import Puppet, fleet_here, running_stack
from wire.trust.envelope import SigningKey

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("cli")]


def test_a_fleet_goes_on_from_a_backup_that_was_made_while_it_ran(tmp_path: Path) -> None:
    with running_stack() as stack:
        key = SigningKey(stack.release_key.read_bytes())
        signed = package("1", [(variant("best"), b"model")], key=key)
        signed.write_to(tmp_path / "package")
        stack.ok("release", "publish", str(tmp_path / "package"))
        token = stack.ok("token", "create", "--uses", "2").out.strip()
        puppets = [Puppet(stack, name, token, "succeeded") for name in ("cam-1", "cam-2")]
        stages = ("--stage", "1", "--stage", "100%", "--approval")
        rollout = stack.ok("rollout", "create", "digits:1", *stages, "--json").json["id"]

        def succeeded() -> int:
            counts = stack.ok("rollout", "show", rollout, "--json").json["counts"]
            return int(counts.get("succeeded", 0))

        kim_file = str(tmp_path / "kim.token")
        stack.ok("access", "create", "kim", "--role", "approver", "-o", kim_file)
        until(lambda: succeeded() == 1, "the first stage")
        backup = tmp_path / "fleet.tar"
        done = fleet_here("controller", "backup", str(stack.home), str(backup))
        assert (done.code, done.out) == (0, ""), done.err
        assert "SECRET" in done.err
        assert "director's key" in done.err

        stack.stop()
        lost = stack.home
        stack.home = stack.home.with_name("restored")
        done = fleet_here("controller", "restore", str(backup), str(stack.home))
        assert done.code == 0, done.err
        assert f"stop the controller in {lost}" in done.err
        shutil.rmtree(lost)
        stack.start()

        kim = ("--token-file", kim_file)
        until(lambda: stack.fleet("rollout", "approve", rollout, *kim).code == 0, "the approval")
        until(lambda: succeeded() == 2, "the second stage")
        watched = stack.fleet("rollout", "watch", rollout)
        assert watched.code == 0, watched.out + watched.err
        # The accounts of the broker: the old ones hold, and new ones can be made.
        more = stack.ok("token", "create").out.strip()
        puppets.append(Puppet(stack, "cam-3", more, "succeeded"))
        assert len(stack.ok("device", "list", "--json").json) == 3
        for puppet in puppets:
            puppet.transport.close()


def test_what_cannot_be_restored_is_one_line_and_status_2(tmp_path: Path) -> None:
    (tmp_path / "some.tar").write_bytes(b"no archive")
    done = fleet_here("controller", "restore", str(tmp_path / "some.tar"), str(tmp_path / "home"))
    assert done.code == 2
    assert done.err.startswith("fleet: ")
    assert done.err.count("\n") == 1
    done = fleet_here("controller", "backup", str(tmp_path / "none"), str(tmp_path / "new.tar"))
    assert done.code == 2
    assert "fleet init" in done.err
