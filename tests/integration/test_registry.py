"""`fleet package push` and `pull` with a real registry: what comes back, and what is said."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulators.certificates import Authority
from tests.simulators.packages import (
    STRANGER_KEY,
    TRUST,
    SignedPackage,
    package,
    two_variants,
    variant,
)
from tests.simulators.registry import PASSWORD, USER, real_registry
from tests.simulators.stack import ROOT, Done, environment, fleet_here
from wire.codec import sha256_hex, to_json

CLEAR = "--registry-clear-text"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Return a registry with TLS and a password, and the file of its authority."""
    directory = tmp_path_factory.mktemp("guarded")
    authority = Authority(directory, "company")
    with real_registry(
        directory, certificate=authority.issue("registry"), needs_login=True
    ) as running:
        yield running, authority.ca_file


@pytest.fixture(autouse=True)
def no_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "no-login.json"))


@pytest.fixture
def trust(tmp_path: Path) -> str:
    (tmp_path / "trust.json").write_bytes(to_json(TRUST))
    return str(tmp_path / "trust.json")


def written(made: SignedPackage, directory: Path) -> str:
    made.write_to(directory)
    return str(directory)


def tree(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def push(*arguments: str) -> Done:
    done = fleet_here("package", "push", *arguments)
    assert done.code == 0, done.err
    return done


def refused(*arguments: str) -> str:
    done = fleet_here("package", *arguments)
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1), done
    assert PASSWORD not in done.err
    return done.err


def log_in(file: Path, host: str, password: str = PASSWORD) -> None:
    auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
    file.write_text(json.dumps({"auths": {host: {"auth": auth}}}))


def test_a_package_comes_back_as_it_was(host: str, trust: str, tmp_path: Path) -> None:
    # Two equal files and an empty one, which registries and clients treat in ways of their own.
    made = package(
        "1.0.0",
        [(variant("a"), b"same" * 5000), (variant("b"), b"same" * 5000), (variant("c"), b"")],
    )
    source = written(made, tmp_path / "source")
    place = f"oci://{host}/team/whole"
    told = push(source, place, CLEAR, "--json")
    assert (told.json["sent"], told.json["files"]) == (3, 3)
    assert told.json["release"] == "digits:1.0.0"
    assert told.json["reference"].startswith(f"{place}:1.0.0@sha256:")
    for name, reference in (("tag", f"{place}:1.0.0"), ("digest", told.json["reference"])):
        out = tmp_path / name
        done = fleet_here("package", "pull", reference, "-o", str(out), "--trust", trust, CLEAR)
        assert done.out == f"digits:1.0.0 {made.digest} verified\n", done.err
        assert tree(out) == tree(Path(source))


def test_only_what_the_repository_lacks_is_sent(host: str, tmp_path: Path) -> None:
    first = written(two_variants("1.0.0", small="shared"), tmp_path / "first")
    second = written(two_variants("1.1.0", best="new", small="shared"), tmp_path / "second")
    place = f"oci://{host}/team/shared"
    assert push(first, place, CLEAR, "--json").json["sent"] == 3
    again = push(first, place, CLEAR, "--json").json
    assert again["sent"] == 0
    assert push(second, place, CLEAR, "--json").json["sent"] == 2  # its manifest, and one model


def test_equal_packages_have_one_digest(host: str, tmp_path: Path) -> None:
    source = written(two_variants("1.0.0"), tmp_path / "source")
    told = [push(source, f"oci://{host}/{name}", CLEAR, "--json").json for name in ("a", "b")]
    digests = {done["reference"].partition("@")[2] for done in told}
    assert len(digests) == 1


def test_a_tag_is_not_moved_unless_somebody_says_so(host: str, trust: str, tmp_path: Path) -> None:
    old = written(two_variants("1.0.0"), tmp_path / "old")
    new = two_variants("1.0.0", best="another")
    place = f"oci://{host}/team/moved:1.0.0"
    push(old, place, CLEAR)
    told = refused("push", written(new, tmp_path / "new"), place, CLEAR)
    assert "exists already and is something else; name another tag, or add --force" in told
    push(str(tmp_path / "new"), place, CLEAR, "--force")
    done = fleet_here(
        "package", "pull", place, "-o", str(tmp_path / "out"), "--trust", trust, CLEAR
    )
    assert new.digest in done.out


