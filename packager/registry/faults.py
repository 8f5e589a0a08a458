"""What a registry's answers and the network's faults mean, as errors of the packager.

Rules:
- Nothing that a registry says of a fault is repeated, except for its error code.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

import urllib3
from urllib3 import exceptions

from packager.errors import (
    RegistryAnswerError,
    RegistryError,
    RegistryMissingError,
    RegistryRefusedError,
    RegistryUnreachableError,
)
from packager.registry.credentials import Login

MAX_FAULT_BYTES: Final = 64 * 1024
CLEAR_TEXT: Final = "--registry-clear-text"
_CODE: Final = re.compile(r'"code"\s*:\s*"([A-Z_]{1,40})"')


class Faults:
    """The faults of one registry.

    Args:
        host: Its name, perhaps with a port.
        login: Returns the credentials that it got, if any.
    """

    def __init__(self, host: str, login: Callable[[], Login | None]) -> None:
        self._host = host
        self._login = login

    def of_answer(self, response: urllib3.BaseHTTPResponse, what: str) -> RegistryError:
        """Return what an answer that is no success means.

        Args:
            response: The answer.
            what: What was asked for, for the text.

        Returns:
            The error.
        """
        status = response.status
        found = _CODE.search(response.read(MAX_FAULT_BYTES).decode(errors="replace"))
        code = f" ({found[1]})" if found else ""
        if status == HTTPStatus.UNAUTHORIZED:
            return self.refused()
        if status == HTTPStatus.FORBIDDEN:
            return RegistryRefusedError(
                f"{self._host} does not allow this: {what}{code}",
                remedy="ask for the right, or log in as somebody who has it",
            )
        if status == HTTPStatus.NOT_FOUND:
            return RegistryMissingError(
                f"{self._host} has no {what}{code}", remedy="check the repository and the tag"
            )
        if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return RegistryUnreachableError(
                f"{self._host} answers {status} to {what}{code}", remedy="try again later"
            )
        return RegistryAnswerError(f"{self._host} answers {status} to {what}{code}")

    @contextmanager
    def own_errors(self) -> Iterator[None]:
        """Turn faults of the network into ours.

        Raises:
            RegistryUnreachableError: There is no answer, or it broke off.
        """
        try:
            yield
        except exceptions.SSLError as exc:
            raise self._untrusted(exc) from exc
        except exceptions.NameResolutionError as exc:
            raise self._unreachable("is not known by name") from exc
        except exceptions.NewConnectionError as exc:
            raise self._unreachable("does not answer") from exc
        except exceptions.TimeoutError as exc:
            raise self._unreachable("does not answer in time") from exc
        except (exceptions.HTTPError, OSError) as exc:
            raise self._unreachable("broke the connection off") from exc

    def refused(self) -> RegistryRefusedError:
        """Return the error for credentials that are missing or wrong."""
        if self._login() is None:
            return RegistryRefusedError(
                f"{self._host} wants credentials, and there are none for it",
                remedy=f"log in with `docker login {self._host}`, or `skopeo login` with "
                "REGISTRY_AUTH_FILE",
            )
        return RegistryRefusedError(
            f"{self._host} refuses the credentials that are kept for it", remedy="log in again"
        )

    def _untrusted(self, why: exceptions.SSLError) -> RegistryUnreachableError:
        cause = next((arg for arg in why.args if isinstance(arg, ssl.SSLError)), None)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return RegistryUnreachableError(
                f"the certificate of {self._host} is refused: {cause.verify_message.rstrip('.')}",
                remedy="name the file of its authority with --registry-ca-file FILE, and use a "
                "host name that the certificate holds",
            )
        reason = "" if cause is None else cause.reason or ""
        return RegistryUnreachableError(
            f"no TLS with {self._host}: {reason.lower().replace('_', ' ') or 'it failed'}",
            remedy=f"add {CLEAR_TEXT} if that registry has no TLS",
        )

    def _unreachable(self, what: str) -> RegistryUnreachableError:
        return RegistryUnreachableError(
            f"{self._host} {what}", remedy="check its name and the network, then try again"
        )
