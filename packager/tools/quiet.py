"""How this package calls other people's tools: quietly, and with one kind of error.

Rules:
- What a tool raises comes out as a `StepError` of one line; running out of memory stays what it is.
- What a tool prints or logs below an error is dropped, and logging is as before afterwards.
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
    before = logging.root.manager.disable
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
