"""Rollouts from the command line when devices are away, fail, or have to go back."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.simulators.packages import package, variant
from tests.simulators.patience import until
from tests.simulators.stack import Puppet, Stack, running_stack
from wire.trust.envelope import SigningKey

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("cli-rollouts")]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Return a fleet with three releases."""
    with running_stack() as running:
        key = SigningKey(running.release_key.read_bytes())
        for version in ("1", "2", "3"):
            signed = package(version, [(variant("best"), b"model " + version.encode())], key=key)
            signed.write_to(running.home.parent / version)
            running.ok("release", "publish", str(running.home.parent / version))
        yield running


@pytest.fixture(scope="module")
def puppets(stack: Stack) -> Iterator[dict[str, Puppet]]:
    """Three devices that run the first release."""
    token = stack.ok("token", "create", "--uses", "3").out.strip()
    names = ("cam-1", "cam-2", "cam-3")
    made = {name: Puppet(stack, name, token, "succeeded") for name in names}
    done = stack.fleet("rollout", "create", "digits:1", "--watch")
    assert done.code == 0, done.out + done.err
    yield made
    for puppet in made.values():
        puppet.transport.close()


def counts(stack: Stack, rollout: str) -> dict[str, int]:
    found: dict[str, int] = stack.ok("rollout", "show", rollout, "--json").json["counts"]
    return found


def is_online(stack: Stack, device: str) -> bool:
    return bool(stack.ok("device", "show", device, "--json").json["online"])


def test_a_file_says_what_to_do_and_a_dry_run_what_it_would_do(
    stack: Stack, puppets: dict[str, Puppet], tmp_path: Path
) -> None:
    file = tmp_path / "rollout.toml"
    file.write_text('release = "digits:2"\nstages = [1, "100%"]\nsoak = "1h"\napproval = true\n')
    before = stack.ok("rollout", "list", "--json").json
    shown = stack.ok("rollout", "create", "-f", str(file), "--dry-run")
    assert "takes        not known yet: the model has fewer than 5 earlier installs" in shown.out
    assert re.search(r"(?m)^2 +3 +2 +0 +bench=2 +soaks 1h +none +not known yet$", shown.out)
    (first,) = re.findall(r"(?m)^stage 1: (cam-\d)$", shown.out)
    (rollout,) = re.findall(r"^rollout +(r\w+), not begun\n", shown.out)
    assert shown.err.endswith(f"with --id {rollout} the same devices start first\n")
    asked = stack.ok("rollout", "create", "-f", str(file), "--id", rollout, "--dry-run", "--json")
    assert (asked.json["id"], asked.json["stages"][0]["devices"]) == (rollout, [first])
    assert stack.ok("rollout", "list", "--json").json == before
    words = ("digits:1", "-f", str(file), "--soak", "0", "--no-approval", "--id", rollout)
    done = stack.fleet("rollout", "create", *words, "--watch")
    assert (done.code, done.out.splitlines()[0]) == (0, rollout), done.err
    parts = stack.ok("rollout", "show", rollout, "--json").json["deployments"]
    assert [part["device"] for part in parts if part["stage"] == 1] == [first]


def test_a_dry_run_ends_with_1_for_a_rollout_that_would_not_begin(
    stack: Stack, puppets: dict[str, Puppet]
) -> None:
    gate = "p95(inference_latency_ms) <= +10%"
    done = stack.fleet("rollout", "create", "digits:2", "--gate", gate, "--dry-run")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "it would not begin: 3 devices cannot show what a gate asks" in done.out
    assert "too few devices" in done.out
    assert done.err == "nothing was begun: --dry-run\n", "one that is mended may start others first"
    nothing = stack.fleet("rollout", "create", "--dry-run")
    assert (nothing.code, nothing.out) == (2, "")
    assert nothing.err.startswith("fleet: no release is named; give RELEASE, or write")


