"""What a user would pick instead of us to bring a file to a machine.

Rules:
- A peer that is not installed is left out, and says what is missing.
- None of them checks what it received against a signature, resumes by itself, or makes sure that
  the file is on the disk.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from benchmarks.programs import program
from examples.digits.box import free_port
from tests.simulators.patience import until

FOLDERS: Final = "/usr/sbin:/usr/local/sbin"
LIMIT_S: Final = 30.0
NGINX: Final = """\
daemon off;
{user}
worker_processes 1;
pid {folder}/nginx.pid;
events {{}}
http {{
  access_log off;
  sendfile on;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""
MOSQUITTO: Final = """\
listener {port} 127.0.0.1
allow_anonymous true
set_tcp_nodelay true
persistence false
log_dest stderr
log_type subscribe
{user}
"""
"""No limit on the size of a message, which is Mosquitto's default."""


def found(name: str) -> str | None:
    """Return the path of a program, or None where it is not installed.

    Args:
        name: The program.
    """
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{FOLDERS}")


@contextlib.contextmanager
def raw_server(files: Sequence[Path]) -> Iterator[list[int]]:
    """Serve files over bare TCP; yield a port for each.

    Args:
        files: What to serve.
    """
    command = [sys.executable, "-I", program("file_server"), *map(str, files)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        line = process.stdout.readline() if process.stdout else ""
        yield [int(port) for port in line.split()]
        if process.stdin:
            process.stdin.close()


@dataclass(frozen=True, slots=True)
class Nginx:
    """A running nginx, and curl."""

    port: int
    root: Path
    out: Path

    def url(self, file: Path) -> str:
        """Return where a file below the served folder is."""
        return f"http://127.0.0.1:{self.port}/{file.relative_to(self.root)}"

    def fetch_s(self, file: Path) -> float:
        """Fetch a file by curl; return how long curl took by its own clock.

        Args:
            file: Below the served folder.

        Returns:
            Seconds.
        """
        url = self.url(file)
        out = ("-o", str(self.out), "-w", "%{time_total}")
        command = ["curl", "-sSf", "--noproxy", "*", *out, url]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT_S)
        self.out.unlink()
        return float(done.stdout)


@contextlib.contextmanager
def nginx(root: Path, folder: Path) -> Iterator[Nginx | None]:
    """Serve a folder; yield None where nginx or curl is not installed.

    Args:
        root: What to serve.
        folder: For its own files.
    """
    server = found("nginx")
    if server is None or found("curl") is None:
        yield None
        return
    folder.mkdir()
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(
        NGINX.format(user=_user("user root root;"), folder=folder, port=port, root=root)
    )
    command = [server, "-p", str(folder), "-c", str(config), "-e", str(folder / "error.log")]
    with _running(command, port, folder / "out.log"):
        yield Nginx(port, root, folder / "fetched")


@dataclass(frozen=True, slots=True)
class MosquittoClients:
    """A Mosquitto of its own and the two programs that come with it."""

    port: int
    log: Path
    out: Path

    def send_s(self, file: Path) -> float:
        """Send a file as one message.

        Args:
            file: What to send.

        Returns:
            How long it took from the start of `mosquitto_pub` to the end of `mosquitto_sub`.

        Raises:
            RuntimeError: Something else arrived.
        """
        where = ("-h", "127.0.0.1", "-p", str(self.port), "-t", "file", "-q", "1")
        known = self.log.read_text().count(" file\n")
        with (
            self.out.open("wb") as out,
            subprocess.Popen(["mosquitto_sub", *where, "-C", "1", "-N"], stdout=out) as listener,
        ):
            until(lambda: self.log.read_text().count(" file\n") > known, "a subscription")
            began_s = time.monotonic()
            subprocess.run(["mosquitto_pub", *where, "-f", file], check=True, timeout=LIMIT_S)
            listener.wait(LIMIT_S)
            took_s = time.monotonic() - began_s
        if self.out.stat().st_size != file.stat().st_size:
            raise RuntimeError("mosquitto_sub received something else")
        self.out.unlink()
        return took_s


@contextlib.contextmanager
def mosquitto_clients(folder: Path) -> Iterator[MosquittoClients | None]:
    """Run a broker for its own clients; yield None where these are not installed.

    Args:
        folder: For its own files.
    """
    server = found("mosquitto")
    if server is None or not (found("mosquitto_pub") and found("mosquitto_sub")):
        yield None
        return
    folder.mkdir()
    port = free_port()
    config, log = folder / "mosquitto.conf", folder / "log"
    config.write_text(MOSQUITTO.format(port=port, user=_user("user root")))
    with _running([server, "-c", str(config)], port, log):
        yield MosquittoClients(port, log, folder / "received")


def _user(line: str) -> str:
    """Return a line for a server that would otherwise change to a user that may not exist."""
    return line if os.geteuid() == 0 else ""


@contextlib.contextmanager
def _running(command: list[str], port: int, log: Path) -> Iterator[None]:
    with log.open("wb") as sink, subprocess.Popen(command, stdout=sink, stderr=sink) as process:
        try:
            own = psutil.Process(process.pid)
            until(
                lambda: process.poll() is not None or _listens(own, port),
                lambda: f"a server: {log.read_text()[-500:]}",
            )
            if process.poll() is not None:
                raise RuntimeError(f"a server ended: {log.read_text()[-500:]}")
            yield
        finally:
            process.terminate()
            process.wait(LIMIT_S)


def _listens(process: psutil.Process, port: int) -> bool:
    """Tell whether a process, or its child, listens on a port."""
    return any(
        each.status == psutil.CONN_LISTEN and each.laddr.port == port
        for each in process.net_connections()
    )
