"""Calls the tools of others without their output, and turns their errors into one kind.

Rules:
- An exception of a tool becomes a `StepError` of one line; a `MemoryError` stays a `MemoryError`.
- Output and log lines below the level of an error are dropped. Logging is restored afterwards.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

from packager.errors import StepError
from packager.fault_text import typed_line
from wire.errors import FleetError


@contextlib.contextmanager
def tool(name: str) -> Iterator[None]:
    """Run a tool within a `with` block.

    Args:
        name: The tool, as the error message calls it.

    Yields:
        Nothing.

    Raises:
        StepError: The tool raised something.
        FleetError: It was one of ours.
        MemoryError: There was none left.
    """
    root = logging.root
    before, level, handlers = root.manager.disable, root.level, root.handlers[:]
    logging.disable(max(before, logging.WARNING))
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (FleetError, MemoryError):
        raise
    except Exception as exc:
        raise StepError(f"{name} failed: {typed_line(exc)}") from exc
    finally:
        logging.disable(before)
        root.setLevel(level)  # OpenVINO's converter takes the root logger for its own
        root.handlers[:] = handlers