def test_tls_and_a_password_that_nobody_sees(
    guarded: tuple[str, Path], trust: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, ca_file = guarded
    made = two_variants("1.0.0")
    source, place = written(made, tmp_path / "source"), f"oci://{host}/team/digits:1.0.0"
    secure = ("--registry-ca-file", str(ca_file))
    logins = tmp_path / "logins.json"
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(logins))

    assert f"{host} wants credentials, and there are none" in refused(
        "push", source, place, *secure
    )
    log_in(logins, host, PASSWORD + "!")
    assert f"{host} refuses the credentials" in refused("push", source, place, *secure)
    log_in(logins, host)
    push(source, place, *secure)
    done = fleet_here(
        "package", "pull", place, "-o", str(tmp_path / "out"), "--trust", trust, *secure
    )
    assert done.out == f"digits:1.0.0 {made.digest} verified\n"

    told = refused("push", source, place)
    assert "certificate" in told
    assert "--registry-ca-file FILE" in told
    told = refused("push", source, place, "--registry-ca-file", str(tmp_path / "none.pem"))
    assert "cannot use the CA file" in told


def test_faults_are_one_line(host: str, trust: str, tmp_path: Path) -> None:
    source = written(two_variants("1.0.0"), tmp_path / "source")
    (tmp_path / "empty").mkdir()
    pull = ("-o", str(tmp_path / "out"), "--trust", trust, CLEAR)
    for arguments, fact in (
        (("pull", f"oci://{host}/none:1", *pull), f"{host} has no package none:1"),
        (("pull", f"oci://{host}/none", *pull), "the reference names no package; write oci://HOST"),
        (("pull", f"oci://{host}/Team/x:1", *pull), "not a reference to a package in a registry"),
        (("pull", f"oci://me:{PASSWORD}@{host}/x:1", *pull), "holds no user and no password"),
        (("pull", f"oci://{host}/none:1", *pull[:-1]), f"no TLS with {host}"),
        (
            ("pull", "oci://127.0.0.1:1/none:1", *pull),
            "127.0.0.1:1 does not answer; check its name",
        ),
        (("push", str(tmp_path / "empty"), f"oci://{host}/x", CLEAR), "is not a package"),
        (
            ("push", "./none", f"oci://{host}/x", CLEAR),
            "is neither the directory of a package nor a release",
        ),
        (
            ("push", source, f"oci://{host}/x@sha256:{'0' * 64}", CLEAR),
            "has the digest of another package",
        ),
    ):
        assert fact in refused(*arguments), arguments
    assert not (tmp_path / "out").exists()


def test_what_is_in_a_registry_but_not_ours_is_refused(
    host: str, trust: str, tmp_path: Path
) -> None:
    strange = package("1.0.0", [(variant("a"), b"model")], key=STRANGER_KEY)
    place = f"oci://{host}/team/strange:1.0.0"
    push(written(strange, tmp_path / "strange"), place, CLEAR)
    out = tmp_path / "out"
    told = refused("pull", place, "-o", str(out), "--trust", trust, CLEAR)
    assert "0 of 1 needed signatures" in told
    assert not out.exists()


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['urllib3'] = None; from controller.cli import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    for arguments in (
        ("package", "push", "directory", "oci://registry.example/x"),
        ("package", "pull", "oci://registry.example/x:1", "-o", "out", "--trust", "trust.json"),
        ("release", "publish", "oci://registry.example/x:1", "--trust", "trust.json"),
    ):
        done = subprocess.run(
            [sys.executable, "-P", "-c", program, *arguments],
            env=environment(PYTHONPATH=str(ROOT)), cwd=tmp_path, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert done.stderr == (
            "fleet: what speaks to registries is not installed; pip install 'edgefleet[oci]'\n"
        )


def test_the_manifest_in_the_registry_is_what_the_push_said(host: str, tmp_path: Path) -> None:
    import urllib3

    made = two_variants("1.0.0")
    told = push(written(made, tmp_path / "source"), f"oci://{host}/team/seen", CLEAR, "--json").json
    url = f"http://{host}/v2/team/seen/manifests/1.0.0"
    with urllib3.PoolManager() as client:
        answer = client.request(
            "GET", url, headers={"Accept": "application/vnd.oci.image.manifest.v1+json"}
        )
    manifest = answer.json()
    assert told["reference"].endswith(f"@sha256:{sha256_hex(answer.data)}")
    assert answer.headers["Docker-Content-Digest"] == f"sha256:{sha256_hex(answer.data)}"
    assert manifest["artifactType"] == "application/vnd.edgefleet.package.v1"
    titles = [part["annotations"]["org.opencontainers.image.title"] for part in manifest["layers"]]
    assert titles == ["package.dsse.json", *(entry.path for entry in made.index.files)]
    assert manifest["annotations"]["vnd.edgefleet.package.digest"] == made.digest
