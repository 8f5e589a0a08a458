"""`fleet alert` against a controller in this process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.api.server import HttpServer
from tests.simulators.alert_rig import Rig
from tests.simulators.receiver import running_receiver
from tests.simulators.stack import Done, fleet_here, fleet_on_terminal

RULES = """
[[alert]]
name = "hot"
summary = "a board is near its limit"
kind = "threshold"
metric = "temperature_c"
stat = "max"
window = "1m"
by = ["device"]
above = 85
clear = 80

[[alert]]
name = "silent-device"
kind = "absence"
enabled = false
"""


class Commands:
    """A controller, and commands that ask it."""

    def __init__(self, rig: Rig, url: str, directory: Path) -> None:
        self.rig = rig
        self.file = directory / "alerts.toml"
        self.file.write_text(RULES)
        self._where = ("--url", url, "--token-file", str(directory / "api.token"))

    def run(self, *words: str) -> Done:
        return fleet_here("alert", *words, *self._where)

    def ok(self, *words: str) -> Done:
        done = self.run(*words)
        assert done.code == 0, done.err
        return done

    def on_terminal(self, *words: str, columns: int) -> str:
        return fleet_on_terminal("alert", *words, *self._where, columns=columns).out

    def heated(self, *values: float) -> None:
        for celsius in values:
            self.rig.look(cam1=celsius)


@pytest.fixture
def fleet(sqlite_template: Path, tmp_path: Path) -> Iterator[Commands]:
    database = tmp_path / "fleet.db"
    database.write_bytes(sqlite_template.read_bytes())
    with running_receiver() as receiver:
        rig = Rig(f"sqlite:///{database}", tmp_path, receiver)
        rig.fleet.enrol("cam1", "cam2", site="berlin")
        server = HttpServer("127.0.0.1", 0)
        server.start(rig.fleet.controller.app)
        yield Commands(rig, f"http://127.0.0.1:{server.port}", tmp_path)
        server.stop()
        rig.fleet.close()
        rig.database.close()


def rows(done: Done) -> list[list[str]]:
    return [re.split(r"  +", line.strip()) for line in done.out.splitlines()]


def test_rules_are_applied_and_listed(fleet: Commands) -> None:
    dry = fleet.ok("apply", str(fleet.file), "--dry-run")
    assert dry.out == "added hot\nchanged silent-device: summary, enabled\n"
    assert "nothing was changed: --dry-run" in dry.err
    assert [row[0] for row in rows(fleet.ok("rules"))] == ["ALERT", "silent-device"]
    assert fleet.ok("apply", str(fleet.file)).out == dry.out
    assert fleet.ok("apply", str(fleet.file)).out == "nothing changes\n"
    fleet.heated(50)
    found = {row[0]: row for row in rows(fleet.ok("rules"))}
    assert found["hot"][1:4] == ["threshold", "warning", "evaluated"]
    assert found["silent-device"][3] == "off"
    (changed, _) = fleet.ok("rules", "--json").json
    assert changed["spec"]["above"] == 85.0
    fleet.file.write_text("alert = []\n")
    removed = fleet.ok("apply", str(fleet.file))
    assert removed.out == "changed silent-device: summary, enabled\nremoved hot\n"
    assert removed.err == "", "no alert was open"


def test_alerts_are_listed_acknowledged_and_shown(fleet: Commands) -> None:
    fleet.ok("apply", str(fleet.file))
    assert rows(fleet.ok("list"))[1:] == []
    fleet.heated(90)
    (row,) = rows(fleet.ok("list"))[1:]
    assert (row[0], row[1], row[2], row[4]) == ("hot", "device=cam1", "firing", "90")
    (acked,) = rows(fleet.ok("ack", "hot", "cam1", "--for", "2h", "--comment", "on its way"))[1:]
    assert re.search(r" until 20\d\d-.*: on its way", " ".join(acked))
    fleet.heated(70)
    assert rows(fleet.ok("list"))[1:] == []
    assert [row[2] for row in rows(fleet.ok("list", "--all"))[1:]] == ["resolved"]
    shown = fleet.ok("show", "hot").out
    for text in ("temperature_c", "device=cam1", "acknowledged", "on its way", "rule-added"):
        assert text in shown
    history: list[dict[str, Any]] = fleet.ok("show", "hot", "--json").json["history"]
    assert [each["what"] for each in history] == [
        "resolved", "acknowledged", "firing", "rule-added",
    ]  # fmt: skip


def test_who_is_on_call_sees_what_matters_in_80_columns(fleet: Commands) -> None:
    text = (
        RULES
        + """
