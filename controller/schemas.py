"""What all requests and answers of the HTTP API have in common, a fault, and the health.

Each subject has a module of its own beside this one, such as `controller.device_schemas`. The
command line, a client of the API, uses the same types. They are plain dataclasses: the API
checks requests with pydantic, which reads them too, and the command line decodes answers with
msgspec, so that it starts without pydantic.

Rules:
- The API checks what a request holds; a client only builds it.
- Times are seconds since the epoch (`_s`); sizes are bytes; digests are SHA-256 in hexadecimal.
- Unknown fields in a request are refused, so that a misspelt option is not silently ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Literal

MAX_TEXT_CHARS = 4096
"""More than any text of a request needs. With this bound pydantic looks into every text. So it also
refuses one that is not Unicode, such as `"\\ud800"` in JSON, which no database can store."""


class Bounds:
    """Marks a number that the API refuses outside its bounds.

    Args:
        ge: It is at least this.
        gt: It is more than this.
        le: It is at most this.
        strict: Text is not accepted as a number.
    """

    def __init__(
        self,
        *,
        ge: float | None = None,
        gt: float | None = None,
        le: float | None = None,
        strict: bool = False,
    ) -> None:
        given = {"ge": ge, "gt": gt, "le": le, "strict": strict or None}
        self._bounds = {name: value for name, value in given.items() if value is not None}

    def __get_pydantic_core_schema__(
        self, source: object, handler: Callable[[object], dict[str, object]]
    ) -> dict[str, object]:
        """Return pydantic's schema of the type, with the bounds added."""
        return {**handler(source), **self._bounds}


Number = Annotated[float, Bounds(strict=True)]


@dataclass(kw_only=True)
class Request:
    """A body that a client sends."""

    __pydantic_config__: ClassVar[dict[str, object]] = {
        "extra": "forbid",
        "allow_inf_nan": False,
        "str_max_length": MAX_TEXT_CHARS,
    }


def given_fields(request: Request) -> dict[str, Any]:
    """Return the fields of a request that are not None."""
    return asdict(
        request,
        dict_factory=lambda pairs: {name: value for name, value in pairs if value is not None},
    )


@dataclass(kw_only=True)
class Fault:
    """Every answer with a status of 400 or more."""

    code: str
    """Stable name of the fault."""

    message: str
    remedy: str = ""
    expression: str = ""
    """The selector at fault; empty where none is."""

    character: int = 0
    """Which character of it is wrong, from 1; 0 where none is."""


@dataclass(kw_only=True)
class Health:
    """Whether the controller works."""

    status: Literal["ok", "degraded"]
    broker_connected: bool
    version: str
    downloads_served: bool = False
    """Whether devices can download packages from this controller by HTTP, beside MQTT."""

    needs: list[str] = field(default_factory=list)
    """What it lacks to work, or soon will, one line for each; never empty while the status is
    `degraded`."""