def test_a_rollout_succeeds_without_a_device_that_is_offline(
    stack: Stack, puppets: dict[str, Puppet]
) -> None:
    puppets["cam-3"].leave()
    until(lambda: not is_online(stack, "cam-3"), "cam-3 to be offline")
    done = stack.fleet("rollout", "create", "digits:2", "--offline-limit", "1s", "--watch")
    assert done.code == 0, done.out + done.err
    rollout, *lines = done.out.splitlines()
    assert lines[-1] == "2 of 3 devices have digits:2, 1 to follow when online again"
    assert not any(line.startswith("cam-") for line in lines), "nobody reads a line for each device"
    assert f"rollout {rollout} succeeded: 2 succeeded, 1 waiting; 3 in all" in lines
    assert any("waits for 1 device that is offline, for 1s at most" in line for line in lines)
    assert "2 succeeded, 1 waiting; 3 in all" in stack.ok("rollout", "list").out
    shown = stack.ok("rollout", "show", rollout).out
    assert "cam-3   waiting" in shown
    puppets["cam-3"].come_back()
    until(lambda: counts(stack, rollout) == {"succeeded": 3}, "cam-3 to catch up")


def test_a_halted_rollout_goes_on_and_what_failed_is_tried_again(
    stack: Stack, puppets: dict[str, Puppet]
) -> None:
    puppets["cam-2"].outcome = "failed"
    done = stack.fleet("rollout", "create", "digits:3", "--watch")
    assert done.code == 1, done.out + done.err
    rollout = done.out.splitlines()[0]
    told = stack.ok("rollout", "explain", rollout).out
    assert f"Rollout {rollout} brings digits:3 to all devices, in 1 stage: to 3 devices\n" in told
    assert re.search(r"(?m)^halted: 1 device failed; allowed: 0$", told)
    assert re.search(r"(?m)^  .* create: made for 3 devices in 1 stage$", told)
    assert re.search(r"(?m)^  1 failed with agent\.\S+ \(cam-2\)", told)
    assert f"`fleet rollout rollback {rollout}` brings its devices back" in told
    part = stack.ok("why", "cam-2", "--rollout", rollout).out
    assert f"cam-2 was to get digits:3 by rollout {rollout}; it is online\n" in part
    assert re.search(r"(?m)^it was started in stage 1, at .*; it had digits:\d before$", part)
    assert re.search(r"(?m)^it failed at .*: agent\.\S+", part)
    other = stack.fleet("why", "cam-9", "--rollout", rollout)
    assert (other.code, other.err.count("\n")) == (2, 1)
    resumed = stack.ok("rollout", "resume", rollout)
    assert resumed.out.startswith(f"rollout {rollout} running: ")
    watched = stack.fleet("rollout", "watch", rollout)
    assert (watched.code, "2 of 3 devices have digits:3; exit status 3" in watched.out) == (3, True)
    assert "1 of the failed" in stack.ok("rollout", "show", rollout).out
    puppets["cam-2"].outcome = "succeeded"
    again = stack.fleet("rollout", "retry", rollout, "--failed", "--watch")
    assert again.code == 0, again.out + again.err
    assert "1 succeeded; 1 in all" in again.out
    second = again.out.splitlines()[0]
    assert again.out.splitlines()[-1] == "1 of 1 device has digits:3"
    assert "tries again" in stack.ok("rollout", "show", second).out
    assert f"tried again by  {second}" in stack.ok("rollout", "show", rollout).out
    assert f"retry of {rollout}" in stack.ok("rollout", "list").out
    assert "cam-2 got digits:3 by rollout" in stack.ok("why", "cam-2", "--rollout", second).out
    told = stack.ok("rollout", "explain", rollout).out.rpartition("What can be done\n")[2]
    assert f"Rollout {second} tried devices of {rollout} again" in told
    assert "retry" not in told
    nothing = stack.fleet("rollout", "retry", rollout, "--failed")
    assert (nothing.code, nothing.err.count("\n")) == (2, 1)
    assert nothing.err.endswith(f"; `fleet rollout show {rollout}` lists its devices\n")


