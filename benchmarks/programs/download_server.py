"""The controller's download listener alone: `download_server.py BLOBS SHA256 [CERT KEY]`.

It prints its port and the path of a link to the blob, and ends with its input.
"""

from __future__ import annotations

import sys
from pathlib import Path

from controller.api.downloads import Downloads
from controller.api.protocol import DOWNLOADS
from controller.api.server import HttpServer
from controller.api.tls import server_tls
from controller.delivery.links import SECRET_BYTES, Links
from controller.services.blobs import BlobStore
from wire.clock import SystemClock

HOUR_S = 3600

folder, sha256, *certificate = sys.argv[1:]
clock, links = SystemClock(), Links(bytes(SECRET_BYTES))
tls = server_tls(certificate[0], certificate[1], DOWNLOADS) if certificate else None
server = HttpServer("127.0.0.1", 0, tls=tls, of=DOWNLOADS)
server.start(Downloads(BlobStore(Path(folder)).open, links, clock))
print(server.port, links.path_of("bench", sha256, int(clock.now_s()) + HOUR_S), flush=True)
sys.stdin.read()
server.stop()
