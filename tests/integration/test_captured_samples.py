"""Captures at the controller: who is asked for samples, which are kept, and for how long."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.capture_settings import CaptureConfig
from tests.simulators.controller_fleet import Fleet
from tests.simulators.packages import two_variants
from wire import topics
from wire.capture import PIECE_BYTES, CaptureRule, SampleHead
from wire.codec import to_json, to_msgpack
from wire.messages import decode_message
from wire.samples import SampleAck, SamplePiece
from wire.transport import Received

URL = "/v1/captures"
KEY = base64.b64encode(bytes(range(32))).decode()
DAY_S = 86_400.0
BOUNDS = CaptureConfig(keep_days=10, max_samples=3, max_bytes=6 * PIECE_BYTES)


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """A controller that keeps few samples, and two devices that run a model."""
    made = Fleet(database_url, tmp_path)
    made.controller.app.state.services.captures._bounds = BOUNDS
    made.publish(two_variants("1"))
    made.enrol("cam-1", site="berlin")
    made.enrol("cam-2", site="paris")
    assert made.run(made.roll_out("digits:1", stages=[{"percent": 100}]))["state"] == "succeeded"
    yield made
    made.close()


def start(fleet: Fleet, **how: Any) -> dict[str, Any]:
    answer = fleet.api.put(f"{URL}/digits", json={"public_key": KEY, **how})
    assert answer.status_code == 200, answer.text
    fleet.step()
    shown: dict[str, Any] = fleet.api.get(URL).json()[0]
    return shown


def rule(fleet: Fleet, device: str) -> CaptureRule | None:
    """What a device was told last to capture."""
    wanted = fleet.devices[device].documents[-1].model("digits")
    assert wanted is not None
    return None if isinstance(wanted.capture, msgspec.UnsetType) else wanted.capture


def piece(capture: str, letter: str, number: int = 0, pieces: int = 1, **how: Any) -> SamplePiece:
    head = SampleHead(
        capture=capture, sample=letter * 32, device=how.pop("device", "cam-1"), model="digits",
        release="digits:1", variant="best", at_s=1.0, why="share",
    )  # fmt: skip
    made = SamplePiece(
        device="cam-1", sample=letter * 32, head=to_json(head), piece=number, pieces=pieces,
        blob=b"last" if number == pieces - 1 else bytes(PIECE_BYTES),
    )  # fmt: skip
    return msgspec.structs.replace(made, **how)


def send(fleet: Fleet, what: SamplePiece, device: str = "cam-1") -> SampleAck | None:
    """Send a part; return the controller's answer."""
    before = len(fleet.hub.published)
    fleet.hub.deliver(Received(topics.up(device, "sample"), to_msgpack(what)))
    answers = [
        decode_message(each.payload, SampleAck)
        for each in fleet.hub.published[before:]
        if each.topic == topics.down(device, "sample_ack")
    ]
    return answers[0] if answers else None


def why(fleet: Fleet, what: SamplePiece) -> str:
    """Send a part; return why it is refused, empty if it is kept."""
    answer = send(fleet, what)
    assert answer is not None
    assert (answer.sample, answer.piece) == (what.sample, what.piece)
    return "" if isinstance(answer.refused, msgspec.UnsetType) else answer.refused


def test_devices_are_asked_from_the_start_to_the_stop_and_no_others(fleet: Fleet) -> None:
    assert fleet.api.get(URL).json() == []
    assert rule(fleet, "cam-1") is None
    shown = start(fleet, selector="site=berlin", share=0.01, bytes_per_day=5000)
    assert (shown["is_on"], shown["devices"], shown["accepted"]) == (True, 1, 1)
    told = rule(fleet, "cam-1")
    assert told == CaptureRule(id=shown["capture"], public_key=KEY, share=0.01, bytes_per_day=5000)
    assert rule(fleet, "cam-2") is None
    documents = len(fleet.devices["cam-1"].documents)
    fleet.step()
    assert len(fleet.devices["cam-1"].documents) == documents
    again = start(fleet, selector="site=paris", margin=0.1)
    assert again["capture"] != shown["capture"]
    assert rule(fleet, "cam-1") is None
    assert (rule(fleet, "cam-2") or CaptureRule(id="", public_key="")).margin == 0.1
    assert fleet.api.delete(f"{URL}/digits").status_code == 200
    fleet.step()
    assert rule(fleet, "cam-2") is None
    assert fleet.api.delete(f"{URL}/digits").json()["code"] == "controller.unknown.capture"