def test_a_revoked_release_is_rolled_back_with_the_commands_that_are_printed(
    stack: Stack, puppets: dict[str, Puppet]
) -> None:
    done = stack.ok("release", "revoke", "digits:3")
    lines = done.out.splitlines()
    assert lines[0] == "digits:3 revoked"
    rows = [line.split() for line in lines if line.startswith("cam-")]
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("cam-1", "yes", "digits:2"), ("cam-2", "yes", "digits:2"), ("cam-3", "yes", "digits:2"),
    ]  # fmt: skip
    commands = [shlex.split(line) for line in lines if line.startswith("  fleet ")]
    assert commands
    for _fleet, *words in commands:
        back = stack.fleet(*words, "--watch")
        assert back.code == 0, back.out + back.err
    shown = stack.ok("device", "list", "--json").json
    assert {device["release"] for device in shown} == {"digits:2"}
    assert "RUNS ON" not in stack.ok("release", "revoke", "digits:3").out
    refused = stack.fleet("rollout", "create", "digits:3")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "has been revoked; choose another one: `fleet release list`" in refused.err


def test_a_device_without_a_way_back_is_named_with_a_command(
    stack: Stack, puppets: dict[str, Puppet]
) -> None:
    token = stack.ok("token", "create").out.strip()
    new = Puppet(stack, "new-1", token, "succeeded")
    try:
        done = stack.fleet("rollout", "create", "digits:2", "--watch")
        assert done.code == 0, done.out + done.err
        rollout = done.out.splitlines()[0]
        lines = stack.ok("release", "revoke", "digits:2").out.splitlines()
        assert lines[-1] == "  fleet rollout create NAME:VERSION --selector 'id in (new-1)'"
        nothing = stack.fleet("rollout", "rollback", rollout)
        assert nothing.code == 2
        assert nothing.err.endswith(f"`fleet rollout rollback {rollout} --to NAME:VERSION`\n")
        remedy = r"`fleet model remove digits --selector 'id in \(.*new-1\)'` takes the model away"
        assert re.search(remedy, nothing.err)
        told = stack.ok("rollout", "explain", rollout).out.rpartition("What can be done\n")[2]
        assert re.search(rf"No device of rollout \w+ has a release .*; {remedy}", told)
        for line in lines:
            if line.startswith("  fleet "):
                words = shlex.split(line.replace("NAME:VERSION", "digits:1"))
                back = stack.fleet(*words[1:], "--watch")
                assert back.code == 0, back.out + back.err
        shown = stack.ok("device", "list", "--json").json
        assert {device["release"] for device in shown} == {"digits:1"}
    finally:
        new.transport.close()


def test_pausing_twice_says_what_to_do(stack: Stack, puppets: dict[str, Puppet]) -> None:
    created = stack.ok("rollout", "create", "digits:1", "--soak", "1h").out.strip()
    stack.ok("rollout", "pause", created)
    twice = stack.fleet("rollout", "pause", created)
    assert twice.code == 2
    assert twice.err == (
        f"fleet: rollout {created} is paused: it cannot pause; "
        f"`fleet rollout resume {created}` lets it go on\n"
    )
    stack.ok("rollout", "abort", created)


