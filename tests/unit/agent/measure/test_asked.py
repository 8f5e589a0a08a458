"""A request to measure: signed, for this device, for this start of it, and new."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agent.errors import RefusedError
from agent.measure.asked import read_asked
from tests.simulators.packages import DIRECTOR_KEY, RELEASE_KEY, TRUST, package, variant
from wire.codec import to_json
from wire.desired import DESIRED_PAYLOAD_TYPE
from wire.errors import SignatureError, WireFormatError
from wire.measuring import MEASURE_PAYLOAD_TYPE, Measure
from wire.trust.envelope import SigningKey, seal

ASKED = Measure(
    device="dev-1",
    id="m-1",
    boot_id="boot",
    issued_at_s=5.0,
    limit_s=60.0,
    release=package("1.0.0", [(variant("a"), b"{}")]).ref,
)


def signed(
    request: Measure, key: SigningKey = DIRECTOR_KEY, payload_type: str = MEASURE_PAYLOAD_TYPE
) -> bytes:
    return seal(to_json(request), payload_type=payload_type, keys=(key,))


def read(envelope: bytes, after_s: float = -1.0) -> Measure:
    return read_asked(envelope, TRUST, device="dev-1", boot_id="boot", after_s=after_s)


def test_a_good_request_is_read() -> None:
    assert read(signed(ASKED)) == ASKED


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "dev-2"},
        {"boot_id": "an earlier one"},
        {"id": "../etc"},
        {"id": ""},
        {"limit_s": 0.0},
        {"limit_s": 1e9},
        {"release": msgspec.structs.replace(ASKED.release, digest="../x")},
        {"release": msgspec.structs.replace(ASKED.release, envelope_size_bytes=2**40)},
    ],
)
def test_a_request_for_others_or_with_impossible_values_is_refused(
    changes: dict[str, Any],
) -> None:
    with pytest.raises(RefusedError):
        read(signed(msgspec.structs.replace(ASKED, **changes)))


@pytest.mark.parametrize("after_s", [5.0, 6.0])
def test_a_recording_is_refused(after_s: float) -> None:
    with pytest.raises(RefusedError, match="newer"):
        read(signed(ASKED), after_s)


def test_only_the_director_may_ask() -> None:
    with pytest.raises(SignatureError):
        read(signed(ASKED, RELEASE_KEY))


def test_a_signed_desired_state_is_no_request() -> None:
    with pytest.raises((SignatureError, WireFormatError)):
        read(signed(ASKED, payload_type=DESIRED_PAYLOAD_TYPE))
