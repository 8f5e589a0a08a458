"""Presigned links of S3-compatible stores: signature version 4 in the query. Pure.

Source:
    AWS, "Authenticating Requests: Using Query Parameters (AWS Signature Version 4)", Amazon S3 API
    reference; its example is in the tests.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, urlsplit

ALGORITHM: Final = "AWS4-HMAC-SHA256"
SERVICE: Final = "s3"
END: Final = "aws4_request"
NOT_SIGNED: Final = "UNSIGNED-PAYLOAD"
DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """An account that may read the bucket."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)
    """Only of temporary accounts."""


def presigned_url(
    url: str, credentials: Credentials, *, region: str, now_s: float, valid_s: int
) -> str:
    """Return a link by which anybody can GET an object for a time.

    Args:
        url: The object's, without a query; its path is not encoded.
        credentials: Who signs.
        region: Of the bucket.
        now_s: Wall time.
        valid_s: How long the link works, at most a week.

    Returns:
        The link.
    """
    parts = urlsplit(url)
    at = datetime.fromtimestamp(int(now_s), UTC)
    stamp, day = at.strftime("%Y%m%dT%H%M%SZ"), at.strftime("%Y%m%d")
    scope = f"{day}/{region}/{SERVICE}/{END}"
    fields = {
        "X-Amz-Algorithm": ALGORITHM,
        "X-Amz-Credential": f"{credentials.access_key}/{scope}",
        "X-Amz-Date": stamp,
        "X-Amz-Expires": str(valid_s),
        "X-Amz-SignedHeaders": "host",
    }
    if credentials.session_token:
        fields["X-Amz-Security-Token"] = credentials.session_token
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in sorted(fields.items()))
    path = quote(parts.path or "/", safe="/")
    host = _host_header(parts.scheme, parts.hostname or "", parts.port)
    request = "\n".join(("GET", path, query, f"host:{host}", "", "host", NOT_SIGNED))
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{credentials.secret_key}".encode()
    for text in (day, region, SERVICE, END):
        key = hmac.digest(key, text.encode(), "sha256")
    to_sign = f"{ALGORITHM}\n{stamp}\n{scope}\n{digest}"
    signature = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
    return f"{parts.scheme}://{host}{path}?{query}&X-Amz-Signature={signature}"


def _host_header(scheme: str, host: str, port: int | None) -> str:
    """Return the host as clients send it: without the port that belongs to the scheme."""
    shown = f"[{host}]" if ":" in host else host
    return shown if port in {None, DEFAULT_PORTS[scheme]} else f"{shown}:{port}"
