"""What we write is a model package as ONNX Runtime documents it, and as its loader takes it.

Rules:
- Each test names the rule by the words of ONNX Runtime's documentation.

Source:
    ONNX Runtime, model_package/README.md (layout, manifest.json, paths, shared assets, versions)
    and onnxruntime/core/session/model_package/README.md (`executor_info["ort"]`, selection).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

import onnxruntime
import pytest

from packager.package.directory import open_package, write_package
from tests.contract.ort_packages import API_VERSION, Loader, OrtPackageError
from wire.package.golden import Golden
from wire.package.index import MATERIALS, asset_directory, asset_uri
from wire.package.manifest import COMPONENT, EXECUTOR, Manifest
from wire.package.tensors import TensorSpec
from wire.package.variant import Variant, VariantInfo
from wire.trust.envelope import SigningKey

MODEL = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits.onnx"
ORT_RUNTIMES = {"onnxruntime"}
MANIFEST_KEYS = {
    "schema_version", "package_name", "package_version", "description", "layout", "components",
    "shared_assets", "additional_metadata",
}  # fmt: skip
COMPONENT_KEYS = {"component_name", "variants", "additional_metadata"}
VARIANT_KEYS = {
    "variant_directory", "ep", "device", "compatibility_string", "executor_info",
    "additional_metadata",
}  # fmt: skip
ORT_KEYS = {"model_file", "session_options", "provider_options"}
GOLDEN = {"input.x.npy": b"an input", "output.y.npy": b"an output"}


def variant(name: str, runtime: str, file: str, asset: str) -> Variant:
    info = VariantInfo(
        runtime=runtime,
        precision="fp32",
        model_file=file,
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, 64)),),
        outputs=(TensorSpec(name="y", datatype="FP32", shape=(-1, 10)),),
        size_bytes=1,
        golden=Golden(asset=asset, samples=1, tolerances={}),
    )
    ort = {"model_file": file} if runtime in ORT_RUNTIMES else None
    return Variant(name=name, directory=name, info=info, ort=ort)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed package: a variant that ONNX Runtime runs, one that it cannot, assets, documents."""
    root = tmp_path_factory.mktemp("layout")
    other = root / "model.so"
    other.write_bytes(b"not for ONNX Runtime")
    asset = asset_uri(GOLDEN)
    files = {"a-tvm/model.so": other, "b-onnxruntime/model.onnx": MODEL}
    for name, content in GOLDEN.items():
        (root / name).write_bytes(content)
        files[f"{asset_directory(asset)}/{name}"] = root / name
    manifest = Manifest(
        name="digits",
        version="1",
        variants=(
            variant("a-tvm", "tvm", "model.so", asset),
            variant("b-onnxruntime", "onnxruntime", "model.onnx", asset),
        ),
        metadata={"built_by": "edgefleet"},
    )
    output = root / "package"
    documents = dict.fromkeys(MATERIALS, b"{}")
    write_package(output, manifest, {**files, **documents}, key=SigningKey(b"k" * 32))
    return output


@pytest.fixture
def document(package: Path) -> dict[str, Any]:
    return dict(json.loads((package / "manifest.json").read_bytes()))


@pytest.fixture(scope="module")
def loader() -> Iterator[Loader]:
    minor = int(onnxruntime.__version__.split(".")[1])
    if minor < API_VERSION:
        pytest.skip("this ONNX Runtime has no loader of model packages")
    made = Loader()
    yield made
    made.close()


def changed(package: Path, target: Path, document: dict[str, Any]) -> Path:
    """A copy of the package with another manifest."""
    shutil.copytree(package, target)
    (target / "manifest.json").write_text(json.dumps(document))
    return target


