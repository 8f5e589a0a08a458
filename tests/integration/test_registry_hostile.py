"""Pulls and pushes when the registry lies, leads elsewhere, breaks off or asks for a token."""

from __future__ import annotations

import base64
import dataclasses
import json
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from packager.errors import (
    PackageError,
    PackagerError,
    RegistryAnswerError,
    RegistryMissingError,
    RegistryRefusedError,
    RegistryUnreachableError,
)
from packager.package.content import directory_content
from packager.registry.artifact import MAX_MANIFEST_BYTES, manifest_bytes
from packager.registry.reference import Reference
from packager.registry.repository import MAX_RESUMPTIONS
from packager.registry.transfer import Way, pull, push
from tests.simulators.hostile_registry import (
    REPOSITORY,
    Handler,
    HostileRegistry,
    blob_path,
    hostile_registry,
    leads_to,
)
from tests.simulators.packages import RELEASE_KEY, STRANGER_KEY, TRUST, package, variant
from wire.codec import sha256_hex
from wire.errors import FleetError, IntegrityError, SignatureError
from wire.package.index import PAYLOAD_TYPE
from wire.trust.envelope import seal

SECRET = "not-to-be-seen"
MODEL = bytes(range(256)) * 400
MADE = package("1.0.0", [(variant("a"), MODEL)])
MANIFEST = f"GET {REPOSITORY}/manifests/1"
UPLOADS = f"{REPOSITORY}/blobs/uploads/"


@pytest.fixture
def registry() -> Iterator[HostileRegistry]:
    with hostile_registry() as running:
        running.serve_package(MADE)
        yield running


@pytest.fixture
def elsewhere() -> Iterator[HostileRegistry]:
    """Return what listens at another address than the registry."""
    with hostile_registry() as running:
        yield running


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "inner" / "out"


def way(tmp_path: Path, registry: HostileRegistry | None = None, **entry: str) -> Way:
    """Return how to reach a registry, with an entry in the file of credentials."""
    file = tmp_path / "logins.json"
    if registry is not None:
        auth = base64.b64encode(f"robot:{SECRET}".encode()).decode()
        file.write_text(json.dumps({"auths": {registry.host: entry or {"auth": auth}}}))
    return Way(file, clear_text=True)


def place(registry: HostileRegistry, digest: str = "") -> Reference:
    return Reference(registry.host, "team/digits", "1", digest)


