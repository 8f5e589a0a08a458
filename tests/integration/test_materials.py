"""What a real build says of its origin, and how it is shown wherever the package lies."""

from __future__ import annotations

import getpass
import hashlib
import json
import socket
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from agent.packages import open_package
from packager.device_profiles import load_profile
from packager.plan.targets import target_of
from tests.integration.builds import QUICK, build_command, built, contents, digits, write_profile
from tests.simulators.packages import RELEASE_KEY, STRANGER_KEY, TRUST, two_variants
from tests.simulators.registry import real_registry
from tests.simulators.stack import Done, Stack, fleet_here, running_stack
from wire.codec import sha256_hex, to_json
from wire.files import write_new
from wire.package.index import BILL_FILE, ENVELOPE_FILE, MATERIALS, PROVENANCE_FILE
from wire.package.manifest import MANIFEST_FILE
from wire.trust.envelope import SigningKey

pytestmark = [pytest.mark.xdist_group("cli")]

CLEAR = "--registry-clear-text"
MODEL = "digits:1.0.0"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = digits(tmp_path_factory.mktemp("materials"))
    write_profile(folder, "onnxruntime")
    (folder / "trust.json").write_bytes(to_json(TRUST))
    write_new(folder / "release.key", b"r" * 32, mode=0o600)
    return folder


@pytest.fixture(scope="module")
def package(work: Path) -> Path:
    done = fleet_here(*build(work, work / "package"))
    assert done.code == 0, done.err
    return work / "package"


@pytest.fixture
def trust(work: Path) -> str:
    return str(work / "trust.json")


def build(work: Path, output: Path, *more: str) -> list[str]:
    options = ("--version", "1.0.0", "--licence", "apache-2.0", "--key", str(work / "release.key"))
    return build_command(work, work / "box.toml", output, *QUICK, *options, *more)


def document(package: Path, path: str) -> dict[str, Any]:
    return dict(json.loads((package / path).read_bytes()))


def ok(*arguments: str) -> Done:
    done = fleet_here("package", *arguments)
    assert done.code == 0, done.err
    return done


def refused(*arguments: str) -> str:
    done = fleet_here("package", *arguments)
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1), done
    return done.err


def file_sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_bill_of_materials_of_a_build_is_valid_and_true(work: Path, package: Path) -> None:
    text = (package / BILL_FILE).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    model = bill["metadata"]["component"]
    assert (model["name"], model["version"]) == ("digits", "1.0.0")
    assert model["licenses"] == [{"expression": "Apache-2.0", "acknowledgement": "declared"}]
    assert model["modelCard"]["modelParameters"]["task"] == "classification"
    files = [file for variant in model["components"] for file in variant["components"]]
    assert len(files) >= 2
    for file in files:
        assert file["hashes"][0]["content"] == file_sha256(package / file["name"])
    others = {part["name"]: part for part in bill["components"]}
    for role, name in (
        ("source", "digits.onnx"),
        ("calibration", "calibration.npz"),
        ("evaluation", "evaluation.npz"),
    ):
        assert others[role]["hashes"][0]["content"] == file_sha256(work / name)
    for tool in ("numpy", "onnx", "onnxruntime"):
        assert others[tool]["version"] == version(tool)
    assert not {"torch", "openvino", "nncf", "skl2onnx"} & set(others)
    assert others["numpy"]["licenses"]


