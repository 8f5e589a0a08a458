"""Work that one of the controllers of a database does at a time.

Rules:
- Whoever has it keeps it until it ends; then another one takes it over.
- What is in memory of it is forgotten while another one does it, and when it is taken over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from controller.errors import DatabaseError
from controller.store.sole import Sole

_log = logging.getLogger(__name__)


class Alone:
    """Does something while no other controller does.

    Args:
        sole: Tells whether another one does.
        what: What it does, for the log.
        work: Does a part; returns whether there may be more.
        forget: Forgets what another controller may have changed.
    """

    def __init__(
        self,
        sole: Sole,
        what: str,
        work: Callable[[], bool],
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        self._sole = sole
        self._what = what
        self._work = work
        self._forget = forget
        self._is_ours = False
        self._is_told = False

    def work(self) -> bool:
        """Do a part, unless another controller does.

        Returns:
            Whether there may be more.

        Raises:
            DatabaseError: The database does not answer.
            FleetError: What the work raises.
        """
        if not self._take():
            return False
        return self._work()

    def close(self) -> None:
        """Leave it to other controllers."""
        self._is_ours = False
        self._sole.close()

    def _take(self) -> bool:
        try:
            was_ours, self._is_ours = self._is_ours, self._sole.is_ours()
        except DatabaseError:
            self._is_ours = False  # another one may have it meanwhile
            raise
        if not was_ours or not self._is_ours:
            self._forget()
        if self._is_ours == self._is_told:
            self._is_told = not self._is_ours
            if self._is_told:
                _log.warning("%s is left to another controller of the same database", self._what)
            else:
                _log.info("%s is done here from now on", self._what)
        return self._is_ours
