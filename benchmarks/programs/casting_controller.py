"""A controller that tells devices of casts and of nothing else: `casting_controller.py HOME`.

It is the controller as users run it; beside it, one more connection answers requests for sources.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Final

from controller.app.logs import configure_logging
from controller.app.service import Controller
from controller.broker.access import OpenAccess
from controller.broker.connection import connection
from controller.config import load_config, read_director_key
from wire import topics
from wire.codec import to_json
from wire.messages import (
    SOURCES_PAYLOAD_TYPE,
    BlobSources,
    SourceRequest,
    Sources,
    decode_message,
)
from wire.stop_signals import on_stop_signal
from wire.transport import Received
from wire.trust.envelope import seal

VALID_S: Final = 600.0


def main(home: Path) -> None:
    """Run until a signal ends it.

    Args:
        home: The controller's directory.
    """
    configure_logging()
    config = load_config(home / "controller.toml")
    key = read_director_key(config)
    controller = Controller(config, OpenAccess())
    transport = connection(config)

    def answer(received: Received) -> None:
        request = decode_message(received.payload, SourceRequest)
        offers = {
            each: controller.delivery.chunks.offer(request.device, each) for each in request.blobs
        }
        told = Sources(
            device=request.device,
            nonce=request.nonce,
            blobs=tuple(
                BlobSources(sha256=sha256, cast=cast) for sha256, cast in offers.items() if cast
            ),
            valid_s=VALID_S,
        )
        sealed = seal(to_json(told), payload_type=SOURCES_PAYLOAD_TYPE, keys=(key,))
        transport.publish(topics.down(request.device, "sources"), sealed)

    stop = threading.Event()
    with on_stop_signal(stop.set):
        controller.start()
        transport.subscribe(f"{topics.PREFIX}/dev/+/up/source_request")
        transport.start(answer, lambda _connection: None)
        stop.wait()
        transport.close()
        controller.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
