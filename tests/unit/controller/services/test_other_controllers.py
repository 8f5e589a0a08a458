"""Only a start that the director's key signed counts, and only another's."""

from __future__ import annotations

import pytest

from controller.services.other_controllers import MAX_START_BYTES, OtherControllers
from tests.simulators.clock import FakeClock
from tests.simulators.packages import DIRECTOR_KEY, STRANGER_KEY
from wire import topics
from wire.codec import to_json
from wire.desired import DESIRED_PAYLOAD_TYPE
from wire.presence import CONTROLLER_START_PAYLOAD_TYPE, ControllerStart
from wire.trust.envelope import SigningKey, seal

START = to_json(ControllerStart(start_id="another", at_s=1e9))


class Published:
    """Keeps what is published."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def publish(self, topic: str, payload: bytes, *, expiry_s: int | None = None) -> bool:
        assert (topic, expiry_s) == (topics.CONTROLLER_STARTS, None)
        self.payloads.append(payload)
        return True


def announced(
    key: SigningKey = DIRECTOR_KEY, *, later_s: float = 0.0, share: str | None = None
) -> tuple[OtherControllers, bytes]:
    published, clock = Published(), FakeClock()
    clock.advance(later_s)
    controllers = OtherControllers(key, published, clock, share=share)
    controllers.announce()
    return controllers, published.payloads[0]


def test_the_start_of_a_copy_is_another_s_and_its_own_is_not() -> None:
    first, own = announced()
    copy, other = announced(later_s=1.0)
    assert first.must_give_way(other)
    assert not first.must_give_way(own)
    assert not copy.must_give_way(own), "a recording of an earlier start stops nothing"


def test_one_that_started_before_and_comes_back_is_told_again() -> None:
    _first, own = announced()
    published, clock = Published(), FakeClock()
    clock.advance(1.0)
    copy = OtherControllers(DIRECTOR_KEY, published, clock)
    assert not copy.must_give_way(own)
    assert announced()[0].must_give_way(published.payloads[0])


def test_members_of_a_group_do_not_give_way_to_each_other_but_to_others() -> None:
    first, _own = announced(share="a")
    assert not first.must_give_way(announced(later_s=1.0, share="a")[1])
    assert first.must_give_way(announced(later_s=1.0, share="b")[1])
    assert first.must_give_way(announced(later_s=1.0)[1])
    assert announced()[0].must_give_way(announced(later_s=1.0, share="a")[1])


@pytest.mark.parametrize("payload", [
    b"", b"{}", START, bytes(MAX_START_BYTES + 1),
    seal(START, payload_type=CONTROLLER_START_PAYLOAD_TYPE, keys=(STRANGER_KEY,)),
    seal(START, payload_type=DESIRED_PAYLOAD_TYPE, keys=(DIRECTOR_KEY,)),
    seal(b"{}", payload_type=CONTROLLER_START_PAYLOAD_TYPE, keys=(DIRECTOR_KEY,)),
])  # fmt: skip
def test_what_the_director_did_not_sign_as_a_start_is_ignored(payload: bytes) -> None:
    assert not announced()[0].must_give_way(payload)


def test_the_controller_of_another_fleet_is_ignored() -> None:
    assert not announced()[0].must_give_way(announced(STRANGER_KEY)[1])
