"""Whether a request is itself the cause when its answer takes too long.

Rules:
- A request of one sample is never the cause: a variant that cannot answer one in time is too slow.
- A request of several samples is the cause if they should have taken most of the time by what a
  sample of this variant takes, or if no answer has told that yet.
- The JSON of a request is read only here, after its time is over.
"""

from __future__ import annotations

from typing import Final

import msgspec

from agent.serve.frames import Asked

MOST: Final = 0.5
"""Share of the time that the samples should have taken: how long each takes varies."""


class _Input(msgspec.Struct, frozen=True):
    shape: tuple[int, ...] = ()


class _Request(msgspec.Struct, frozen=True):
    inputs: tuple[_Input, ...] = ()


_DECODER: Final = msgspec.json.Decoder(_Request)


def samples_of(asked: Asked) -> int:
    """Return how many samples a request says that it holds, at least 1.

    Args:
        asked: A request for a variant whose inputs are batches.
    """
    try:
        request = _DECODER.decode(asked.body[: asked.header_length])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 1
    return max((tensor.shape[0] for tensor in request.inputs if tensor.shape), default=1)


def is_cause(samples: int, sample_s: float, timeout_s: float) -> bool:
    """Tell whether a request has caused that no answer came in time.

    Args:
        samples: How many it holds.
        sample_s: How long a sample usually takes; 0 if that is not known.
        timeout_s: How long the worker had.
    """
    return samples > 1 and (sample_s == 0 or samples * sample_s >= MOST * timeout_s)
