"""A PostgreSQL server of its own for a benchmark, with the durability that it has by default."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OPTIONS = ("listen_addresses=", "unix_socket_permissions=0700", "shared_buffers=256MB",
           "max_wal_size=4GB")  # fmt: skip


@contextmanager
def postgres() -> Iterator[str | None]:
    """Start a server for the `with` block.

    Yields:
        SQLAlchemy URL of a database, or None where PostgreSQL is not installed.
    """
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        yield None
        return
    binaries = found[-1].parent
    folder = Path(tempfile.mkdtemp(prefix="edgefleet-pg-"))
    prefix: list[str] = []
    if os.geteuid() == 0:  # which PostgreSQL refuses
        user = pwd.getpwnam("nobody")
        os.chown(folder, user.pw_uid, user.pw_gid)
        prefix = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    data = folder / "data"
    made = [*prefix, str(binaries / "initdb"), "-D", str(data), "-U", "fleet", "-A", "trust"]
    subprocess.run([*made, "-E", "UTF8", "--locale=C"], check=True, capture_output=True, cwd="/")
    options = [word for option in OPTIONS for word in ("-c", option)]
    server = subprocess.Popen(
        [*prefix, str(binaries / "postgres"), "-D", str(data), "-k", str(folder), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
    )
    try:
        ready = [str(binaries / "pg_isready"), "-h", str(folder), "-U", "fleet", "-d", "postgres"]
        for _ in range(200):
            if subprocess.run(ready, capture_output=True, check=False).returncode == 0:
                break
            time.sleep(0.1)
        yield f"postgresql+psycopg://fleet@/postgres?host={folder}"
    finally:
        server.send_signal(signal.SIGINT)  # which waits for no client
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)