def test_devices_join_move_and_leave_in_words(stack: Stack, puppets: dict[str, Puppet]) -> None:
    made = stack.ok("rollout", "create", "digits:1", "--selector", "id=cam-1", "--soak", "1h")
    rollout = made.out.strip()
    until(lambda: counts(stack, rollout) == {"succeeded": 1}, "cam-1 to have it")
    stack.ok("rollout", "pause", rollout)
    joined = stack.ok("rollout", "add", rollout, "cam-2", "cam-1")
    assert joined.out == f"1 device joined rollout {rollout}\n"
    assert joined.err == "cam-1: it is in the rollout already\n"
    newer = ("digits:1", "--selector", "id in (cam-1, cam-2)", "--supersede", "--dry-run")
    plan = stack.ok("rollout", "create", *newer).out
    assert f"1 device would move from rollout {rollout}; 1 device to finish there first:" in plan
    left = stack.ok("rollout", "exclude", rollout, "cam-2", "cam-1", "cam-9")
    assert left.out == f"1 device left rollout {rollout}\n"
    assert left.err == "cam-1: it has finished\ncam-9: it is not in the rollout\n"
    for order in ("exclude", "add"):
        wrong = stack.fleet("rollout", order, rollout, "--selector", "sitte=paris")
        assert wrong.code == 2
        assert wrong.err.startswith(
            "fleet: no enrolled device matches the selector 'sitte=paris'; "
        )
        assert "sitte" in wrong.err.partition("; ")[2]
    again = stack.fleet("rollout", "exclude", rollout, "cam-2")
    assert (again.code, again.out) == (1, f"0 devices left rollout {rollout}\n")
    stack.ok("rollout", "abort", rollout)
    faulty = stack.fleet("rollout", "create", "digits:1", "--window", "05:00-05:00")
    assert (faulty.code, faulty.err.count("\n")) == (2, 1)
    assert "'05:00-05:00' is no window that opens" in faulty.err


def test_who_can_take_a_release_is_shown_before_it_begins(
    stack: Stack, puppets: dict[str, Puppet]
) -> None:
    said = stack.ok("rollout", "check", "digits:1")
    lines = [line.split(maxsplit=2) for line in said.out.splitlines()]
    assert ["will", "refuse", "0"] in lines
    assert ["release", "digits:1"] in lines
    key = SigningKey(stack.release_key.read_bytes())
    alien = variant("best")
    info = msgspec.structs.replace(alien.info, runtime="tensorrt")
    signed = package("4", [(msgspec.structs.replace(alien, info=info), b"model")], key=key)
    signed.write_to(stack.home.parent / "4")
    stack.ok("release", "publish", str(stack.home.parent / "4"))
    said = stack.fleet("rollout", "check", "digits:4", "--selector", "id!=new-1", "--limit", "2")
    assert (said.code, said.err) == (1, "")
    lacks = "no variant fits: best needs the runtime tensorrt"
    assert said.out.splitlines()[-3:] == [
        "", f"3 devices refuse: {lacks}", "  cam-1, cam-2 and 1 more",
    ]  # fmt: skip
    report = stack.fleet("rollout", "check", "digits:4", "--selector", "id!=new-1", "--json")
    assert report.code == 1
    assert report.json["refusing"][0]["devices"] == ["cam-1", "cam-2", "cam-3"]
    refused = stack.fleet("rollout", "create", "digits:4", "--selector", "id=cam-1")
    assert refused.code == 2
    assert refused.err == (
        f"fleet: cam-1 cannot take digits:4: {lacks}; "
        "`fleet rollout check digits:4 --selector id=cam-1` names them; "
        "--allow-unfit tries them all the same\n"
    )
    both = stack.fleet("rollout", "create", "digits:4", "--exclude-unfit", "--allow-unfit")
    assert (both.code, both.err.count("\n")) == (2, 1)


def test_devices_that_cannot_take_a_release_are_left_out(
    stack: Stack, puppets: dict[str, Puppet]
) -> None:
    token = stack.ok("token", "create").out.strip()
    puppets["new-2"] = Puppet(stack, "new-2", token, "succeeded", runtimes=())
    until(lambda: stack.fleet("rollout", "check", "digits:1").code == 1, "a hello of new-2")
    refused = stack.fleet("rollout", "create", "digits:1")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "cannot take digits:1, such as new-2: no variant fits" in refused.err
    assert refused.err.endswith(
        "; --exclude-unfit leaves them out, and --allow-unfit tries them all the same\n"
    )
    done = stack.fleet("rollout", "create", "digits:1", "--exclude-unfit")
    assert done.code == 0, done.err
    assert "skip: 1 device left out: cannot take the release: new-2" in done.err
    shown = stack.ok("rollout", "show", done.out.strip()).out
    assert "no variant fits: best needs the runtime null" in shown
    assert "1 left out" in shown
    assert "cancelled" not in shown
