"""How long a device believes an answer about where blobs are."""

from __future__ import annotations

import msgspec
import pytest

from agent.install.fetch.offers import LEAST_VALID_S, Offers
from agent.install.fetch.sources import Errand
from tests.simulators.clock import FakeClock
from tests.simulators.packages import DIRECTOR_KEY, TRUST
from wire.codec import to_json
from wire.delivery import SOURCES_PAYLOAD_TYPE, BlobSources, DeltaSource, SourceRequest, Sources
from wire.messages import decode_message
from wire.trust.envelope import seal

DEVICE, BLOB = "dev-1", "1" * 64
DELTA = DeltaSource(base="2" * 64, sha256="3" * 64, size_bytes=5, chunk_bytes=1024)
VALID_S = 3600.0


@pytest.mark.parametrize(
    ("peers", "believed_s"), [(msgspec.UNSET, VALID_S), (("http://192.0.2.1:1/x",), LEAST_VALID_S)]
)
def test_other_devices_come_and_go_while_a_delta_stays(
    peers: tuple[str, ...] | msgspec.UnsetType, believed_s: float
) -> None:
    clock, asked = FakeClock(), []

    def publish(_topic: str, payload: bytes, _expiry_s: int | None) -> bool:
        request = decode_message(payload, SourceRequest)
        asked.append(request)
        way = BlobSources(sha256=BLOB, delta=DELTA, peers=peers)
        answer = Sources(device=DEVICE, nonce=request.nonce, blobs=(way,), valid_s=VALID_S)
        offers.hear(seal(to_json(answer), payload_type=SOURCES_PAYLOAD_TYPE, keys=[DIRECTOR_KEY]))
        return True

    offers = Offers(DEVICE, publish, TRUST, clock)
    for after_s, times in ((0.0, 1), (believed_s - 1, 1), (1.0, 2)):
        clock.advance(after_s)
        found = offers.of(BLOB, Errand(asks=True))
        assert found is not None
        assert found.peers == peers
        assert len(asked) == times
