"""The session of `requests` that the exporters of OpenTelemetry are given: the one door to it.

Rules:
- It bounds what they do not bound: the whole time of a request, and the size of its answer
  (`controller.posting`).
- A redirect is a refusal: the exporters would take it for success.
- A collector may ask to be left alone for some time; for longer than `MAX_RETRY_AFTER_S` it is not.
"""

from __future__ import annotations

import io
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final

from controller.posting import Answer, Poster

if TYPE_CHECKING:
    import requests

MAX_RETRY_AFTER_S: Final = 3600.0
LEAST_TIMEOUT_S: Final = 0.001
_ASKS_TO_WAIT: Final = frozenset({
    HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE,
})  # fmt: skip


@dataclass(slots=True)
class Told:
    """What became of the last request."""

    fault: str = ""
    """Why it failed; empty if it did not."""

    retry_after_s: float = 0.0
    """How long the collector asks to wait."""

    is_too_long: bool = False
    """Whether it takes no request as long as this one."""


def session(told: Told, taken: Callable[[str, Answer], None]) -> requests.Session:
    """Return what makes requests.

    Args:
        told: Is told what went wrong with the last one.
        taken: Is told the address and the answer of each that succeeded.
    """
    import requests
    from requests.adapters import BaseAdapter
    from requests.certs import where  # type: ignore[attr-defined] # it is documented
    from requests.structures import CaseInsensitiveDict

    class Adapter(BaseAdapter):
        def __init__(self) -> None:
            super().__init__()
            self._poster = Poster()
            self._trusted: dict[str, ssl.SSLContext] = {}

        def send(
            self,
            request: requests.PreparedRequest,
            stream: bool = False,  # noqa: ARG002 - as the library calls it
            timeout: Any = None,  # noqa: ANN401 - a number
            verify: bool | str = True,
            cert: object = None,  # noqa: ARG002
            proxies: object = None,  # noqa: ARG002
        ) -> requests.Response:
            url = str(request.url)
            told.fault, told.retry_after_s, told.is_too_long = "", 0.0, False
            try:
                answer = self._poster.post(
                    url,
                    {name: str(value) for name, value in request.headers.items()},
                    request.body if isinstance(request.body, bytes) else b"",
                    max(float(timeout or 0.0), LEAST_TIMEOUT_S),
                    self._tls(verify) if url.startswith("https:") else None,
                )
            except (OSError, HTTPException) as exc:
                raise _failed(exc, told) from exc
            _note(answer, told)
            if answer.status // 100 == HTTPStatus.MULTIPLE_CHOICES // 100:
                raise requests.exceptions.InvalidURL("a redirect")
            if not told.fault:
                taken(url, answer)
            made = requests.Response()
            made.status_code, made.reason = answer.status, answer.reason
            made.headers = CaseInsensitiveDict(answer.headers)
            made.url, made.request = url, request
            made.raw = io.BytesIO(answer.body or b"")
            return made

        def close(self) -> None:
            self._poster.close()

        def _tls(self, verify: bool | str) -> ssl.SSLContext:
            path = verify if isinstance(verify, str) else where()
            if path not in self._trusted:
                self._trusted[path] = ssl.create_default_context(cafile=path)
            return self._trusted[path]

    made = requests.Session()
    made.trust_env = False
    made.headers["Accept-Encoding"] = "identity"  # an answer that is packed has no bounds
    for scheme in ("http://", "https://"):
        made.mount(scheme, Adapter())
    return made


def asked_to_wait_s(headers: Mapping[str, str]) -> float:
    """Return how long a server asks to wait, as far as it is granted.

    Args:
        headers: Of its answer. A date is one of the server's own clock, which `Date` tells.

    Returns:
        Seconds; 0 if it does not ask.
    """
    named = {name.lower(): value.strip() for name, value in headers.items()}
    text = named.get("retry-after", "")
    if text.isascii() and text.isdigit():
        return min(float(text), MAX_RETRY_AFTER_S)
    try:
        wait = parsedate_to_datetime(text) - parsedate_to_datetime(named.get("date", ""))
    except (TypeError, ValueError):  # no date, or one without a zone
        return 0.0
    return min(max(wait.total_seconds(), 0.0), MAX_RETRY_AFTER_S)


def _note(answer: Answer, told: Told) -> None:
    """Note what an answer says that is no success."""
    if answer.status // 100 == HTTPStatus.OK // 100:
        return
    told.fault = f"it answered {answer.status}"
    told.is_too_long = answer.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    if answer.status in _ASKS_TO_WAIT:
        told.retry_after_s = asked_to_wait_s(answer.headers)
    if told.retry_after_s:
        told.fault += f" and asks to wait {told.retry_after_s:.0f} s"


def _failed(exc: Exception, told: Told) -> requests.exceptions.RequestException:
    """Return why there was no answer, as the exporters know it, and note it in few words."""
    import requests

    if isinstance(exc, ssl.SSLError):
        told.fault = "its certificate is refused, or it has no TLS"
        return requests.exceptions.SSLError(told.fault)
    if isinstance(exc, TimeoutError):
        told.fault = "it did not answer in time"
        return requests.exceptions.ReadTimeout(told.fault)
    told.fault = "no connection"
    return requests.exceptions.ConnectionError(told.fault)
