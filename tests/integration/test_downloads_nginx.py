"""A real nginx, configured as docs/downloads.md says, that lets the controller check each link."""

from __future__ import annotations

import getpass
import http.client
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from controller.api.downloads import Downloads
from controller.api.protocol import DOWNLOADS
from controller.api.server import HttpServer
from controller.delivery.deltas import WithDeltas
from controller.delivery.links import Links
from controller.delivery.places import CheckedPlace
from controller.services.blobs import DELTAS_FOLDER, BlobStore
from examples.digits.box import free_port
from tests.simulators.certificates import Authority, Certificate
from tests.simulators.clock import FakeClock
from tests.simulators.patience import PATIENCE_S, until

HOST = "127.0.0.1"
PAGE = Path(__file__).parents[2] / "docs" / "downloads.md"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
CONTENT, OTHER, DELTA = os.urandom(300_000), os.urandom(1000), os.urandom(2000)
HOUR_S = 3600
MAIN = """\
daemon off;
{user}
worker_processes 1;
pid {folder}/nginx.pid;
events {{ worker_connections 64; }}
http {{
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {site}
}}
"""

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Site:
    place: CheckedPlace
    clock: FakeClock
    listener: HttpServer
    tls: ssl.SSLContext
    folder: Path
    sha256: str
    other: str
    delta: str

    def link(self, sha256: str | None = None) -> str:
        return self.place.link("cam-1", sha256 or self.sha256, self.clock.now_s(), HOUR_S)

    def ask(self, url: str, method: str = "GET", **headers: str) -> Answer:
        parts = urlsplit(url)
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        return self.ask_path(path, method, **headers)

    def ask_path(self, path: str, method: str = "GET", **headers: str) -> Answer:
        port = urlsplit(self.place.url).port
        connection = http.client.HTTPSConnection(HOST, port, timeout=PATIENCE_S, context=self.tls)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()


def configuration(folder: Path, blobs: Path, certificate: Certificate, port: int, to: int) -> str:
    """Return what the page says, with the names of this machine."""
    (site,) = re.findall(r"(?s)```nginx\n(.*?)```", PAGE.read_text())
    for of_page, ours in {
        "listen 8480 ssl;": f"listen {HOST}:{port} ssl;",
        "/etc/nginx/blobs.pem": str(certificate.cert_file),
        "/etc/nginx/blobs.key": str(certificate.key_file),
        "/var/log/nginx/blobs.log": str(folder / "error.log"),
        "/srv/edgefleet-blobs": str(blobs),
        "127.0.0.1:8471": f"{HOST}:{to}",
    }.items():
        assert site.count(of_page) == 1, of_page
        site = site.replace(of_page, ours)
    user = f"user {getpass.getuser()};" if os.geteuid() == 0 else ""
    return MAIN.format(user=user, folder=folder, site=site)


@contextmanager
def running(folder: Path) -> Iterator[Site]:
    """Run an nginx beside a listener that checks its links."""
    blobs, clock, links = BlobStore(folder / "blobs"), FakeClock(), Links(b"s" * 32)
    authority = Authority(folder, "ours")
    listener = HttpServer(HOST, 0, of=DOWNLOADS)
    kept = BlobStore(folder / "blobs" / DELTAS_FOLDER)
    listener.start(Downloads(WithDeltas(blobs, kept).open, links, clock))
    port = free_port()
    settings = folder / "nginx.conf"
    certificate = authority.issue("blobs")
    settings.write_text(configuration(folder, folder / "blobs", certificate, port, listener.port))
    line = [str(NGINX), "-p", str(folder), "-c", str(settings), "-e", str(folder / "start.log")]
    process = subprocess.Popen(line, stdin=subprocess.DEVNULL)
    try:
        until(lambda: listens(port) or process.poll() is not None, "nginx")
        assert process.poll() is None, (folder / "start.log").read_text()
        yield Site(
            place=CheckedPlace(f"https://{HOST}:{port}", links),
            clock=clock,
            listener=listener,
            tls=authority.client(None),
            folder=folder,
            sha256=blobs.put(CONTENT),
            other=blobs.put(OTHER),
            delta=kept.put(DELTA),
        )
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
        listener.stop()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running(tmp_path_factory.mktemp("nginx")) as made:
        yield made


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def test_nginx_gives_deltas_too(site: Site) -> None:
    answer = site.ask(site.link(site.delta), Range="bytes=5-9")
    assert (answer.status, answer.body) == (206, DELTA[5:10])