def tree(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def leaves_nothing(registry: HostileRegistry, out: Path, error: type[FleetError], why: str) -> None:
    with pytest.raises(error, match=why):
        pull(place(registry), out, TRUST, way(out.parents[1]))
    assert tree(out.parent) == {}


def test_another_content_for_a_digest_is_refused(registry: HostileRegistry, out: Path) -> None:
    registry.contents[blob_path(MODEL)] = MODEL[:-1] + b"!"
    leaves_nothing(registry, out, PackageError, "variants/a/model.json differs from the signed")


def test_another_signed_index_for_a_digest_is_refused(registry: HostileRegistry, out: Path) -> None:
    registry.contents[blob_path(MADE.envelope)] = MADE.envelope[:-1] + b" "
    leaves_nothing(registry, out, RegistryAnswerError, "not of the digest that the manifest has")


def test_nothing_is_fetched_before_the_signature_is_verified(
    registry: HostileRegistry, out: Path
) -> None:
    strange = package("1.0.0", [(variant("a"), b"evil")], key=STRANGER_KEY)
    registry.serve_package(strange)
    leaves_nothing(registry, out, SignatureError, "0 of 1 needed signatures")
    assert registry.paths() == [f"{REPOSITORY}/manifests/1", blob_path(strange.envelope)]


def test_an_index_with_the_manifest_of_another_package_is_refused(
    registry: HostileRegistry, out: Path
) -> None:
    index = msgspec.structs.replace(MADE.index, version="2.0.0")
    envelope = seal(index.to_bytes(), payload_type=PAYLOAD_TYPE, keys=[RELEASE_KEY])
    registry.serve_package(dataclasses.replace(MADE, index=index, envelope=envelope))
    leaves_nothing(registry, out, IntegrityError, "contains the manifest of digits:1.0.0")
    assert blob_path(MODEL) not in registry.paths()


def test_another_package_than_the_pinned_one_is_refused(
    registry: HostileRegistry, out: Path, tmp_path: Path
) -> None:
    older = package("0.9.0", [(variant("a"), MODEL)])  # signed, and perhaps with a known hole
    pinned = f"sha256:{sha256_hex(manifest_bytes(MADE.envelope, MADE.index))}"
    manifest = registry.serve_package(older)
    registry.contents[f"{REPOSITORY}/manifests/{pinned}"] = manifest
    with pytest.raises(RegistryAnswerError, match="another manifest than the digest asks for"):
        pull(place(registry, pinned), out, TRUST, way(tmp_path))
    assert tree(out.parent) == {}


def test_names_in_the_manifest_lead_nowhere(
    registry: HostileRegistry, out: Path, tmp_path: Path
) -> None:
    manifest = json.loads(manifest_bytes(MADE.envelope, MADE.index))
    for layer, title in zip(
        manifest["layers"], ("../../evil", "/etc/evil", "variants/a/../../../evil"), strict=True
    ):
        layer["annotations"] = {"org.opencontainers.image.title": title}
    manifest["layers"].append({"mediaType": "evil", "digest": "../../evil", "size": -1})
    registry.serve_package(MADE, json.dumps(manifest).encode())
    assert pull(place(registry), out, TRUST, way(tmp_path)).digest == MADE.digest
    assert tree(tmp_path) == {
        f"inner/out/{path}": content
        for path, content in (MADE.files | {"package.dsse.json": MADE.envelope}).items()
    }


def changed(**fields: object) -> bytes:
    return json.dumps(json.loads(manifest_bytes(MADE.envelope, MADE.index)) | fields).encode()


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        (b"<html>log in</html>", "no package of edgefleet: it has another manifest"),
        (b"[" * 100_000, "no package of edgefleet: it has another manifest"),
        (changed(schemaVersion=1), "it has another manifest"),
        (changed(mediaType="application/vnd.oci.image.index.v1+json"), "it has another manifest"),
        (changed(artifactType="application/vnd.other"), "it is of another type"),
        (changed(layers=[]), "it has no signed index"),
        (changed(layers=[{"mediaType": "x", "digest": "sha256:0", "size": 1}]), "no signed index"),
        (
            changed(
                layers=[
                    {
                        "mediaType": "application/vnd.dsse.envelope.v1+json",
                        "digest": "sha256:../../../../token",
                        "size": 1,
                    }
                ]
            ),
            "its signed index has no SHA-256",
        ),
        (
            changed(
                layers=[
                    {
                        "mediaType": "application/vnd.dsse.envelope.v1+json",
                        "digest": f"sha256:{'0' * 64}",
                        "size": 2**40,
                    }
                ]
            ),
            "its signed index is over",
        ),
    ],
    ids=[
        "page", "deep", "schema", "media type", "type", "empty", "other", "no digest", "huge index",
    ],
)  # fmt: skip
def test_what_is_no_package_is_refused_by_its_manifest(
    manifest: bytes, why: str, registry: HostileRegistry, out: Path
) -> None:
    registry.serve_package(MADE, manifest)
    leaves_nothing(registry, out, RegistryAnswerError, why)
    assert registry.paths() == [f"{REPOSITORY}/manifests/1"]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (MANIFEST.removeprefix("GET "), f"a manifest of over {MAX_MANIFEST_BYTES} bytes"),
        (blob_path(MADE.envelope), "another size than the signed index says"),
        (blob_path(MODEL), "another size than the signed index says"),
    ],
    ids=["manifest", "signed index", "file"],
)
def test_an_answer_without_end_is_read_to_its_limit(
    path: str, why: str, registry: HostileRegistry, out: Path
) -> None:
    registry.instead[path] = Handler.answer_without_end
    leaves_nothing(registry, out, RegistryAnswerError, why)
    # What is beyond the limit lay in buffers of the kernel when the reader had enough.
    assert registry.sent_bytes < 8 * MAX_MANIFEST_BYTES


