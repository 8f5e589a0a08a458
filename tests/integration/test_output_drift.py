"""`fleet telemetry drift`: what devices count, compared with what the package carries."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from controller.api.server import HttpServer
from tests.simulators.controller_fleet import API_TOKEN, Fleet
from tests.simulators.packages import package, variant
from tests.simulators.telemetry_fleet import Served
from wire import topics
from wire.clock import SystemClock
from wire.codec import to_msgpack
from wire.package.distribution import Distribution
from wire.telemetry import SumPoint, TelemetryBatch
from wire.transport import Received

DEVICES = 8
BY_CLASS = Distribution(
    of="output", tensor="y", measure="class", classes=(0, 1, 2), counts=(100, 100, 100, 0)
)
BY_MEAN = Distribution(
    of="input", tensor="x", measure="mean", edges=(0.3, 0.6), counts=(100, 100, 100)
)
COUNTS = {
    ("output.y", "class"): (90, 5, 4, 1),  # nearly all answers are class 0 now
    ("input.x", "mean"): (34, 33, 33),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("fleet")
    fleet = Fleet(f"sqlite:///{directory / 'fleet.db'}", directory)
    # Commands ask for the last day by their own clock.
    fleet.clock.correct(SystemClock().now_s() - fleet.clock.now_s())
    server = HttpServer("127.0.0.1", 0)
    token_file = directory / "api.token"
    token_file.write_text(API_TOKEN)
    plain = variant("a")
    info = msgspec.structs.replace(plain.info, distributions=(BY_CLASS, BY_MEAN))
    a = msgspec.structs.replace(plain, info=info)
    try:
        assert fleet.publish(package("1.0", [(a, b"{}")])) == "digits:1.0"
        fleet.publish(package("2.0", [(a, b"{}")]))
        fleet.publish(package("0.9", [(plain, b"{}")]))
        names = [f"cam-{number}" for number in range(DEVICES)]
        fleet.enrol(*names, site="berlin")
        for number, name in enumerate(names):
            count(fleet, name, number)
        server.start(fleet.controller.app)
        yield Served(fleet, server, token_file)
    finally:
        server.stop()
        fleet.close()


def count(fleet: Fleet, device: str, number: int) -> None:
    """Let a device report what it has counted; devices differ a little."""
    minute = int(fleet.clock.now_s() // 60) - 5
    points = tuple(
        SumPoint(
            metric="model_samples_total",
            minute=minute,
            attributes={
                "release": "digits:1.0",
                "variant": "a",
                "tensor": tensor,
                "measure": measure,
                "bin": str(place),
            },
            value=float(samples + (number + place) % 3),
        )
        for (tensor, measure), counts in COUNTS.items()
        for place, samples in enumerate(counts)
    )
    batch = TelemetryBatch(device=device, boot_id="b", sequence=1, points=points)
    fleet.hub.deliver(Received(topics.up(device, "telemetry"), to_msgpack(batch)))


def test_what_moved_is_named_and_what_did_not_is_not(served: Served) -> None:
    found = served.ok("telemetry", "drift", "digits:1.0", "--json").json
    assert (found["release"], found["variants"]) == ("digits:1.0", 1)
    by_class, by_mean = found["parts"]
    assert (by_class["variant"], by_class["tensor"], by_class["measure"]) == (
        "a", "output.y", "class",
    )  # fmt: skip
    assert by_class["moved"]
    assert by_class["stability_index"] > 0.25
    assert 0 < by_class["distance"] < 1
    assert by_class["devices"] == DEVICES
    assert by_class["chance"] < 0.005
    assert not by_mean["moved"]
    assert by_mean["stability_index"] < 0.01
    assert by_mean["samples"] == pytest.approx(DEVICES * 103, abs=DEVICES)


def test_people_and_programs_get_the_same(served: Served) -> None:
    heading, first, second, _, said = served.ok("telemetry", "drift", "digits:1.0").out.splitlines()
    assert heading.split()[:4] == ["VARIANT", "TENSOR", "MEASURE", "PSI"]
    assert (first.split()[:3], first.split()[-1]) == (["a", "output.y", "class"], "yes")
    assert second.split()[-1] == "no"
    assert said == "beyond what chance gives: class of output.y (a)"
    lines = served.ok("telemetry", "drift", "digits:1.0", "--csv").out.splitlines()
    assert lines[0].startswith("variant,tensor,measure,stability_index,distance,samples")
    assert len(lines) == 3


def test_of_few_devices_nothing_is_told(served: Served) -> None:
    some = ("--selector", "id=cam-1")
    found = served.ok("telemetry", "drift", "digits:1.0", *some, "--json").json
    assert [(part["devices"], part["chance"], part["moved"]) for part in found["parts"]] == [
        (1, None, False)
    ] * 2
    said = served.ok("telemetry", "drift", "digits:1.0", *some).out.splitlines()[-1]
    assert said == ("whether they moved cannot be told: fewer than 5 devices have counted requests")


def test_devices_that_moved_furthest_come_first(served: Served) -> None:
    asked = ("telemetry", "drift", "digits:1.0", "--by-device")
    found = served.ok(*asked, "--json").json
    assert (found["release"], found["variants"]) == ("digits:1.0", 1)
    assert {d["device"] for d in found["devices"]} == {f"cam-{n}" for n in range(DEVICES)}
    for each in found["devices"]:
        assert (each["variant"], each["tensor"], each["measure"]) == ("a", "output.y", "class")
        assert each["stability_index"] > 10 * each["by_chance"] > 0
    beyond = [d["stability_index"] / d["by_chance"] for d in found["devices"]]
    assert beyond == sorted(beyond, reverse=True)
    heading, first, *rest = served.ok(*asked, "--limit", "3").out.splitlines()
    assert heading.split()[:4] == ["DEVICE", "VARIANT", "TENSOR", "MEASURE"]
    assert first.split()[0] == found["devices"][0]["device"]
    assert len(rest) == 2
    ratios = [float(line.split()[-2]) for line in (first, *rest)]
    assert ratios == sorted((round(each, 2) for each in beyond), reverse=True)[:3]
    quiet = served.ok("telemetry", "drift", "digits:2.0", "--by-device").out
    assert quiet == "no device has counted enough samples of what it is asked and answers\n"
    for words, said in (
        (("--by-device", "--unit", "site"), "--unit does not go with --by-device"),
        (("--limit", "3"), "--limit goes with --by-device alone"),
    ):
        refused = served.run("telemetry", "drift", "digits:1.0", *words)
        assert (refused.code, said in refused.err) == (2, True)


def test_all_devices_of_a_site_may_be_one_observation(served: Served) -> None:
    found = served.ok("telemetry", "drift", "digits:1.0", "--unit", "site", "--json").json
    assert [(p["devices"], p["units"], p["chance"]) for p in found["parts"]] == [
        (DEVICES, 1, None)
    ] * 2
    said = served.ok("telemetry", "drift", "digits:1.0", "--unit", "site").out.splitlines()[-1]
    assert said.endswith("cannot be told: fewer than 5 groups by site have counted requests")
    refused = served.run("telemetry", "drift", "digits:1.0", "--unit", "sight")
    assert refused.code == 2
    assert "no device has a label 'sight' that could be the unit" in refused.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("digits:2.0",), "no device has counted samples of what it is asked"),
        (("digits:0.9",), "digits:0.9 carries no evaluation to compare with"),
    ],
)
def test_where_there_is_nothing_to_compare_that_is_said(
    served: Served, words: tuple[str, ...], said: str
) -> None:
    assert served.ok("telemetry", "drift", *words).out.startswith(said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("digits:1.0", "--variant", "b"), "has no variant 'b'"),
        (("digits:7",), "digits:7"),
        (("digits:1.0", "--since", "soon"), "soon"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(
    served: Served, words: tuple[str, ...], said: str
) -> None:
    done = served.run("telemetry", "drift", *words)
    assert done.code == 2
    assert said in done.err
    assert done.out == ""


def test_a_device_cannot_make_up_bins(served: Served) -> None:
    fleet = served.fleet
    attributes = {
        "release": "digits:2.0", "variant": "a", "tensor": "output.y", "measure": "class",
    }  # fmt: skip
    minute = int(fleet.clock.now_s() // 60) - 5
    points = tuple(
        SumPoint(
            metric="model_samples_total", minute=minute, attributes=attributes | {"bin": place},
            value=1.0,
        )
        for place in ("4", "-1", "x", "", "\N{SUPERSCRIPT TWO}")
    )  # fmt: skip
    batch = TelemetryBatch(device="cam-0", boot_id="b", sequence=2, points=points)
    fleet.hub.deliver(Received(topics.up("cam-0", "telemetry"), to_msgpack(batch)))
    assert served.ok("telemetry", "drift", "digits:2.0", "--json").json["parts"] == []
