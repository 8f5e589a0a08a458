"""Which names may be given, and which there are where one is not known, those near to it first."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from controller.errors import InvalidRequestError
from wire.profile import NAME_PATTERN

SHOWN_CHARS = 64
MAX_NAMED = 8
"""Names that one line gives."""


def checked_name(name: str, what: str) -> str:
    """Return a name that an operator may give.

    Args:
        name: As the operator wrote it.
        what: What it is to be the name of, such as `a policy`.

    Returns:
        The same.

    Raises:
        InvalidRequestError: Empty, too long, or with other characters.
    """
    if NAME_PATTERN.fullmatch(name) is None:
        raise InvalidRequestError(
            f"not a name for {what}: {name[:SHOWN_CHARS]!r}",
            remedy="use 1 to 63 of a-z 0-9 . _ - and begin with a letter or digit",
        )
    return name


def which_there_are(name: str, known: Sequence[str], *, what: str, none: str) -> str:
    """Return what to do about a name that is not known.

    Args:
        name: The name.
        known: Those that there are.
        what: What they are names of, in the plural, such as `models`.
        none: What to do if there are none.

    Returns:
        Such as `did you mean digits? there are the models digits and faces`.
    """
    if not known:
        return none
    near = get_close_matches(name, known, n=2)
    others = [each for each in known if each not in near]
    shown = [*near, *others][:MAX_NAMED]
    more = len(known) - len(shown)
    there = f"there are the {what} {_together(shown, 'and', more)}"
    return f"did you mean {_together(near, 'or', 0)}? {there}" if near else there


def _together(names: Sequence[str], word: str, more: int) -> str:
    parts = [*names, *([f"{more} more"] if more else [])]
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])} {word} {parts[-1]}"