def test_the_provenance_of_a_build_is_true(work: Path, package: Path) -> None:
    told = document(package, PROVENANCE_FILE)
    subjects = {one["name"]: one["digest"]["sha256"] for one in told["subject"]}
    there = {path: sha256_hex(data) for path, data in contents(package).items()}
    assert subjects == {p: d for p, d in there.items() if p not in {PROVENANCE_FILE, ENVELOPE_FILE}}
    definition = told["predicate"]["buildDefinition"]
    asked = definition["externalParameters"]
    assert (asked["model"], asked["evaluation"]) == ("source", "evaluation")
    assert (asked["name"], asked["version"]) == ("digits", "1.0.0")
    assert asked["gates"]["min_retention"] == 0.99
    needed = {one["name"]: one for one in definition["resolvedDependencies"]}
    assert needed["source"]["digest"] == {"sha256": file_sha256(work / "digits.onnx")}
    shown = fleet_here("profile", "show", str(work / "box.toml")).out
    assert needed["profile/box"]["digest"] == {"sha256": sha256_hex(shown.encode())}
    assert needed["onnxruntime"]["uri"] == f"pkg:pypi/onnxruntime@{version('onnxruntime')}"


def test_nothing_is_told_of_the_machine_its_users_or_its_folders(work: Path, package: Path) -> None:
    for path in MATERIALS:
        text = (package / path).read_text()
        places = (str(work), str(Path.home()), str(Path.cwd()))
        for secret in (*places, socket.gethostname(), "r" * 32):
            assert secret not in text, secret
        assert f'"{getpass.getuser()}"' not in text
        assert "/tmp" not in text  # noqa: S108 - no folder is used


