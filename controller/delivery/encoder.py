"""The process that makes one delta: `python -m controller.delivery.encoder JOB.json`.

Encoding takes seconds to minutes, and memory for the delta. In a process of its own it can crash or
be ended, and the controller goes on.

Rules:
- It has the lowest priority, a limit of memory, and is the first that the kernel ends where memory
  runs out; as far as the system lets it.
- It ends when its parent ends: then its standard input ends.
- A delta that pays is applied once before it counts; one that does not pay is not written. One that
  pays needs no more memory than the limit.
"""

from __future__ import annotations

import mmap
import os
import resource
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from wire.codec import from_json
from wire.delta import formats, layout
from wire.delta.decode import decode
from wire.delta.encode import encode

NICE: Final = 19


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a file."""

    name: str
    path: str
    beside: dict[str, str] = {}
    """Name to path of the files in its directory that may say where its tensors are."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Which delta to make."""

    old: Source
    new: Source
    output: str
    """Where the delta goes; beside it the new file is made once, and removed."""

    memory_bytes: int


def main(arguments: list[str]) -> int:
    """Do one job.

    Args:
        arguments: The path of the job's file.

    Returns:
        0: the delta is there, or it does not pay.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    job = from_json(Path(arguments[0]).read_bytes(), Job)
    _restrain(job.memory_bytes)
    with suppress(MemoryError):
        _make(job)
    return 0


def _make(job: Job) -> None:
    old, new, output = Path(job.old.path), Path(job.new.path), Path(job.output)
    with ExitStack() as opened:
        before, after = _content(opened, old), _content(opened, new)
        delta = encode(
            before,
            after,
            old_places=_places(opened, job.old, before),
            new_places=_places(opened, job.new, after),
        )
        full_bytes = len(after)
    if layout.pays(len(delta), full_bytes):
        unchecked, applied = output.with_suffix(".unchecked"), output.with_suffix(".applied")
        unchecked.write_bytes(delta)
        del delta
        decode(old, unchecked, applied, limit_bytes=full_bytes)
        applied.unlink()
        unchecked.rename(output)


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


def _restrain(memory_bytes: int) -> None:
    with suppress(OSError):
        os.nice(NICE)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def _content(opened: ExitStack, path: Path) -> Any:  # noqa: ANN401 - bytes or a map
    file = opened.enter_context(path.open("rb"))
    if not os.fstat(file.fileno()).st_size:
        return b""
    # A map is closed with the process: the arrays over it live until then.
    return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def _places(opened: ExitStack, source: Source, content: Any) -> list[Any]:  # noqa: ANN401 - see above
    siblings = {name: _content(opened, Path(path)) for name, path in source.beside.items()}
    return list(formats.places(source.name, content, siblings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
