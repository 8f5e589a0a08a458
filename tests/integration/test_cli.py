"""The command line as users run it: a process of its own, against a real controller and broker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulators.packages import package, variant
from tests.simulators.patience import until
from tests.simulators.stack import Puppet, Stack, fleet_on_terminal, running_stack
from wire.trust.envelope import SigningKey

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("cli")]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack() as running:
        yield running


@pytest.fixture(scope="module")
def releases(stack: Stack) -> list[str]:
    """Two releases, published from package directories."""
    key = SigningKey(stack.release_key.read_bytes())
    refs = []
    for version in ("1", "2"):
        signed = package(version, [(variant("best"), b"model " + version.encode())], key=key)
        signed.write_to(stack.home.parent / f"package-{version}")
        done = stack.ok("release", "publish", str(stack.home.parent / f"package-{version}"))
        assert done.out == f"published digits:{version} {signed.digest}\n"
        refs.append(f"digits:{version}")
    return refs


@pytest.fixture(scope="module")
def puppets(stack: Stack) -> Iterator[dict[str, Puppet]]:
    """Three enrolled devices, one of which fails every install."""
    token = stack.ok("token", "create", "--uses", "3", "--label", "stage=lab").out.strip()
    made = {
        name: Puppet(stack, name, token, "failed" if name == "bad-1" else "succeeded")
        for name in ("cam-1", "cam-2", "bad-1")
    }
    yield made
    for puppet in made.values():
        puppet.transport.close()


def test_status(stack: Stack) -> None:
    assert stack.ok("controller", "status", "--json").json["broker_connected"] is True
    assert "status            ok" in stack.ok("controller", "status").out


def test_publishing_again_sends_nothing(stack: Stack, releases: list[str]) -> None:
    done = stack.ok("release", "publish", str(stack.home.parent / "package-1"))
    assert "sent 0 of 3 files" in done.err


def test_releases_are_listed_and_shown(stack: Stack, releases: list[str]) -> None:
    listed = stack.ok("release", "list", "--json").json
    assert {f"{r['name']}:{r['version']}" for r in listed} >= set(releases)
    assert "digits:1" in stack.ok("release", "list").out
    shown = stack.ok("release", "show", "digits:1").out
    assert "null" in shown
    assert "best" in shown
    digest = stack.ok("release", "show", "digits:1", "--json").json["digest"]
    assert stack.ok("release", "show", digest, "--json").json["version"] == "1"


def test_damaged_package_is_not_published(stack: Stack, tmp_path: Path) -> None:
    key = SigningKey(stack.release_key.read_bytes())
    package("9", [(variant("best"), b"model")], key=key).write_to(tmp_path / "p")
    (tmp_path / "p" / "variants" / "best" / "model.json").write_bytes(b"MODEL")
    done = stack.fleet("release", "publish", str(tmp_path / "p"))
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith("differs from the signed index; build the package again\n")


def test_package_of_a_stranger_is_not_published(stack: Stack, tmp_path: Path) -> None:
    package("9", [(variant("best"), b"model 9")]).write_to(tmp_path / "p")
    done = stack.fleet("release", "publish", str(tmp_path / "p"))
    assert done.code == 2
    assert done.err.startswith("fleet: ")
    assert done.err.count("\n") == 1


def test_devices_enrol_and_are_managed(stack: Stack, puppets: dict[str, Puppet]) -> None:
    devices = stack.ok("device", "list", "--json").json
    assert [d["id"] for d in devices] == ["bad-1", "cam-1", "cam-2"]
    assert devices[0]["labels"] == {"site": "berlin", "stage": "lab"}
    table = stack.ok("device", "list", "--selector", "id=cam-1").out.splitlines()
    assert len(table) == 2
    assert table[0].startswith("DEVICE")
    stack.ok("device", "label", "cam-1", "owner=kim", "stage-")
    shown = stack.ok("device", "show", "cam-1")
    assert "owner=kim site=berlin" in shown.out
    assert "serves peers" not in shown.out
    puppets["cam-1"].peer_url = "http://192.168.1.20:8471"
    puppets["cam-1"].come_back()
    told = (
        "serves peers at  http://192.168.1.20:8471 "
        "(nobody is told: peers.label is not set on the controller)\n"
    )
    until(lambda: told in stack.ok("device", "show", "cam-1").out, "a hello of cam-1")
    shown = stack.ok("device", "show", "cam-1", "--json")
    assert shown.json["peer_url"] == "http://192.168.1.20:8471"
    assert stack.ok("device", "quarantine", "cam-2").out == "cam-2 quarantined\n"
    assert stack.ok("device", "restore", "cam-2").out == "cam-2 enrolled\n"


def test_staged_rollout_succeeds(
    stack: Stack, releases: list[str], puppets: dict[str, Puppet]
) -> None:
    done = stack.fleet(
        "rollout", "create", releases[0], "--selector", "id in (cam-1,cam-2)", "--stage", "1",
        "--stage", "100%", "--max-in-flight", "1", "--watch",
    )  # fmt: skip
    assert done.code == 0, done.out + done.err
    lines = done.out.splitlines()
    assert f"rollout {lines[0]} succeeded: 2 succeeded; 2 in all" in lines
    assert any(line.startswith("stage 2 of 2 (to 2): done") for line in lines)
    shown = stack.ok("rollout", "show", lines[0], "--json").json
    assert shown["state"] == "succeeded"
    assert "cam-1" in stack.ok("rollout", "show", lines[0]).out
    assert lines[0] in stack.ok("rollout", "list").out
    assert stack.ok("device", "show", "cam-1", "--json").json["release"] == releases[0]


def test_the_stages_of_a_rollout_are_counted_from_1(
    stack: Stack, releases: list[str], puppets: dict[str, Puppet]
) -> None:
    created = stack.ok(
        "rollout", "create", releases[1], "--selector", "id in (cam-1,cam-2)", "--stage", "1",
        "--stage", "100%", "--soak", "1h",
    ).out.strip()  # fmt: skip
    shown = stack.ok("rollout", "show", created).out
    assert "made for 2 devices in 2 stages" in shown
    rows = [line.split() for line in shown.splitlines() if line.startswith("cam-")]
    assert {row[0] for row in rows} == {"cam-1", "cam-2"}
    assert all("0" not in row for row in rows), "a device that has not started is in no stage"
    stack.ok("rollout", "abort", created)


def test_failing_rollout_halts_and_is_rolled_back(
    stack: Stack, releases: list[str], puppets: dict[str, Puppet]
) -> None:
    created = stack.ok("rollout", "create", releases[1], "--json").json
    done = stack.fleet("rollout", "watch", created["id"])
    assert done.code == 1, done.out + done.err
    assert "halted" in done.out
    assert "1 failed with agent.probe (bad-1): golden test failed" in done.out
    last = done.out.splitlines()[-1]
    assert "exit status 1. `fleet rollout" in last
    failed = stack.ok("rollout", "show", created["id"], "--state", "failed").out
    assert [line.split()[0] for line in failed.splitlines() if "agent.probe" in line] == ["bad-1"]
    assert "cam-" not in failed.partition("bad-1")[2].partition("\n\n")[0]
    few = stack.ok("rollout", "show", created["id"], "--limit", "1").out
    assert "and 2 devices more: --limit shows more; --state failed" in few
    assert stack.fleet("rollout", "show", created["id"], "--state", "broken").code == 2
    assert "\x1b" not in done.out
    back = stack.fleet("rollout", "rollback", created["id"], "--to", releases[0])
    assert back.code == 0, back.err
    stack.fleet("rollout", "watch", back.out.strip())
    shown = stack.ok("rollout", "show", back.out.strip(), "--json").json
    assert (shown["release"], shown["rollback_of"]) == (releases[0], created["id"])
    assert f"rollback of {created['id']}" in stack.ok("rollout", "list").out
    first = stack.ok("rollout", "show", created["id"]).out
    assert f"rolled back by  {back.out.strip()}" in first
    assert shown["finished_at_s"] is not None


def test_orders(stack: Stack, releases: list[str], puppets: dict[str, Puppet]) -> None:
    created = stack.ok(
        "rollout", "create", releases[1], "--selector", "id=cam-2", "--soak", "1h"
    ).out.strip()
    assert "paused" in stack.ok("rollout", "pause", created).out
    assert "running" in stack.ok("rollout", "resume", created).out
    assert "aborted" in stack.ok("rollout", "abort", created).out
    assert "made for 1 device in 1 stage\n" in stack.ok("rollout", "show", created).out
    again = stack.fleet("rollout", "resume", created)
    assert again.code == 2
    assert again.err.count("\n") == 1


def test_on_a_terminal(stack: Stack, releases: list[str], puppets: dict[str, Puppet]) -> None:
    where = ("--home", str(stack.home))
    listed = fleet_on_terminal("device", "list", *where)
    assert (listed.code, listed.err) == (0, "")
    assert "cam-1" in listed.out
    created = stack.ok("rollout", "create", releases[1], "--selector", "id=cam-2").out.strip()
    watched = fleet_on_terminal("rollout", "watch", created, *where)
    assert (watched.code, watched.err) == (0, "")
    assert "1 of 1" in watched.out
    assert "succeeded" in watched.out


def test_why_and_telemetry(stack: Stack, puppets: dict[str, Puppet]) -> None:
    puppets["cam-1"].send_telemetry()
    until(lambda: bool(stack.ok("why", "cam-1", "--json").json), "no telemetry")
    told = stack.ok("why", "cam-1", "--kind", "switch", "--since", "1h").out.splitlines()
    assert told[0].endswith(" switch: headroom 0.91 is above 0.85")
    assert told[1:] == [
        "    variant: small",
        "    inputs: headroom=0.91",
        "    not best: not the cheapest while hot",
    ]
    nothing = stack.ok("why", "cam-1", "--kind", "drift")
    assert nothing.err.startswith("no events of kind drift of cam-1 within 1h")
    for command in (("why",), ("telemetry", "events")):
        wrong = stack.fleet(*command, "cam-1", "--kind", "switch", "--kind", "swich")
        assert (wrong.code, wrong.out) == (2, "")
        assert wrong.err.startswith("fleet: --kind: there is no kind of events 'swich'; kinds are")
        assert "switch" in wrong.err
    assert len(stack.ok("telemetry", "events", "cam-1", "--csv").out.splitlines()) == 3
    few = stack.ok("telemetry", "events", "cam-1", "--limit", "1", "--json")
    assert len(few.json) == 1
    assert re.fullmatch(
        r"there are more: these are the newest 1; --limit shows up to 1000, --until "
        r"'[-0-9]{10} [:0-9]{8}' shows those before\n",
        few.err,
    )
    assert "there are more" in stack.ok("why", "cam-1", "--limit", "1").err
    assert not stack.ok("telemetry", "events", "cam-1", "--limit", "2").err
    query = (
        "telemetry", "query", "inference_latency_ms", "--stat", "p50,p95,count",
        "--by", "variant", "--where", "device=cam-1",
    )  # fmt: skip
    table = stack.ok(*query, "--json").json
    row = dict(zip(table["columns"], table["rows"][0], strict=True))
    assert row["variant"] == "best"
    assert row["count"] == 100
    assert row["p50"] == pytest.approx(50, rel=0.03)
    assert row["p95"] == pytest.approx(95, rel=0.03)
    assert stack.ok(*query, "--csv").out.splitlines()[0] == ",".join(table["columns"])
    assert "best" in stack.ok(*query).out
    listed = {each["name"]: each for each in stack.ok("telemetry", "metrics", "--json").json}
    latency = listed["inference_latency_ms"]
    assert (latency["kind"], latency["unit"], latency["series"]) == ("histogram", "ms", 1)
    assert latency["attributes"] == ["variant"]
    assert "answered" in latency["meaning"]
    assert "inference_latency_ms" in stack.ok("telemetry", "metrics").out


def test_telemetry_across_the_fleet(stack: Stack, puppets: dict[str, Puppet]) -> None:
    puppets["cam-1"].send_telemetry()
    every = ("telemetry", "events", "--json")
    until(lambda: bool(stack.ok(*every).json), "no telemetry")
    complete = {each["device"]: each for each in stack.ok("telemetry", "devices", "--json").json}
    assert complete["cam-1"]["batches"] >= 1
    assert complete["cam-2"]["newest_at_s"] is None
    silent = stack.ok("telemetry", "devices", "--silent", "10m").out
    assert "cam-2" in silent
    assert "never" in silent
    assert "cam-1" not in silent
    assert "cam-2" not in stack.ok("telemetry", "devices", "--selector", "id=cam-1").out
    assert "cam-2" not in stack.ok("telemetry", "devices", "--losing").out
    assert {event["device"] for event in stack.ok(*every).json} == {"cam-1"}
    assert stack.ok(*every, "--where", "variant=small").json
    assert stack.ok(*every, "--where", "variant=large").json == []
    assert stack.ok(*every, "--selector", "id!=cam-1").json == []
    assert stack.ok(*every, "--until", "1h", "--since", "2h").json == []
    assert stack.fleet("telemetry", "events", "cam-one").code == 2
    by_site = ("telemetry", "query", "inference_latency_ms", "--stat", "count", "--json", "--by")
    found = stack.ok(*by_site, "arch,agent_version", "--selector", "id=cam-1").json
    assert (found["columns"], len(found["rows"])) == (["arch", "agent_version", "count"], 1)
    assert found["rows"][0][2] >= 100
    assert stack.ok(*by_site, "arch", "--selector", "id!=cam-1").json["rows"] == []
    assert stack.ok(*by_site, "arch", "--until", "1h", "--since", "2h").json["rows"] == []
    both = ("--where", "variant=best", "--where", "variant=small")
    assert stack.ok(*by_site, "variant", *both).json["rows"] == [["best", found["rows"][0][2]]]
    assert stack.ok("telemetry", "query", "inference_latency_ms", "--json").json["columns"] == [
        "count", "mean", "p50", "p95", "max",
    ]  # fmt: skip
    top = ("telemetry", "top", "inference_latency_ms", "--json", "--stat")
    (first,) = stack.ok(*top, "p95", "--by", "device,variant").json["rows"]
    assert first[:2] == ["cam-1", "best"]
    assert stack.fleet(*top, "p95,p50").code == 2
    pair = ("best", "best", "--by", "variant")
    found = stack.ok("telemetry", "compare", "inference_latency_ms", *pair)
    assert "fewer than 5 devices have values" in found.out
    none = stack.fleet("telemetry", "compare", "inference_latency_ms", "a:1", "b:1")
    assert (none.code, "no values with release=a:1" in none.err) == (2, True)
    wrong = stack.fleet(*by_site, "sight")
    assert (wrong.code, "no device has it as a label" in wrong.err) == (2, True)


POLICY = """
kind = "adaptive"
dwell_s = 10.0