def test_equal_builds_give_equal_documents(
    work: Path, package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = built(capsys, build(work, tmp_path / "again"))
    assert {step["state"] for step in again["steps"]} == {"cached"}
    assert contents(tmp_path / "again") == contents(package)


def test_a_version_from_the_content_covers_what_the_documents_tell(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = []
    for name, licence in (("a", "MIT"), ("b", "MIT"), ("c", "Apache-2.0")):
        arguments = build_command(
            work, work / "box.toml", tmp_path / name, *QUICK, "--licence", licence
        )
        versions.append(built(capsys, arguments)["version"])
        told = document(tmp_path / name, BILL_FILE)["metadata"]["component"]
        assert told["version"] == versions[-1]
    assert versions[0] == versions[1] != versions[2]
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.thorough
def test_a_function_is_told_by_its_name_with_the_tools_that_made_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("skl2onnx")
    lines = (
        "import numpy",
        "from sklearn.linear_model import LogisticRegression",
        "VALUES = numpy.random.default_rng(0).standard_normal((160, 4)).astype('float32')",
        "def made():",
        "    return LogisticRegression().fit(VALUES, VALUES[:, 0] > 0), 4",
        "def samples():",
        "    for row in VALUES[:, None]:",
        "        yield {'x': row}",
    )
    (tmp_path / "pipeline.py").write_text("\n".join((*lines, "")))
    write_profile(tmp_path, "onnxruntime")
    monkeypatch.chdir(tmp_path)
    built(capsys, [
        "build", f"{tmp_path}/pipeline.py:made", "-p", "box.toml", "--float-only",
        "--evaluation", "pipeline:samples", "--cache", "cache", "-o", "package", *QUICK,
    ])  # fmt: skip
    told = document(tmp_path / "package", PROVENANCE_FILE)["predicate"]["buildDefinition"]
    asked = told["externalParameters"]
    assert (asked["model"], asked["evaluation"]) == ("pipeline.py:made", "pipeline:samples")
    source = {one["name"]: one for one in told["resolvedDependencies"]}["source"]
    assert source["digest"] == {"sha256": file_sha256(tmp_path / "pipeline.py")}
    assert source["annotations"] == {"form": "function"}
    parts = {p["name"] for p in document(tmp_path / "package", BILL_FILE)["components"]}
    assert {"scikit-learn", "skl2onnx"} <= parts
    assert "torch" not in parts


@pytest.mark.thorough
def test_each_compiled_variant_names_what_compiled_it(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for tool in ("tvm", "iree.compiler"):
        pytest.importorskip(tool)
    profile = write_profile(tmp_path, "onnxruntime", "tvm", "iree", name="compiled")
    compiler = target_of(load_profile(str(profile))).compiler
    built(capsys, build_command(work, profile, tmp_path / "p", *QUICK, "--float-only"))
    bill = document(tmp_path / "p", BILL_FILE)
    needs = {one["ref"]: set(one.get("dependsOn", ())) for one in bill["dependencies"]}
    by_runtime = {
        name.removeprefix("variant:").partition("-")[0]: {
            ref.removeprefix("tool:") for ref in refs if ref.startswith("tool:")
        }
        for name, refs in needs.items()
        if name.startswith("variant:")
    }
    prepared = {"onnx", "onnxslim"}
    assert by_runtime["iree"] == {*prepared, "iree-base-compiler"}
    assert by_runtime["tvm"] == {*prepared, "apache-tvm", "apache-tvm-ffi", compiler}
    parts = {part["name"]: part for part in bill["components"]}
    assert parts[compiler]["purl"].startswith("pkg:generic/")
    assert parts["iree-base-runtime"]["version"] == version("iree-base-runtime")


def test_weights_beside_the_model_are_told_by_their_digest(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.load(work / "digits.onnx")
    onnx.save(
        model, tmp_path / "digits.onnx", save_as_external_data=True, location="weights.bin",
        size_threshold=0,
    )  # fmt: skip
    for name in ("calibration.npz", "evaluation.npz"):
        (tmp_path / name).write_bytes((work / name).read_bytes())
    built(capsys, build_command(tmp_path, work / "box.toml", tmp_path / "p", *QUICK))
    parts = {part["name"]: part for part in document(tmp_path / "p", BILL_FILE)["components"]}
    weights = file_sha256(tmp_path / "weights.bin")
    assert parts["source-data-1"]["hashes"] == [{"alg": "SHA-256", "content": weights}]


def test_a_licence_that_is_no_spdx_expression_ends_the_build_before_it_begins(
    work: Path, tmp_path: Path
) -> None:
    arguments = build_command(work, work / "box.toml", tmp_path / "p", "--licence", "my own")
    done = fleet_here(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("fleet: licence 'my own' is no SPDX expression; ")
    assert not (tmp_path / "p").exists()


def test_tables_and_documents_of_a_directory(package: Path, trust: str, tmp_path: Path) -> None:
    bill = ok("sbom", str(package)).out
    assert "onnxruntime-fp32/model.onnx" in bill
    assert "Apache-2.0" in bill
    assert "numpy" in bill
    provenance = ok("provenance", str(package), "--trust", trust).out
    assert "gates.min_retention" in provenance
    assert f"pkg:pypi/numpy@{np.__version__}" in provenance
    for command, path in (("sbom", BILL_FILE), ("provenance", PROVENANCE_FILE)):
        data = (package / path).read_bytes()
        assert ok(command, str(package), "--json").out.encode() == data
        written = tmp_path / command
        assert ok(command, str(package), "--output", str(written)).out == ""
        assert written.read_bytes() == data
        assert "exists already" in refused(command, str(package), "-o", str(written))


def test_documents_of_a_file_are_read_after_its_signature(
    package: Path, trust: str, tmp_path: Path
) -> None:
    whole, part = str(tmp_path / "whole.tar"), str(tmp_path / "part.tar")
    ok("export", str(package), "--to", whole)
    ok("export", str(package), "--to", part, "--profile", str(package.parent / "box.toml"))
    data = (package / PROVENANCE_FILE).read_bytes()
    assert ok("provenance", whole, "--trust", trust, "--json").out.encode() == data
    assert "export it without --profile" in refused("sbom", part, "--trust", trust)
    assert "add --trust FILE" in refused("sbom", whole)
    stranger = tmp_path / "stranger.json"
    role = {"keys": [], "threshold": 1}
    stranger.write_bytes(to_json({"schema_version": 1, "release": role, "director": role}))
    assert "fleet: " in refused("sbom", whole, "--trust", str(stranger))


def test_documents_in_a_registry_are_read_after_its_signature(
    package: Path, trust: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "no-login.json"))
    with real_registry(tmp_path) as host:
        place = f"oci://{host}/team/digits:1.0.0"
        ok("push", str(package), place, CLEAR)
        for command, path in (("sbom", BILL_FILE), ("provenance", PROVENANCE_FILE)):
            told = ok(command, place, "--trust", trust, CLEAR, "--json")
            assert told.out.encode() == (package / path).read_bytes()
        assert "add --trust FILE" in refused("sbom", place, CLEAR)


def test_a_package_of_before_is_told_in_one_line(trust: str, tmp_path: Path) -> None:
    two_variants("1.0.0").write_to(tmp_path / "old")
    for command, called in (("sbom", "bill of materials"), ("provenance", "provenance")):
        fault = refused(command, str(tmp_path / "old"), "--trust", trust)
        assert fault == (
            f"fleet: {MODEL} has no {called}: an earlier version of fleet built it; "
            "build it again\n"
        )
    assert ok("show", str(tmp_path / "old")).out
    assert "neither the directory of a package nor a release" in refused("sbom", "./none")


def test_a_document_that_was_changed_is_refused(package: Path, trust: str, tmp_path: Path) -> None:
    for path, data in contents(package).items():
        place = tmp_path / "changed" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    bill = tmp_path / "changed" / BILL_FILE
    bill.write_bytes(bill.read_bytes().replace(b"Apache-2.0", b"Apache-1.1"))
    assert f"{BILL_FILE} was changed" in refused("sbom", str(tmp_path / "changed"))
    ok("verify", str(package), "--trust", trust)


def test_a_device_needs_none_of_the_documents(package: Path, tmp_path: Path) -> None:
    opened = open_package(package, digest_of(package), TRUST)
    needed = {entry.path for entry in opened.files(opened.manifest.variants)}
    assert MANIFEST_FILE in needed
    assert not needed & MATERIALS
    for path in MATERIALS:
        (tmp_path / Path(path).name).write_bytes((package / path).read_bytes())
        (package / path).unlink()
    try:
        opened.verify(opened.manifest.variants)
    finally:
        for path in MATERIALS:
            (package / path).write_bytes((tmp_path / Path(path).name).read_bytes())


def digest_of(package: Path) -> str:
    return str(ok("show", str(package), "--json").json["digest"])


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack() as running:
        yield running


@pytest.mark.thorough
@pytest.mark.broker
def test_documents_of_a_release_come_from_the_controller(
    work: Path, stack: Stack, tmp_path: Path
) -> None:
    output = tmp_path / "package"
    key = SigningKey(stack.release_key.read_bytes())
    assert key.keyid not in {RELEASE_KEY.keyid, STRANGER_KEY.keyid}
    arguments = build(work, output)
    arguments[arguments.index("--key") + 1] = str(stack.release_key)
    assert fleet_here(*arguments).code == 0
    stack.ok("release", "publish", str(output))
    trust = str(stack.home / "trust.json")
    for command, path in (("sbom", BILL_FILE), ("provenance", PROVENANCE_FILE)):
        data = (output / path).read_bytes()
        assert stack.ok("package", command, MODEL, "--json").out.encode() == data
        assert stack.ok("package", command, MODEL, "--trust", trust, "--json").out.encode() == data
    refusal = stack.fleet("package", "sbom", MODEL, "--trust", str(work / "trust.json"))
    assert (refusal.code, len(refusal.err.splitlines())) == (2, 1)
    missing = stack.fleet("package", "sbom", "none:1")
    assert (missing.code, len(missing.err.splitlines())) == (2, 1)
    stack.ok("package", "export", MODEL, "--to", str(tmp_path / "a.tar"))
    # For a file, the default is the trust root of the controller's directory.
    told = stack.ok("package", "sbom", str(tmp_path / "a.tar"), "--json").out
    assert told.encode() == (output / BILL_FILE).read_bytes()
