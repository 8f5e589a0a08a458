"""The process that serves gRPC: `python -P -m agent.grpc_endpoint.process`.

The supervisor writes a `Setup` into its standard input and keeps that open; the process answers
with a `Told` on its standard output.

Rules:
- It never outlives the supervisor: when its input breaks, the kernel ends it.
- It decides nothing and knows no model; it asks the agent's endpoint.
- When memory runs out, it ends before the supervisor: it can be replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Final

from agent.grpc_endpoint.setup import STOP_SIGNAL, Setup, Told
from agent.lifeline import hang_on
from wire.codec import from_json, to_json

MAX_SETUP_BYTES: Final = 64 * 1024
OOM_SCORE_ADJUSTMENT: Final = "700"
"""Before a worker (500), which is needed by those who ask over HTTP, too."""

PRIVATE_MASK: Final = 0o117
"""A Unix socket is for the agent's user and group."""

GRACE_S: Final = 1.0
"""How long calls may go on after a stop."""

INPUT: Final = 0
OUTPUT: Final = 1


async def serve(setup: Setup) -> None:
    """Serve until the supervisor asks for the end.

    Args:
        setup: Where and how.

    Raises:
        ImportError: grpcio or protobuf is missing.
        OSError: The address or a file cannot be used.
        RuntimeError: gRPC cannot use them.
    """
    from agent.grpc_endpoint.backend import Backend
    from agent.grpc_endpoint.messages import Messages
    from agent.grpc_endpoint.server import listen
    from agent.grpc_endpoint.service import Service

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.Signals[STOP_SIGNAL], stop.set)
    backend = Backend(setup.endpoint_path, setup.calls)
    service = Service(backend, Messages(), token=setup.token, limit_bytes=setup.max_message_bytes)
    server, address = await listen(setup, service)
    _tell(Told(address=address))
    await stop.wait()
    await server.stop(GRACE_S)
    backend.close()


def main() -> None:
    """Run the process."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.umask(PRIVATE_MASK)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a dump would hold the token and the key
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE_ADJUSTMENT)
    line = _line()
    if not line:
        return  # the supervisor is gone
    hang_on(INPUT)
    try:
        asyncio.run(serve(from_json(line, Setup, limit_bytes=MAX_SETUP_BYTES)))
    except ImportError as exc:
        remedy = "pip install 'edgefleet[grpc]'"
        _tell(Told(fault=f"{exc.name} is not installed", remedy=remedy, is_final=True))
        sys.exit(1)
    except OSError as exc:
        _tell(Told(fault=(exc.strerror or str(exc)).lower()))
        sys.exit(1)
    except RuntimeError as exc:
        _tell(Told(fault=" ".join(str(exc).split())))
        sys.exit(1)


def _tell(told: Told) -> None:
    os.write(OUTPUT, to_json(told) + b"\n")


def _line() -> bytes:
    """Read the setup and nothing beyond it; empty if the supervisor is gone."""
    line = b""
    while not line.endswith(b"\n"):
        block = os.read(INPUT, MAX_SETUP_BYTES)
        if not block:
            return b""
        line += block
    return line


if __name__ == "__main__":
    main()