def test_a_size_that_is_not_the_signed_one_is_not_read(
    registry: HostileRegistry, out: Path
) -> None:
    registry.contents[blob_path(MODEL)] = MODEL + b"more"
    leaves_nothing(registry, out, RegistryAnswerError, "another size than the signed index says")


def test_credentials_stay_when_a_file_is_elsewhere(
    registry: HostileRegistry, elsewhere: HostileRegistry, out: Path, tmp_path: Path
) -> None:
    registry.wants = 'Basic realm="registry"'
    elsewhere.contents["/store/model"] = MODEL
    registry.instead[blob_path(MODEL)] = leads_to(f"{elsewhere.url}/store/model?signature=abc")
    assert pull(place(registry), out, TRUST, way(tmp_path, registry)).digest == MADE.digest
    assert [asked.path for asked in elsewhere.asked] == ["/store/model?signature=abc"]
    assert "authorization" not in elsewhere.asked[0].headers
    assert "authorization" in registry.asked[-1].headers


def test_a_place_that_wants_credentials_does_not_get_them(
    registry: HostileRegistry, elsewhere: HostileRegistry, out: Path, tmp_path: Path
) -> None:
    elsewhere.wants = f'Basic realm="{registry.host}"'
    registry.instead[blob_path(MODEL)] = leads_to(f"{elsewhere.url}/store/model")
    with pytest.raises(RegistryRefusedError):
        pull(place(registry), out, TRUST, way(tmp_path, registry))
    assert [asked.headers.get("authorization") for asked in elsewhere.asked] == [None]


