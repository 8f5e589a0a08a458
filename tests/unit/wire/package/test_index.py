"""The package index and the manifest: what is accepted, what is refused, what a device gets."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.codec import to_json
from wire.errors import WireFormatError
from wire.package.accuracy import Accuracy, Certainty
from wire.package.golden import Golden, Tolerance
from wire.package.index import (
    FileEntry,
    PackageIndex,
    asset_directory,
    asset_uri,
    entry_for,
    index_from_bytes,
)
from wire.package.manifest import Manifest, manifest_from_bytes, manifest_to_bytes
from wire.package.paths import safe_path
from wire.package.tensors import TensorSpec
from wire.package.variant import Requirements, Variant, VariantInfo
from wire.profile import DeviceProfile

ASSET = asset_uri({"input.x.npy": b"1", "output.y.npy": b"2"})
X = TensorSpec(name="x", datatype="FP32", shape=(-1, 4))
PI = DeviceProfile(
    name="pi",
    architecture="aarch64",
    isa_features=("asimddp",),
    cpu_count=4,
    memory_bytes=1000,
    storage_bytes=1000,
    runtimes=("onnxruntime", "null"),
)


def make_variant(name: str, **changes: Any) -> Variant:
    info: dict[str, Any] = {
        "runtime": "onnxruntime",
        "precision": "fp32",
        "model_file": "model.onnx",
        "inputs": (X,),
        "outputs": (X,),
        "size_bytes": 10,
        "golden": Golden(
            asset=ASSET, samples=8, tolerances={"x": Tolerance(absolute=0.1, relative=0.0)}
        ),
    }
    return Variant(name=name, directory=name, info=VariantInfo(**(info | changes)))


def make_manifest(*variants: Variant) -> Manifest:
    return Manifest(name="digits", version="1.0.0", variants=variants)


def test_manifest_round_trip() -> None:
    manifest = make_manifest(make_variant("a"), make_variant("b", precision="int8"))
    data = manifest_to_bytes(manifest)
    assert manifest_from_bytes(data) == manifest
    assert manifest_to_bytes(manifest_from_bytes(data)) == data


def test_bounds_are_read_back_and_older_packages_have_none() -> None:
    plain = Accuracy(
        metric="top1", value=0.9, reference=0.9, retention=1.0, agreement=0.98, sqnr_db=30.0,
        worst_error=0.1, samples=600,
    )  # fmt: skip
    bounds = Certainty(
        retention_low=0.981, retention_high=1.019, agreement_low=0.95, agreement_high=None,
        confidence=0.995, compared=10, samples_needed=1400,
    )  # fmt: skip
    older = manifest_to_bytes(make_manifest(make_variant("a", accuracy=plain)))
    assert b"certainty" not in older
    read = manifest_from_bytes(older).variant("a").info.accuracy
    assert read == plain
    with_bounds = msgspec.structs.replace(plain, certainty=bounds)
    newer = manifest_to_bytes(make_manifest(make_variant("a", accuracy=with_bounds)))
    assert manifest_from_bytes(newer).variant("a").info.accuracy == with_bounds


def test_manifest_keeps_to_onnx_runtimes_layout() -> None:
    # The library rejects unknown keys by default: only these may occur at each level.
    variant = make_variant("a")
    variant = msgspec.structs.replace(variant, ort={"model_file": "model.onnx"})
    document = json.loads(manifest_to_bytes(make_manifest(variant)))
    assert document["schema_version"] == "1.0"
    assert set(document) <= {
        "schema_version", "package_name", "package_version", "description", "layout",
        "components", "shared_assets", "additional_metadata",
    }  # fmt: skip
    component = document["components"]["model"]
    assert set(component) <= {"component_name", "variants", "additional_metadata"}
    body = component["variants"]["a"]
    assert set(body) <= {
        "variant_directory", "ep", "device", "compatibility_string", "executor_info",
        "additional_metadata",
    }  # fmt: skip
    assert body["ep"] == "CPUExecutionProvider"
    assert "device" not in body, "ONNX Runtime 1.31 would find no such hardware device"
    assert set(body["executor_info"]) == {"ort", "edgefleet"}


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": "2.0"},
        {"layout": "installed"},
        {"unknown": 1},
        {"components": {}},
        {"components": {"model": {"variants": {}}}},
        {"components": {"model": {"variants": {"a": {"executor_info": {"ort": {}}}}}}},
        {"package_name": "../x"},
    ],
)
def test_manifest_of_another_form_is_refused(change: dict[str, Any]) -> None:
    document = json.loads(manifest_to_bytes(make_manifest(make_variant("a"))))
    with pytest.raises(WireFormatError):
        manifest_from_bytes(json.dumps(document | change).encode())


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../b", "a//b", "./a", "a\\b", "a\nb", "a/", "x" * 256]
)
def test_unsafe_paths_are_refused(path: str) -> None:
    with pytest.raises(WireFormatError):
        safe_path(path)
    with pytest.raises(WireFormatError):
        manifest_from_bytes(manifest_to_bytes(make_manifest(make_variant("a", model_file=path))))


@given(st.text(max_size=40))
def test_a_path_that_passes_stays_inside(path: str) -> None:
    try:
        safe_path(path)
    except WireFormatError:
        return
    assert ".." not in path.split("/")
    assert not path.startswith("/")


@pytest.mark.parametrize(
    ("needs", "runtime", "reason"),
    [
        (Requirements(), "onnxruntime", None),
        (Requirements(architectures=("x86_64",)), "onnxruntime", "needs x86_64"),
        (Requirements(isa_features=("sve",)), "onnxruntime", "needs sve"),
        (Requirements(memory_bytes=1001), "onnxruntime", "1001 bytes of memory"),
        (Requirements(), "openvino", "needs the runtime openvino"),
    ],
)
def test_a_misfit_names_its_reason(needs: Requirements, runtime: str, reason: str | None) -> None:
    found = make_variant("a", requirements=needs, runtime=runtime).misfit(PI)
    assert (found is None) if reason is None else (found is not None and reason in found)


def test_a_known_profile_gets_what_was_kept_for_it() -> None:
    manifest = make_manifest(
        make_variant("a", profiles=("pi",)),
        make_variant("b", profiles=("other",)),
        make_variant("c", profiles=("pi",), runtime="openvino"),
    )
    assert [v.name for v in manifest.fitting(PI)] == ["a"]
    stranger = msgspec.structs.replace(PI, name="stranger")
    assert [v.name for v in manifest.fitting(stranger)] == ["a", "b"]


def make_index(*entries: FileEntry) -> PackageIndex:
    return PackageIndex(name="digits", version="1.0.0", files=entries)


@given(st.binary(max_size=5000), st.integers(min_value=1024, max_value=2048))
def test_index_round_trip(content: bytes, chunk_bytes: int) -> None:
    entry = entry_for("a/b", content, chunk_bytes=chunk_bytes)
    index = PackageIndex(name="n", version="1", chunk_bytes=chunk_bytes, files=(entry,))
    assert index_from_bytes(index.to_bytes()) == index


def test_a_device_fetches_only_what_it_needs() -> None:
    a, b = make_variant("a"), make_variant("b", golden=None)
    golden = f"{asset_directory(ASSET)}/input.x.npy"
    index = make_index(
        *(entry_for(p, b"1") for p in ("manifest.json", "a/model.onnx", "b/model.onnx", golden))
    )
    assert [e.path for e in index.files_for((a,))] == ["manifest.json", "a/model.onnx", golden]
    assert [e.path for e in index.files_for((b,))] == ["manifest.json", "b/model.onnx"]


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"files": []},
        {"name": "a/b"},
        {"chunk_bytes": 1},
        {"files": [{"path": "../a", "size_bytes": 0, "sha256": "0" * 64, "chunks": []}]},
        {"files": [{"path": "a", "size_bytes": 1, "sha256": "0" * 64, "chunks": []}]},
        {"files": [{"path": "a", "size_bytes": 0, "sha256": "zz", "chunks": []}]},
        {"files": [{"path": "a", "size_bytes": 0, "sha256": "0" * 64, "chunks": []}] * 2},
        {"files": [{"path": "a", "size_bytes": -1, "sha256": "0" * 64, "chunks": []}]},
    ],
)
def test_an_impossible_index_is_refused(change: dict[str, Any]) -> None:
    document = json.loads(make_index(entry_for("a", b"1")).to_bytes())
    with pytest.raises(WireFormatError):
        index_from_bytes(to_json(document | change))


def test_asset_uri_follows_the_documented_computation() -> None:
    import hashlib

    first, second = hashlib.sha256(b"1").hexdigest(), hashlib.sha256(b"2").hexdigest()
    lines = f"{first}  input.x.npy\n{second}  output.y.npy\n"
    assert f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}" == ASSET
    with pytest.raises(WireFormatError):
        asset_directory("sha256:../../etc")
