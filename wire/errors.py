"""The root of every error that this system raises, and the families of `wire`.

Rules:
- A family says what is at fault: data from outside, the connection, this device, the build, or the
  operator.
- `code` is stable and is sent in messages; the text is for people and may change.
- `retryable` alone decides whether to try again.
- `remedy` says what a person can do; a command line prints it after the fault.
"""

from __future__ import annotations

from typing import ClassVar, Final

GAP: Final = " ... "


class FleetError(Exception):
    """Something that this system understands went wrong.

    Args:
        message: What happened, in lower case, ending with the fact.
        remedy: What the reader can do about it; empty when there is nothing to do.
    """

    code: ClassVar[str] = "fleet"
    retryable: ClassVar[bool] = False
    answers_no: ClassVar[bool] = False
    """Whether what was asked was done and the answer is no; a command then ends with 1, not 2."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.shown: tuple[str, ...] = ()
        """Lines that a command line prints below the fault, such as the place in an expression."""

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


def shortened(text: str, max_chars: int) -> str:
    """Return the text of a fault in so many characters.

    Its middle is left out: the fact begins it, and what to do ends it.

    Args:
        text: The text.
        max_chars: What may remain.
    """
    if len(text) <= max_chars:
        return text
    kept = max(max_chars - len(GAP), 0)
    end = kept // 2
    return f"{text[: kept - end]}{GAP}{text[len(text) - end :]}"[:max_chars]


class WireFormatError(FleetError):
    """Bytes from outside do not have the form that was agreed."""

    code = "wire.format"


class PolicyFileError(WireFormatError):
    """A policy in a file or of options says what cannot be.

    Args:
        message: What is wrong, in one line.
        remedy: What may be written.
        key: The key at fault, such as `objective.deadline_ms`; empty where it is none alone.
    """

    code = "wire.format.policy"

    def __init__(self, message: str, *, remedy: str, key: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.key = key


class TopicError(FleetError):
    """A topic, or an identifier in it, does not have our form."""

    code = "wire.topic"


class SignatureError(FleetError):
    """A signature is missing, wrong, or made by a key without that role."""

    code = "wire.signature"


class SealedError(FleetError):
    """Something sealed cannot be opened, or a key cannot seal."""

    code = "wire.sealed"


class IntegrityError(FleetError):
    """Content does not match the digest or size that was signed for it."""

    code = "wire.integrity"


class DeltaError(FleetError):
    """A delta is malformed, or it does not make the file that it should from this one."""

    code = "wire.delta"


class TransportError(FleetError):
    """The connection failed: no broker, no connection, no answer in time."""

    code = "wire.transport"
    retryable = True


class AccessRefusedError(FleetError):
    """The broker refused these credentials."""

    code = "wire.refused"
