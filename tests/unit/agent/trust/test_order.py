"""The desired state that is followed, and whether those who order now have signed it."""

from __future__ import annotations

import base64

from agent.trust.order import NOBODY, Order
from wire.desired import DESIRED_PAYLOAD_TYPE
from wire.trust.envelope import SigningKey, seal
from wire.trust.root import Role

OLD, NEW = SigningKey(bytes(range(32))), SigningKey(bytes(range(1, 33)))


def role(*keys: SigningKey) -> Role:
    return Role(keys=tuple(base64.b64encode(key.public_key).decode() for key in keys))


def order(*signers: SigningKey) -> Order:
    envelope = seal(b"{}", payload_type=DESIRED_PAYLOAD_TYPE, keys=signers)
    return Order(envelope, role(OLD))


def test_a_device_that_follows_nothing_finds_no_fault() -> None:
    assert Order().not_by(NOBODY) is None
    assert Order().not_by(role(NEW)) is None


def test_an_order_counts_beside_a_new_key_and_no_more_without_its_own() -> None:
    followed = order(OLD)
    assert followed.not_by(role(OLD)) is None
    assert followed.not_by(role(OLD, NEW)) is None
    why = followed.not_by(role(NEW))
    assert why is not None
    assert "waits for a new order" in why
    assert followed.not_by(NOBODY) == why


def test_an_order_of_both_keys_outlives_the_old_one() -> None:
    followed = order(OLD, NEW)
    assert followed.not_by(role(NEW)) is None
    assert followed.not_by(role(OLD)) is None
