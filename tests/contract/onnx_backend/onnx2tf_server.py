"""onnx2tf, started once for many models: run by the interpreter of its own environment.

It takes most of a second to import, and the rest of that second to convert its first model. So a
first model is converted here, and each after that in a copy of this process, which is then as fresh
as a new one. It ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import sys

from onnx2tf import onnx2tf  # type: ignore[import-not-found] # of the tool's environment

LOG = "onnx2tf.log"
FAILED = 1


def main() -> None:
    """Convert a first model, then serve."""
    address, first = sys.argv[1:]
    os.chdir(first)
    convert(["-i", "model.onnx", "-o", "out", "--tflite_backend", "flatbuffer_direct"])
    with socket.socket(socket.AF_UNIX) as server, selectors.DefaultSelector() as selector:
        server.bind(address)
        server.listen()
        selector.register(server, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while sys.stdin not in {key.fileobj for key, _ in selector.select()}:
            connection, _ = server.accept()
            with connection:
                answer(connection)


def answer(connection: socket.socket) -> None:
    """Convert what a request names: a folder and the arguments of onnx2tf."""
    with connection.makefile("rb") as stream:
        folder, arguments = json.loads(stream.readline())
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        os.environ["HOME"] = os.environ["TMPDIR"] = folder
        log = os.open(LOG, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os._exit(convert(arguments))
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        connection.sendall(b"%d" % os.waitstatus_to_exitcode(status))


def convert(arguments: list[str]) -> int:
    """Run onnx2tf's own command, and return its exit status."""
    sys.argv = ["onnx2tf", *arguments]
    try:
        onnx2tf.main()
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except BaseException as exc:  # noqa: BLE001 - as an interpreter would
        sys.stderr.write(f"{type(exc).__name__}: {exc}\n")
        return FAILED
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    main()
