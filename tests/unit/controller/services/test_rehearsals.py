"""A rehearsal is bounded before it begins."""

from __future__ import annotations

import pytest

from controller.errors import InvalidRequestError
from controller.services.rehearsals import MAX_DEVICES, MAX_READING, MAX_WORK, check_work


def test_too_much_work_is_refused() -> None:
    check_work(MAX_DEVICES, MAX_WORK // MAX_DEVICES, MAX_READING // MAX_DEVICES)
    with pytest.raises(InvalidRequestError, match="at most 2000 devices, not 2001"):
        check_work(MAX_DEVICES + 1, 1, 0)
    with pytest.raises(InvalidRequestError, match="26 runs over 2000 devices are too many"):
        check_work(MAX_DEVICES, MAX_WORK // MAX_DEVICES + 1, 0)
    with pytest.raises(InvalidRequestError, match="6 gates over 2000 devices are too many"):
        check_work(MAX_DEVICES, 1, MAX_READING // MAX_DEVICES + 1)
