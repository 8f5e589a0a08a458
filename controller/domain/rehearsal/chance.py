"""Chance that a seed decides: the same seed draws the same. Pure."""

from __future__ import annotations

import numpy as np
from numpy.random import PCG64

from controller.domain.rehearsal.history import Floats


def parts(seed: int, run: int, count: int) -> Floats:
    """Return numbers from 0 to below 1.

    Args:
        seed: What decides them.
        run: The run of the rehearsal, which has numbers of its own.
        count: How many.
    """
    # 53 bits of 64, which no rounding takes up to 1.
    return np.asarray((PCG64([seed, run]).random_raw(count) >> 11) * 2.0**-53)