def test_what_cannot_be_is_refused(fleet: Fleet) -> None:
    for model, change, said in (
        ("digits", {"public_key": "short"}, "capture.public_key"),
        ("digits", {"share": 0.0}, "capture.share"),
        ("digits", {"margin": -1.0}, "capture.margin"),
        ("digits", {"selector": "site=="}, "selector"),
        ("other", {}, "there is no model 'other'"),
    ):
        answer = fleet.api.put(f"{URL}/{model}", json={"public_key": KEY} | change)
        assert answer.status_code in {400, 404, 422}
        assert said in answer.json()["message"]
    assert fleet.api.get(URL).json() == []


def test_parts_make_a_sample_however_often_they_come(fleet: Fleet) -> None:
    capture = start(fleet)["capture"]
    for number in (2, 0, 2, 0):
        assert why(fleet, piece(capture, "a", number, 3)) == ""
    shown = fleet.api.get(URL).json()[0]
    assert (shown["samples"], shown["partial"]) == (0, 1)
    assert fleet.api.get(f"{URL}/digits/samples").json() == []
    assert why(fleet, piece(capture, "a", 1, 3)) == ""
    assert why(fleet, piece(capture, "b")) == ""
    (first, _) = fleet.api.get(f"{URL}/digits/samples").json()
    assert (first["sample"], first["size_bytes"]) == ("a" * 32, 2 * PIECE_BYTES + 4)
    after = {"after_device": "cam-1", "after_sample": "a" * 32}
    (rest,) = fleet.api.get(f"{URL}/digits/samples", params=after).json()
    assert rest["sample"] == "b" * 32
    got = fleet.api.get(f"{URL}/digits/samples/cam-1/{'a' * 32}").json()
    assert base64.b64decode(got["sealed"]) == bytes(2 * PIECE_BYTES) + b"last"
    assert base64.b64decode(got["head"]) == piece(capture, "a").head
    changed = piece(capture, "a", head=piece(capture, "a").head + b" ")
    assert why(fleet, changed) == "the device sent another sample of that name"
    missing = fleet.api.get(f"{URL}/digits/samples/cam-2/{'a' * 32}")
    assert missing.json()["code"] == "controller.unknown.capture"


def test_what_is_not_wanted_is_refused_with_the_reason(fleet: Fleet) -> None:
    capture = start(fleet, bytes_per_day=100 * PIECE_BYTES)["capture"]
    assert why(fleet, piece("f" * 32, "a")) == "the capture has ended"
    assert "has no part 7" in why(fleet, piece(capture, "a", 7))
    assert "a sample has 99 parts" in why(fleet, piece(capture, "a", 0, 99))
    assert why(fleet, piece(capture, "a", device="cam-2")) == "the head is of another sample"
    assert why(fleet, piece(capture, "a", 0, 5)) == ""
    assert f"and {6 * PIECE_BYTES} may" in why(fleet, piece(capture, "b", 0, 2))
    fleet.controller.app.state.services.captures._bounds = msgspec.structs.replace(
        BOUNDS, max_bytes=10**9
    )
    assert why(fleet, piece(capture, "b")) == ""
    assert why(fleet, piece(capture, "c")) == ""
    assert "3 samples of model digits are kept" in why(fleet, piece(capture, "d"))
    assert send(fleet, piece(capture, "d"), "cam-2") is None, "it speaks for another"
    stranger = msgspec.structs.replace(piece(capture, "d"), device="new")
    assert send(fleet, stranger, "new") is None, "nobody has enrolled it"


def test_a_device_that_sends_more_than_it_was_asked_for_is_not_heard(fleet: Fleet) -> None:
    capture = start(fleet, bytes_per_day=1)["capture"]
    assert why(fleet, piece(capture, "a")) == ""
    assert why(fleet, piece(capture, "b")) == "the device sent more than it was asked for"


def test_samples_go_when_they_are_old_and_stay_when_a_capture_stops(fleet: Fleet) -> None:
    capture = start(fleet)["capture"]
    assert why(fleet, piece(capture, "a")) == ""
    assert why(fleet, piece(capture, "b", 0, 2)) == ""
    fleet.api.delete(f"{URL}/digits").raise_for_status()
    fleet.clock.advance(8 * DAY_S)
    fleet.controller.app.state.services.captures.prune()
    (left,) = fleet.api.get(URL).json()
    assert (left["is_on"], left["samples"], left["partial"]) == (False, 1, 0)
    fleet.clock.advance(3 * DAY_S)
    fleet.controller.app.state.services.captures.prune()
    assert fleet.api.get(URL).json() == []
