"""A real registry on loopback: Debian's package `docker-registry`."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from examples.digits.box import free_port
from tests.simulators.certificates import Certificate
from tests.simulators.patience import PATIENCE_S, until

USER: Final = "robot"
PASSWORD: Final = "not-to-be-seen"
HTPASSWD: Final = "robot:$2b$05$abcdefghijklmnopqrstuuX4Cw6IYH1k3/bAGa3XScB9X84pnWz5S\n"
"""The password's bcrypt hash, by `crypt(3)`."""


@contextmanager
def real_registry(
    directory: Path, *, certificate: Certificate | None = None, needs_login: bool = False
) -> Iterator[str]:
    """Run a registry, and return its host and port.

    Args:
        directory: Where it keeps everything.
        certificate: For TLS; without it the registry speaks clear text.
        needs_login: Whether it asks for `USER` and `PASSWORD`.
    """
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is not installed")
    host = f"127.0.0.1:{free_port()}"
    settings: dict[str, object] = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(directory / "storage")}},
        "http": {"addr": host},
    }
    if certificate is not None:
        tls = {"certificate": str(certificate.cert_file), "key": str(certificate.key_file)}
        settings["http"] = {"addr": host, "tls": tls}
    if needs_login:
        (directory / "htpasswd").write_text(HTPASSWD)
        settings["auth"] = {"htpasswd": {"realm": "test", "path": str(directory / "htpasswd")}}
    config = directory / "registry.yml"
    config.write_text(json.dumps(settings))  # JSON is YAML
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory)}
    with (directory / "registry.log").open("wb") as log:
        process = subprocess.Popen(
            [program, "serve", str(config)], stdout=log, stderr=log, env=environment
        )
    try:
        until(lambda: process.poll() is not None or _listens(host), "the registry")
        assert process.poll() is None, (directory / "registry.log").read_text()
        yield host
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _listens(host: str) -> bool:
    name, port = host.split(":")
    with suppress(OSError), socket.create_connection((name, int(port))):
        return True
    return False