def bodies(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return dict(document["components"][COMPONENT]["variants"])


def test_the_manifest_has_the_required_keys_and_no_unknown_ones(document: dict[str, Any]) -> None:
    major, _, minor = document["schema_version"].partition(".")
    assert (major, minor.isdigit()) == ("1", True)
    assert isinstance(document["schema_version"], str)
    assert set(document) <= MANIFEST_KEYS
    assert document.get("layout", "portable") == "portable"
    assert all(isinstance(document[key], str) for key in ("package_name", "package_version"))
    assert document["components"]
    for component in document["components"].values():
        assert set(component) <= COMPONENT_KEYS
        assert component["variants"]


def test_a_variant_is_a_directory_with_known_keys_of_the_right_types(
    package: Path, document: dict[str, Any]
) -> None:
    for name, body in bodies(document).items():
        assert set(body) <= VARIANT_KEYS
        assert (package / body.get("variant_directory", name)).is_dir()
        assert all(isinstance(body.get(key, ""), str) for key in ("ep", "device"))
        assert body.get("device", "cpu") in {"cpu", "gpu", "npu"}
        for namespace, value in body["executor_info"].items():
            assert namespace in {"ort", EXECUTOR}
            assert isinstance(value, (str, dict))


def test_every_path_is_relative_and_stays_below_the_package(
    package: Path, document: dict[str, Any]
) -> None:
    for name, body in bodies(document).items():
        folder = body.get("variant_directory", name)
        ort = body["executor_info"].get("ort", {})
        ours = body["executor_info"][EXECUTOR]
        for path in (folder, ours["model_file"], ort.get("model_file", "x")):
            pure = PurePosixPath(path)
            assert not pure.is_absolute()
            assert ".." not in pure.parts
            assert "\\" not in path
        assert (package / folder / ours["model_file"]).is_file()
    assert not [path for path in package.rglob("*") if path.is_symlink()]


def test_ort_has_its_own_slot_where_it_can_run_the_variant_and_an_execution_provider(
    document: dict[str, Any],
) -> None:
    for body in bodies(document).values():
        ort = body["executor_info"].get("ort")
        runs_there = body["executor_info"][EXECUTOR]["runtime"] in ORT_RUNTIMES
        assert (ort is not None) == runs_there
        assert ("ep" in body) == runs_there
        if ort is not None:
            assert set(ort) <= ORT_KEYS
            assert isinstance(ort["model_file"], str)
            for key in ("session_options", "provider_options"):
                assert all(isinstance(value, str) for value in ort.get(key, {}).values())


def test_a_shared_asset_is_named_by_the_documented_hash_of_its_directory(
    package: Path, document: dict[str, Any]
) -> None:
    folders = list((package / "shared_assets").iterdir())
    assert folders
    for folder in folders:
        lines = sorted(
            (path.relative_to(folder).as_posix(), sha256(path.read_bytes()).hexdigest())
            for path in folder.rglob("*")
            if path.is_file()
        )
        text = "".join(f"{digest}  {path}\n" for path, digest in lines)
        assert folder.name == f"sha256-{sha256(text.encode()).hexdigest()}"
    used = {
        body["executor_info"][EXECUTOR]["golden"]["asset"] for body in bodies(document).values()
    }
    assert {name.replace(":", "-") for name in used} == {folder.name for folder in folders}
    assert all(uri.startswith("sha256:") for uri in document.get("shared_assets", {}))


def test_the_loader_opens_it_and_finds_its_variants_and_assets(
    package: Path, loader: Loader
) -> None:
    assert loader.variants(package, COMPONENT) == ["a-tvm", "b-onnxruntime"]
    asset = asset_uri(GOLDEN)
    assert loader.resolve(package, f"{asset}/input.x.npy") == str(
        package / asset_directory(asset) / "input.x.npy"
    )
    assert open_package(package)[0].variant("a-tvm").ort is None


def test_the_loader_chooses_the_variant_that_it_can_run_and_loads_it(
    package: Path, loader: Loader
) -> None:
    assert loader.load(package, COMPONENT) == ("b-onnxruntime", 1)


def test_a_variant_without_a_device_is_for_any_that_its_execution_provider_has(
    package: Path, document: dict[str, Any], loader: Loader, tmp_path: Path
) -> None:
    bodies(document)["b-onnxruntime"].pop("device", None)
    assert loader.load(changed(package, tmp_path / "any", document), COMPONENT)[1] == 1
    bodies(document)["b-onnxruntime"]["device"] = "gpu"
    with pytest.raises(OrtPackageError, match="No suitable model variant"):
        loader.load(changed(package, tmp_path / "gpu", document), COMPONENT)


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("manifest", "manifest: unknown field 'surprise'"),
        ("component", "component 'model': unknown field 'surprise'"),
        ("variant", "variant 'a-tvm': unknown field 'surprise'"),
    ],
)
def test_the_loader_refuses_an_unknown_key_unless_the_minor_version_is_newer(
    package: Path,
    document: dict[str, Any],
    loader: Loader,
    tmp_path: Path,
    where: str,
    says: str,
) -> None:
    component = document["components"][COMPONENT]
    places = {"manifest": document, "component": component, "variant": bodies(document)["a-tvm"]}
    places[where]["surprise"] = 1
    with pytest.raises(OrtPackageError, match=says):
        loader.variants(changed(package, tmp_path / "same", document), COMPONENT)
    document["schema_version"] = "1.1"
    assert loader.variants(changed(package, tmp_path / "newer", document), COMPONENT)


def test_the_loader_leaves_what_is_under_our_own_key_alone(
    package: Path, document: dict[str, Any], loader: Loader, tmp_path: Path
) -> None:
    for body in bodies(document).values():
        body["executor_info"][EXECUTOR]["surprise"] = {"any": ["thing"]}
    document["additional_metadata"] = {"any": ["thing"]}
    assert loader.variants(changed(package, tmp_path / "p", document), COMPONENT)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/etc", "path '/etc' is not allowed in portable layout"),
        ("../up", "segments are not allowed in portable layout"),
        ("nowhere", "does not exist"),
    ],
)
def test_the_loader_refuses_a_variant_directory_outside_or_missing(
    package: Path, document: dict[str, Any], loader: Loader, tmp_path: Path, path: str, says: str
) -> None:
    bodies(document)["a-tvm"]["variant_directory"] = path
    with pytest.raises(OrtPackageError, match=says):
        loader.variants(changed(package, tmp_path / "p", document), COMPONENT)


@pytest.mark.parametrize("missing", ["schema_version", "components"])
def test_the_loader_needs_the_required_keys(
    package: Path, document: dict[str, Any], loader: Loader, tmp_path: Path, missing: str
) -> None:
    del document[missing]
    with pytest.raises(OrtPackageError, match=missing):
        loader.variants(changed(package, tmp_path / "p", document), COMPONENT)


@pytest.mark.parametrize("key", ["session.optimized_model_filepath", "session.enable_profiling"])
def test_the_loader_refuses_session_options_that_write_files(
    package: Path, document: dict[str, Any], loader: Loader, tmp_path: Path, key: str
) -> None:
    bodies(document)["b-onnxruntime"]["executor_info"]["ort"]["session_options"] = {key: "x"}
    with pytest.raises(OrtPackageError, match="cannot be set in model package session options"):
        loader.variants(changed(package, tmp_path / "p", document), COMPONENT)
