"""Posts one body to one webhook, within a time, and tells what came of it.

Rules:
- Nothing that a receiver does takes longer than `TIMEOUT_S` from the connection on, however slowly
  it answers; of its answer only the head is read (`controller.posting`).
- No redirect is followed, and no proxy of the environment is used.
- The secret, and the address beyond its host, are in no text.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Final

from controller.alert_settings import WebhookConfig
from controller.domain.alert_posts import (
    DELIVERY_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    signature,
)
from controller.domain.device_text import clean
from controller.errors import SettingsError
from controller.named_files import check_private, read_secret
from controller.posting import Poster
from wire.files import open_file
from wire.version import VERSION

TIMEOUT_S: Final = 5.0
MIN_SECRET_CHARS: Final = 16
_BUSY: Final = frozenset({
    HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS,
})  # fmt: skip


class Answered(Enum):
    """What came of a post."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """The receiver works, and does not want this post."""

    FAILED = "failed"
    """There is no receiver, or it cannot work now."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a post, and why."""

    answered: Answered
    fault: str = ""


class Webhook:
    """A receiver of posts.

    Args:
        config: Where it is.
        timeout_s: How long a post may take.

    Raises:
        SettingsError: Its secret or the file of its authority is unusable.
    """

    def __init__(self, config: WebhookConfig, *, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self.name = config.name
        self.tells = config.tells
        self._url = config.url
        self._secret = _read_secret(config).encode()
        self._tls = None
        if config.parts.scheme == "https":
            try:
                if config.ca_file is not None:
                    open_file(Path(config.ca_file)).close()  # no pipe
                self._tls = ssl.create_default_context(cafile=config.ca_file)
            except OSError as exc:
                raise SettingsError(
                    f"cannot use ca_file of the webhook {config.name}: {config.ca_file}",
                    remedy="name the PEM file of the authority in alerts.webhooks",
                ) from exc

    def post(self, identifier: str, content: bytes, timestamp_s: float) -> Outcome:
        """Post a body.

        Args:
            identifier: Of the post.
            content: The body.
            timestamp_s: Wall time.

        Returns:
            What came of it.
        """
        timestamp = str(int(timestamp_s))
        headers = {
            "Content-Type": "application/json",
            "Connection": "close",
            "User-Agent": f"edgefleet/{VERSION}",
            DELIVERY_HEADER: identifier,
            TIMESTAMP_HEADER: timestamp,
            SIGNATURE_HEADER: signature(self._secret, timestamp, content),
        }
        try:
            answer = Poster().post(
                self._url, headers, content, self._timeout_s, self._tls, answer_bytes=0
            )
        except ssl.SSLCertVerificationError as exc:
            return Outcome(Answered.FAILED, f"its certificate is refused: {exc.verify_message}")
        except TimeoutError:
            return Outcome(Answered.FAILED, f"it does not answer within {self._timeout_s:g} s")
        except (OSError, HTTPException, UnicodeError) as exc:
            reason = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
            return Outcome(Answered.FAILED, f"no answer: {clean(str(reason).lower(), 200)}")
        return _judged(answer.status)


def _judged(status: int) -> Outcome:
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return Outcome(Answered.ACCEPTED)
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return Outcome(Answered.REFUSED, f"it redirects ({status}), which is not followed")
    is_refusal = HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
    if is_refusal and status not in _BUSY:
        return Outcome(Answered.REFUSED, f"it refuses with {status}")
    return Outcome(Answered.FAILED, f"it answers {status}")


def _read_secret(config: WebhookConfig) -> str:
    """Return the secret of a webhook.

    Raises:
        SettingsError: It cannot be read, is too short, or others may read it.
    """
    secret = read_secret(config.secret_file, "the secret of a webhook")
    check_private(config.secret_file, f"the secret of the webhook {config.name}")
    if len(secret) < MIN_SECRET_CHARS or not secret.isascii():
        raise SettingsError(
            f"the secret of the webhook {config.name} is shorter than {MIN_SECRET_CHARS}",
            remedy="put 32 random characters there",
        )
    return secret
