"""Rules of captures, and the messages that bring samples: what cannot be is refused."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from wire.capture import MAX_PIECES, PIECE_BYTES, CaptureRule, SampleHead, pieces_of, read_head
from wire.codec import to_json
from wire.desired import DesiredModels, ModelState, desired_from_json, desired_to_json
from wire.errors import WireFormatError
from wire.samples import SamplePiece

RULE = CaptureRule(id="a" * 32, public_key=base64.b64encode(bytes(range(32))).decode())
HEAD = SampleHead(
    capture="a" * 32, sample="b" * 32, device="cam-1", model="m", release="m:1", variant="v",
    at_s=1.0, why="share",
)  # fmt: skip
PIECE = SamplePiece(
    device="cam-1", sample="b" * 32, head=to_json(HEAD), piece=0, pieces=2, blob=bytes(PIECE_BYTES)
)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"id": "A" * 32}, "capture.id"),
        ({"public_key": "not base64"}, "capture.public_key"),
        ({"public_key": "c2hvcnQ="}, "capture.public_key"),
        ({"share": 0.0}, "capture.share"),
        ({"share": 1.5}, "capture.share"),
        ({"margin": 0.0}, "capture.margin"),
        ({"margin": float("inf")}, "capture.margin"),
        ({"bytes_per_day": 0}, "capture.bytes_per_day"),
    ],
)
def test_rules_that_cannot_be(change: dict[str, Any], said: str | None) -> None:
    faults = msgspec.structs.replace(RULE, **change).faults()
    assert [fault.split()[0] for fault in faults] == ([said] if said else [])


def test_a_rule_comes_with_the_desired_state_of_its_model() -> None:
    model = ModelState(name="m", revision=1, release=None, capture=RULE)
    state = DesiredModels(device="cam-1", revision=1, issued_at_s=1.0, models=(model,))
    assert desired_from_json(desired_to_json(state, form=2)).models == (model,)
    bad = msgspec.structs.replace(model, capture=msgspec.structs.replace(RULE, share=2.0))
    faults = msgspec.structs.replace(state, models=(bad,)).faults()
    assert faults == ("model m: capture.share is not above 0 and at most 1",)
    silent = msgspec.structs.replace(
        state, models=(ModelState(name="m", revision=1, release=None),)
    )
    assert b"capture" not in desired_to_json(silent, form=2)


@pytest.mark.parametrize(
    "change",
    [
        {"pieces": 0},
        {"pieces": MAX_PIECES + 1},
        {"piece": -1},
        {"piece": 2},
        {"blob": b"short"},
        {"piece": 1, "blob": b""},
        {"piece": 1, "blob": bytes(PIECE_BYTES + 1)},
        {"head": bytes(4096)},
    ],
)
def test_parts_that_cannot_be(change: dict[str, Any]) -> None:
    assert not PIECE.faults()
    assert msgspec.structs.replace(PIECE, **change).faults()


def test_a_head_has_names_and_a_time() -> None:
    assert read_head(to_json(HEAD)) == HEAD
    for change in ({"sample": "../../x"}, {"capture": ""}):
        with pytest.raises(WireFormatError):
            read_head(to_json(msgspec.structs.replace(HEAD, **change)))
    assert [pieces_of(size) for size in (1, PIECE_BYTES, PIECE_BYTES + 1)] == [1, 1, 2]
