"""Names answers, so that an application can say later whether they were right.

Runs in the worker process, and only where the device takes feedback.

Rules:
- An answer has the id of its request. A request without one gets an id that no other answer of
  this device has.
- Beside the id the supervisor gets the class of each sample: the greatest of its scores, which is
  found as drift finds it. The answer itself is not kept.
- A request with more than `MOST_SAMPLES` samples has no classes: what is kept of one must be small.
"""

from __future__ import annotations

import itertools
import secrets
from typing import Final

from agent.serve.frames import Given
from runtime_adapters.distributions import rows_of, values
from runtime_adapters.protocol import Tensors
from wire.package.distribution import CLASS
from wire.package.scores import classes_of
from wire.package.variant import VariantInfo

MOST_SAMPLES: Final = 16
_RANDOM_BYTES: Final = 6
"""Of an id: it tells the workers of a device apart, of which it has a few thousand at most."""


class Namer:
    """Names the answers of one worker. Not for several threads.

    Args:
        info: What the variant declares.
    """

    def __init__(self, info: VariantInfo) -> None:
        classes = classes_of(info)
        name = classes.output if classes is not None else None
        self._spec = next((spec for spec in info.outputs if spec.name == name), None)
        self._stem = secrets.token_hex(_RANDOM_BYTES)
        self._numbers = itertools.count()

    def name(self) -> str:
        """Return a new id."""
        return f"{self._stem}-{next(self._numbers):x}"

    def given(self, name: str, outputs: Tensors) -> Given:
        """Return what the supervisor is told of an answer.

        Args:
            name: Its id.
            outputs: The outputs of the model.
        """
        if self._spec is None:
            return Given(id=name)
        try:
            rows = rows_of(outputs[self._spec.name], self._spec)
            classes = values(CLASS, rows).tolist() if len(rows) <= MOST_SAMPLES else []
        except (KeyError, ValueError, TypeError, MemoryError):
            classes = []  # the outputs are not as declared; the client has its answer all the same
        return Given(id=name, classes=tuple(classes))