def test_credentials_stay_when_an_upload_goes_elsewhere(
    registry: HostileRegistry, elsewhere: HostileRegistry, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    MADE.write_to(source)
    registry.wants = 'Basic realm="registry"'
    registry.contents.clear()
    registry.instead[UPLOADS] = lambda handler: handler.answer(
        202, b"", {"Location": f"{elsewhere.url}/store/upload?session=1"}
    )
    elsewhere.instead["/store/upload"] = lambda handler: handler.answer(201)
    registry.instead[f"PUT {REPOSITORY}/manifests/1"] = lambda handler: handler.answer(201)
    push(directory_content(source), place(registry), way(tmp_path, registry))
    sent = [asked for asked in elsewhere.asked if asked.method == "PUT"]
    assert len(sent) == len(elsewhere.asked) == 4
    assert all("authorization" not in asked.headers for asked in sent)
    assert f"/store/upload?session=1&digest=sha256%3A{sha256_hex(MODEL)}" in elsewhere.paths("PUT")


def test_credentials_do_not_go_to_a_server_of_tokens_elsewhere_in_clear_text(
    registry: HostileRegistry, elsewhere: HostileRegistry, out: Path, tmp_path: Path
) -> None:
    realm = elsewhere.url.replace("127.0.0.1", "localhost")
    registry.wants = f'Bearer realm="{realm}/token",service="s"'
    with pytest.raises(RegistryAnswerError, match="sends credentials elsewhere without TLS"):
        pull(place(registry), out, TRUST, way(tmp_path, registry))
    assert elsewhere.asked == []


AMBIGUOUS = [
    "{elsewhere}\\@{host}/x",
    "{elsewhere}\\.{host}/x",
    "//{elsewhere_host}\\@{host}/x",
    "http://{host}@{elsewhere_host}/x",
    "{elsewhere} @{host}/x",
    "{elsewhere}\t@{host}/x",
    "{elsewhere}\x7f/x",
    "{elsewhere}/\xe9",
]
"""Addresses in which programs find different hosts, or the credentials of somebody."""


@pytest.mark.parametrize("location", AMBIGUOUS, ids=ascii)
@pytest.mark.parametrize("asked", ["file", "upload", "realm"])
def test_credentials_stay_when_an_address_can_be_read_in_two_ways(
    asked: str,
    location: str,
    registry: HostileRegistry,
    elsewhere: HostileRegistry,
    out: Path,
    tmp_path: Path,
) -> None:
    names = {"elsewhere": elsewhere.url, "elsewhere_host": elsewhere.host, "host": registry.host}
    led_to = location.format(**names)
    registry.wants = 'Basic realm="registry"'
    source = tmp_path / "source"
    MADE.write_to(source)
    if asked == "realm":
        registry.wants = f'Bearer realm="{led_to}",service="s"'
    elif asked == "upload":
        registry.contents.clear()
        registry.instead[UPLOADS] = lambda handler: handler.answer(202, b"", {"Location": led_to})
    else:
        registry.instead[blob_path(MODEL)] = leads_to(led_to)
    with pytest.raises(RegistryAnswerError, match=r"leads to (no|an) address"):
        if asked == "upload":
            push(directory_content(source), place(registry), way(tmp_path, registry))
        else:
            pull(place(registry), out, TRUST, way(tmp_path, registry))
    assert elsewhere.asked == []
    assert not any(request.path.startswith("/x") for request in registry.asked)


@pytest.mark.parametrize(
    ("location", "why"),
    [
        (MANIFEST.removeprefix("GET "), "leads on and on"),
        ("ftp://127.0.0.1/x", "leads to a place without TLS"),
        ("file:///etc/passwd", "leads nowhere"),
        ("http://[", "leads to no address"),
        ("http://127.0.0.1:99999/", "leads to no address"),
        ("", "leads nowhere"),
    ],
)
def test_redirects_that_lead_nowhere_end(
    location: str, why: str, registry: HostileRegistry, out: Path
) -> None:
    registry.instead[MANIFEST] = leads_to(location)
    leaves_nothing(registry, out, RegistryAnswerError, why)
    assert len(registry.asked) < 10


def test_a_token_is_fetched_with_the_password_and_shown_to_the_registry_alone(
    registry: HostileRegistry, out: Path, tmp_path: Path
) -> None:
    registry.wants = (
        f'Bearer realm="{registry.url}/token",service="registry.example",'
        'scope="repository:team/digits:pull"'
    )
    registry.instead["/token"] = lambda handler: handler.answer(200, b'{"token":"t0ken"}')
    assert pull(place(registry), out, TRUST, way(tmp_path, registry)).digest == MADE.digest
    (asked,) = [asked for asked in registry.asked if asked.path.startswith("/token")]
    basic = base64.b64encode(f"robot:{SECRET}".encode()).decode()
    assert asked.headers["authorization"] == f"Basic {basic}"
    assert asked.path == ("/token?service=registry.example&scope=repository%3Ateam%2Fdigits%3Apull")
    assert registry.asked[-1].headers["authorization"] == "Bearer t0ken"


def test_without_credentials_a_token_is_fetched_for_anybody(
    registry: HostileRegistry, out: Path, tmp_path: Path
) -> None:
    registry.wants = f'Bearer realm="{registry.url}/token"'
    registry.instead["/token"] = lambda handler: handler.answer(200, b'{"access_token":"t0ken"}')
    assert pull(place(registry), out, TRUST, way(tmp_path)).digest == MADE.digest
    (asked,) = [asked for asked in registry.asked if asked.path.startswith("/token")]
    assert "authorization" not in asked.headers


def test_an_identity_token_is_exchanged_and_not_shown_in_an_address(
    registry: HostileRegistry, out: Path, tmp_path: Path
) -> None:
    registry.wants = f'Bearer realm="{registry.url}/token",service="s"'
    registry.instead["/token"] = lambda handler: handler.answer(200, b'{"access_token":"t0ken"}')
    logged_in = way(tmp_path, registry, identitytoken=SECRET)
    assert pull(place(registry), out, TRUST, logged_in).digest == MADE.digest
    (asked,) = [asked for asked in registry.asked if asked.path.startswith("/token")]
    assert (asked.method, asked.path) == ("POST", "/token")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda handler: handler.answer(401), RegistryRefusedError),
        (lambda handler: handler.answer(503), RegistryUnreachableError),
        (lambda handler: handler.answer(200, b"[]"), RegistryAnswerError),
        (lambda handler: handler.answer(200, b"{}"), RegistryAnswerError),
        (lambda handler: handler.answer(200, b'{"token":"a\\nb"}'), RegistryAnswerError),
        (Handler.answer_without_end, RegistryAnswerError),
    ],
    ids=["refused", "away", "list", "nothing", "line", "endless"],
)
def test_what_is_no_token_is_refused(
    answer: Callable[[Handler], None],
    error: type[PackagerError],
    registry: HostileRegistry,
    out: Path,
    tmp_path: Path,
) -> None:
    registry.wants = f'Bearer realm="{registry.url}/token"'
    registry.instead["/token"] = answer
    with pytest.raises(error) as told:
        pull(place(registry), out, TRUST, way(tmp_path, registry))
    assert SECRET not in str(told.value)