def test_a_link_gives_the_blob_and_its_parts(site: Site) -> None:
    whole = site.ask(site.link())
    assert (whole.status, whole.body) == (200, CONTENT)
    assert whole.headers["Accept-Ranges"] == "bytes"
    part = site.ask(site.link(), Range="bytes=1000-250999")
    assert (part.status, part.body) == (206, CONTENT[1000:251_000])
    assert part.headers["Content-Range"] == f"bytes 1000-250999/{len(CONTENT)}"
    head = site.ask(site.link(), "HEAD")
    assert (head.status, head.headers["Content-Length"]) == (200, str(len(CONTENT)))


def test_ranges_that_are_none(site: Site) -> None:
    assert site.ask(site.link(), Range=f"bytes={len(CONTENT)}-").status == 416
    several = site.ask(site.link(), Range="bytes=0-1,5-6")
    assert (several.status, several.body) == (200, CONTENT), "as the page says"


def test_without_a_valid_link_nobody_gets_anything(site: Site) -> None:
    link = site.link()
    for wrong in (
        link.partition("?")[0],
        f"{link}0",
        link.replace("cam-1", "cam-2"),
        link.replace(site.sha256, site.other),
        link.replace(site.sha256, "f" * 64),
    ):
        assert site.ask(wrong).status == 403
    assert site.ask(link, "POST").status == 403
    assert site.ask(site.link("f" * 64)).status == 404, "a valid link to a blob that is not there"


def test_a_link_that_has_expired_is_refused(site: Site) -> None:
    link = site.link()
    assert site.ask(link).status == 200
    site.clock.advance(HOUR_S)
    assert site.ask(link).status == 403


@pytest.mark.parametrize(
    "path",
    [
        "/blobs/{own}/../{other}?{query}",
        "/blobs/%2e%2e/blobs/{other}?{query}",
        "/blobs/{other}?{query}&x=/blobs/{own}",
        "/blobs/{other}%3f{query}?{query}",
        "/blobs/{other}?{query}%23/blobs/{own}",
        "/check/{other}?{query}",
        "/check?{query}",
        "/blobs/incoming/?{query}",
        "/blobs/{short}/{other}?{query}",
        "/nginx.conf",
        "/",
    ],
)
def test_a_link_leads_to_its_own_blob_however_the_path_is_written(site: Site, path: str) -> None:
    query = urlsplit(site.link()).query
    names = {"own": site.sha256, "other": site.other, "short": site.other[:2], "query": query}
    got = site.ask_path(path.format(**names))
    assert got.status in {403, 404}
    assert OTHER not in got.body
    written = site.ask_path(f"/blobs/../blobs/%{ord(site.sha256[0]):x}{site.sha256[1:]}?{query}")
    assert (written.status, written.body) == (200, CONTENT), "the path of the blob itself"


def test_no_log_holds_a_link(site: Site) -> None:
    for url in (site.link(), f"{site.link()}x", site.link("f" * 64)):
        site.ask(url)
    for log in site.folder.glob("*.log"):
        assert "signature" not in log.read_text()


def test_a_controller_that_is_away_is_500_and_the_device_goes_on(tmp_path: Path) -> None:
    with running(tmp_path) as site:
        site.listener.stop()
        assert site.ask(site.link()).status == 500
