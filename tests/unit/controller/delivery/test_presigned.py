"""Presigned links, beside the example that AWS publishes."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest

from controller.delivery.links import Links
from controller.delivery.places import BucketPlace, CheckedPlace, OpenPlace, Place
from controller.delivery.presigned import Credentials, presigned_url

EXAMPLE = Credentials(
    access_key="AKIAIOSFODNN7EXAMPLE", secret_key="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
)
AT_S = 1_369_353_600.0
"""2013-05-24T00:00:00Z."""

BLOB = "3f" + "a" * 62


def test_the_example_of_the_specification() -> None:
    """Amazon S3 API reference, "Authenticating Requests: Using Query Parameters"."""
    assert presigned_url(
        "https://examplebucket.s3.amazonaws.com/test.txt",
        EXAMPLE,
        region="us-east-1",
        now_s=AT_S,
        valid_s=86_400,
    ) == (
        "https://examplebucket.s3.amazonaws.com/test.txt"
        "?X-Amz-Algorithm=AWS4-HMAC-SHA256"
        "&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
        "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
        "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    )


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://minio.lan:9000/models", "minio.lan:9000"),
        ("https://minio.lan:443/models", "minio.lan"),
        ("http://127.0.0.1:80/models", "127.0.0.1"),
        ("http://[::1]:9000/models", "[::1]:9000"),
    ],
)
def test_the_host_is_signed_as_clients_send_it(url: str, host: str) -> None:
    made = presigned_url(url, EXAMPLE, region="r", now_s=AT_S, valid_s=60)
    parts = urlsplit(made)
    assert parts.netloc == host
    same = presigned_url(
        f"{parts.scheme}://{host}/models", EXAMPLE, region="r", now_s=AT_S, valid_s=60
    )
    assert made == same


def test_a_temporary_account_shows_its_token_and_signs_it() -> None:
    temporary = Credentials(access_key="A", secret_key="S", session_token="a/b+c=")
    plain = Credentials(access_key="A", secret_key="S")
    made, without = (
        parse_qs(
            urlsplit(presigned_url("https://x/y", each, region="r", now_s=0, valid_s=60)).query
        )
        for each in (temporary, plain)
    )
    assert made["X-Amz-Security-Token"] == ["a/b+c="]
    assert made["X-Amz-Signature"] != without["X-Amz-Signature"]


def test_an_account_shows_no_secret_in_a_log() -> None:
    shown = repr(Credentials(access_key="A", secret_key="secret-1", session_token="secret-2"))
    assert "secret-" not in shown


def test_every_place_has_a_blob_under_the_same_name() -> None:
    places: dict[str, Place] = {
        "https://blobs.example/": CheckedPlace("https://blobs.example/", Links(b"s")),
        "https://b.s3.amazonaws.com/": BucketPlace(
            "https://b.s3.amazonaws.com", "fleet/", "r", EXAMPLE
        ),
        "https://cdn.example/blobs/": OpenPlace("https://cdn.example/blobs/"),
    }
    for before, place in places.items():
        assert place.link("cam-1", BLOB, AT_S, 60).startswith(before)
    paths = [urlsplit(place.link("cam-1", BLOB, AT_S, 60)).path for place in places.values()]
    assert paths == [f"/blobs/{BLOB}", f"/fleet/3f/{BLOB}", f"/blobs/3f/{BLOB}"]
    assert [place.has_deltas for place in places.values()] == [True, False, False]