@pytest.mark.parametrize(
    ("status", "error", "retryable"),
    [
        (403, RegistryRefusedError, False),
        (404, RegistryMissingError, False),
        (429, RegistryUnreachableError, True),
        (500, RegistryUnreachableError, True),
        (418, RegistryAnswerError, False),
    ],
)
def test_a_fault_says_its_code_and_nothing_else_of_the_registry(
    status: int, error: type[PackagerError], retryable: bool, registry: HostileRegistry, out: Path
) -> None:
    body = b'{"errors":[{"code":"DENIED","message":"\x1b[31mcall 0123456789"}]}'
    registry.instead[MANIFEST] = lambda handler: handler.answer(status, body)
    with pytest.raises(error) as told:
        pull(place(registry), out, TRUST, way(out.parents[1]))
    assert "(DENIED)" in str(told.value)
    assert "0123456789" not in str(told.value)
    assert told.value.retryable == retryable


def test_a_download_that_breaks_off_goes_on_where_it_stopped(
    registry: HostileRegistry, out: Path, tmp_path: Path
) -> None:
    def breaking(handler: Handler) -> None:
        start = int(handler.headers.get("Range", "bytes=0-")[6:-1])
        if start:
            registry.instead.pop(blob_path(MODEL))
            handler.serve(MODEL, f"bytes={start}-")
        else:
            handler.break_off_after(MODEL, 50_000)

    registry.instead[blob_path(MODEL)] = breaking
    assert pull(place(registry), out, TRUST, way(tmp_path)).digest == MADE.digest
    ranges = [a.headers.get("range") for a in registry.asked if a.path == blob_path(MODEL)]
    assert ranges == [None, "bytes=50000-"]


def test_a_download_that_always_breaks_off_ends(registry: HostileRegistry, out: Path) -> None:
    def breaking(handler: Handler) -> None:
        start = int(handler.headers.get("Range", "bytes=0-")[6:-1])
        handler.close_connection = True
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(MODEL) - start))
        handler.end_headers()
        handler.wfile.write(MODEL[start : start + 10])

    registry.instead[blob_path(MODEL)] = breaking
    leaves_nothing(registry, out, RegistryUnreachableError, "broke the connection off")
    assert len([a for a in registry.asked if a.path == blob_path(MODEL)]) == MAX_RESUMPTIONS + 1


@contextmanager
def small_disk() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(MODEL) - 1, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_told_as_such(registry: HostileRegistry, out: Path) -> None:
    with small_disk():
        leaves_nothing(registry, out, PackageError, f"{out} cannot be written: File too large")


def test_a_file_that_changes_during_a_push_is_not_pushed(
    registry: HostileRegistry, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    MADE.write_to(source)
    content = directory_content(source)
    (source / "variants/a/model.json").write_bytes(MODEL[:-1] + b"!")
    registry.contents.clear()
    registry.instead[UPLOADS] = lambda handler: handler.answer(202, b"", {"Location": "/up"})
    registry.instead["/up"] = lambda handler: handler.answer(201)
    with pytest.raises(PackageError, match="differs from the signed file"):
        push(content, place(registry), way(tmp_path))
    assert not [path for path in registry.paths("PUT") if "manifests" in path]


def test_a_registry_that_is_only_read_from_refuses_a_push(
    registry: HostileRegistry, tmp_path: Path
) -> None:
    MADE.write_to(tmp_path / "source")
    registry.contents.clear()
    registry.instead[UPLOADS] = lambda handler: handler.answer(403)
    with pytest.raises(RegistryRefusedError, match="does not allow this: push to team/digits"):
        push(directory_content(tmp_path / "source"), place(registry), way(tmp_path))