[objective]
min_retention = 0.98
deadline_ms = 100.0
"""


def test_policies(
    stack: Stack, releases: list[str], puppets: dict[str, Puppet], tmp_path: Path
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(POLICY)
    made = stack.ok("policy", "set", "lab", "--file", str(file), "--selector", "stage=lab")
    assert made.out == "policy lab: adaptive for stage=lab\n"
    every = stack.ok(
        "policy", "set", "everyone", "--kind", "rules", "--priority", "-1", "--json"
    ).json
    assert (every["selector"], every["priority"], every["policy"]["kind"]) == ("", -1, "rules")
    assert [p["name"] for p in stack.ok("policy", "list", "--json").json] == ["lab", "everyone"]
    table = stack.ok("policy", "list").out.splitlines()
    assert table[0].split() == [
        "POLICY", "PRIORITY", "MODEL", "SELECTOR", "KIND", "DEVICES", "ACCEPTED", "CHANGED", "(UTC)"
    ]  # fmt: skip
    assert table[1].split()[:5] == ["lab", "0", "all", "stage=lab", "adaptive"]
    shown = stack.ok("policy", "show", "lab").out
    assert "objective.deadline_ms           100\n" in shown
    # What options say counts more than the file.
    again = stack.ok(
        "policy", "set", "lab", "--file", str(file), "--deadline-ms", "50", "--json"
    ).json
    objective = again["policy"]["objective"]
    assert (objective["deadline_ms"], objective["min_retention"]) == (50.0, 0.98)
    assert again["selector"] == "", "what is not given is not kept from before"
    stack.ok("policy", "set", "lab", "--file", str(file), "--battery-hours", "6")
    shown = stack.ok("policy", "show", "lab").out
    assert "objective.battery_lasts_s       21600\n" in shown
    assert "battery_until" not in shown, "there is no such aim"
    told = stack.ok("policy", "set", "lab", "--file", str(file), "--battery-until", "18:00")
    assert told.out.splitlines()[1] == (
        "changed: objective.battery_lasts_s=none (was 21600)  "
        "objective.battery_until=18:00 (was none)"
    )
    shown = stack.ok("policy", "show", "lab").out
    assert "objective.battery_until         18:00\n" in shown
    assert "battery_lasts_s" not in shown, "only one aim counts"
    told = stack.ok("policy", "set", "lab", "--kind", "adaptive", "--priority", "3")
    assert told.out.splitlines()[1] == (
        "changed: dwell_s=5 (was 10)  objective.battery_lasts_s=14400 (was none)  "
        "objective.battery_until=none (was 18:00)  "
        "objective.deadline_ms=none (was 100)  objective.min_retention=0 (was 0.98)  "
        "priority=3 (was 0)"
    )
    stack.ok("policy", "set", "lab", "--file", str(file))
    assert "policy           lab (" in stack.ok("device", "show", "cam-2").out
    assert stack.ok("device", "show", "cam-2", "--json").json["policy"] == "lab"
    assert stack.ok("policy", "remove", "lab").out == "removed policy lab\n"
    stack.ok("policy", "remove", "everyone")
    assert (
        "policy           the default, as no policy of the fleet matches ("
        in stack.ok("device", "show", "cam-2").out
    )