[[alert]]
name = "warm"
kind = "threshold"
metric = "temperature_c"
stat = "max"
by = ["device"]
above = 60
severity = "critical"
summary = "a fan may be dead: look at the device, and take it out of the sun if there is any"
"""
    )
    fleet.file.write_text(text)
    fleet.ok("apply", str(fleet.file))
    fleet.heated(90)
    lines = fleet.on_terminal("list", columns=80).splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["warm", "hot"]
    for word in ("firing", "critical", "90 \N{DEGREE SIGN}C (> 60 \N{DEGREE SIGN}C)"):
        assert word in lines[1]
    assert "warm: a fan may be dead: look at the device" in " ".join(lines)
    assert all(len(re.sub(r"\x1b\[\d*m", "", line)) <= 80 for line in lines)
    fleet.ok("ack", "warm", "cam1")
    assert "firing, acked" in fleet.on_terminal("list", columns=80)
    for words in (("show", "hot"), ("test", str(fleet.file))):
        assert re.search(r"\b90 \N{DEGREE SIGN}C\b", fleet.on_terminal(*words, columns=120))


def test_rules_that_can_find_nothing_are_doubted(fleet: Commands) -> None:
    fleet.file.write_text(
        RULES.replace('"temperature_c"', '"temprature_c"\nselector = "site=gate"')
    )
    for more in (["--dry-run"], []):
        told = " ".join(fleet.ok("apply", str(fleet.file), *more).err.split())
        assert "did you mean temperature_c or hw.temperature?" in told
        assert told.count("did you mean temperature_c") == 1
        assert "hot: no device matches its selector 'site=gate'" in told
    fleet.file.write_text(
        RULES.replace('"temperature_c"', '"temperature_c"\nselector = "sight=gate"')
    )
    told = " ".join(fleet.ok("apply", str(fleet.file), "--dry-run").err.split())
    assert "'sight=gate'; no device has a label 'sight'; did you mean site?" in told


def test_values_that_there_are_not_are_named(fleet: Commands) -> None:
    fleet.heated(90)
    fleet.file.write_text(
        RULES.replace("above = 85", 'above = 85\nwhere = ["device=cam7"]\nselector = "site=berln"')
    )
    for words in (("apply", "--dry-run"), ("test", "--since=10m")):
        told = " ".join(fleet.ok(words[0], str(fleet.file), words[1]).err.split())
        assert (
            "hot: no temperature_c has device=cam7; did you mean cam1? there are the devices cam1"
        ) in told
        assert "no device has site=berln; did you mean berlin?" in told


def test_a_rule_that_cannot_be_tested_keeps_no_other_back(fleet: Commands) -> None:
    fleet.heated(90)
    other = RULES.partition("\n[[alert]]")[2].partition("[[alert]]")[0]
    broken = f"[[alert]]{other}".replace('"hot"', '"broken"').replace("temperature_c", "own_metric")
    fleet.file.write_text(RULES + broken)
    done = fleet.run("test", str(fleet.file), "--since", "1h")
    assert done.code == 1
    assert [row[0] for row in rows(done)[1:]] == ["hot"]
    assert "broken could not be tested: no device has reported a metric 'own_metric'" in done.err


def test_groups_with_too_few_values_are_told(fleet: Commands) -> None:
    fleet.file.write_text(
        '[[alert]]\nname = "slow"\nkind = "change"\nmetric = "inference_latency_ms"\n'
        'stat = "p95"\nwindow = "1m"\nabove = 1.5\nmin_count = 100\n'
    )
    told = " ".join(fleet.ok("apply", str(fleet.file)).err.split())
    assert "slow: min_count = 100 is less than a change of p95 needs; 200 is taken" in told
    for _ in range(2):
        fleet.rig.fleet.clock.advance(60.0)
        fleet.rig.answered("cam1", *[4.0] * 50)
    fleet.rig.look(after_s=0.0)
    note = "slow: too few values in 1 group: p95 is compared where each window has 200"
    for words in (["rules"], ["test", str(fleet.file), "--since", "5m"]):
        assert note in " ".join(fleet.ok(*words).err.split())
    assert "note" in fleet.ok("show", "slow").out


def test_a_rule_that_cannot_be_evaluated_is_listed_with_its_reason(fleet: Commands) -> None:
    fleet.file.write_text(RULES.replace("temperature_c", "own_metric"))
    applied = fleet.ok("apply", str(fleet.file)).err
    assert "warning: hot: no device has reported a metric 'own_metric'" in applied
    assert "`fleet alert test " in applied
    fleet.heated(50)
    done = fleet.ok("list")
    assert rows(done)[1][:3] == ["hot", "-", "error"]
    assert "no device has reported a metric 'own_metric'" in done.err


def test_a_file_is_tested_over_the_past(fleet: Commands) -> None:
    fleet.heated(50, 90, 90, 50, 50)
    done = fleet.ok("test", str(fleet.file), "--since", "1h")
    ((name, group, _fired, _resolved, lasted, furthest),) = rows(done)[1:]
    assert (name, group, lasted, furthest) == ("hot", "device=cam1", "4m", "90")
    assert "silent-device would not have fired" not in done.out
    (hot, silent) = fleet.ok(
        "test", str(fleet.file), "--since", "1h", "--step", "2m", "--json"
    ).json
    assert (hot["step_s"], silent["alert"]) == (120, "silent-device")
    assert "less than 2 minutes longer than the window may be missing" in silent["note"]
    assert rows(fleet.ok("rules"))[1][0] == "silent-device"  # nothing was applied


def test_webhooks_are_tested(fleet: Commands) -> None:
    assert rows(fleet.ok("test", "--webhook"))[1][:3] == ["pager", "yes", "0"]
    fleet.rig.receiver.answers = [500]
    done = fleet.run("test", "--webhook")
    assert (done.code, rows(done)[1]) == (1, ["pager", "no", "0", "it answers 500"])


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("test",), "there is nothing to test; give either FILE or --webhook"),
        (("test", "FILE", "--webhook"), "there is nothing to test"),
        (("test", "FILE", "--since", "5"), "--since: '5' has no unit"),
        (("test", "FILE", "--since", "1y"), "--since: '1y' is not a duration"),
        (("test", "FILE", "--step", "90s"), "a step of 90 s is not whole minutes"),
        (("apply", "none.toml"), "cannot read none.toml: no such file or directory"),
        (("show", "hott"), "there is no alert 'hott'"),
        (("show", "a/b"), "'a/b' is not an identifier"),
        (("ack", "silent-device"), "silent-device has no pending or firing alert"),
        (("ack", "silent-device", "--for", "soon"), "--for: 'soon' is not a duration"),
    ],
)
def test_the_users_fault_is_one_line(fleet: Commands, words: tuple[str, ...], fault: str) -> None:
    done = fleet.run(*(str(fleet.file) if word == "FILE" else word for word in words))
    assert (done.code, done.out) == (2, "")
    assert fault in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('window = "1m"', 'windw = "1m"', "alert hot: there is no setting windw (did you mean"),
        ("[[alert]]", "[[alerts]]", "there is no setting alerts (did you mean alert?)"),
        ("[[alert]]", "[[alert]", "not TOML: expected"),
        (RULES, "", "there is no table [[alert]]"),
        ("above = 85", "above = 2026-01-01", "above must be a number or nothing, not a text"),
        ("above = 85", "above = nan", "above is not a number"),
    ],
)
def test_a_fault_in_the_file_is_one_line(fleet: Commands, old: str, new: str, fault: str) -> None:
    fleet.file.write_text(RULES.replace(old, new))
    for command in ("apply", "test"):
        done = fleet.run(command, str(fleet.file))
        assert (done.code, done.out) == (2, "")
        assert fault in done.err
        assert done.err.count("\n") == 1
