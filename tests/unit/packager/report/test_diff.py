"""Two packages side by side: variants, figures that can be compared, what a device fetches."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from agent.install.fetch.local import LocalPackages
from controller.cli import main
from packager.package.differences import (
    PackageDifference,
    ProfileDifference,
    VariantDifference,
    compare_files,
)
from packager.package.directory import open_package, seal, write_package
from packager.report.diff import compare_directories, profile_rows, variant_rows
from packager.report.further import difference_rows
from wire.codec import from_json, to_json
from wire.package.accuracy import Accuracy, FurtherAccuracy
from wire.package.index import CHUNK_BYTES, ENVELOPE_FILE
from wire.package.manifest import Manifest
from wire.package.performance import Performance
from wire.package.tensors import TensorSpec
from wire.package.variant import Variant, VariantInfo
from wire.trust.envelope import SigningKey
from wire.trust.root import Role, TrustRoot, encode_key

KEY = SigningKey(b"k" * 32)
SPEC = TensorSpec(name="t", datatype="FP32", shape=(-1, 3))
N100, EPYC = "x86_64 Intel(R) N100", "x86_64 AMD EPYC"
ACCURACY = Accuracy(
    metric="top1", value=0.9, reference=0.9, retention=1.0, agreement=1.0, sqnr_db=30.0,
    worst_error=0.1, samples=100,
)  # fmt: skip
PERFORMANCE = Performance(
    latency_p50_ms=1.0, latency_p95_ms=1.2, load_ms=3.0, first_inference_ms=2.0,
    peak_memory_bytes=2**25, runs=200, threads=1, machine=EPYC,
)  # fmt: skip
FLOAT = b"f" * (2 * CHUNK_BYTES) + b"tail"
INT8 = b"i" * 100_000


def variant(
    name: str,
    content: bytes,
    *profiles: str,
    accuracy: Accuracy | None = ACCURACY,
    performance: Performance | None = PERFORMANCE,
) -> tuple[Variant, bytes]:
    info = VariantInfo(
        runtime="null",
        precision="x",
        model_file="m.bin",
        inputs=(SPEC,),
        outputs=(SPEC,),
        size_bytes=len(content),
        profiles=profiles,
        accuracy=accuracy,
        performance=performance,
    )
    return Variant(name=name, directory=name, info=info), content


def package(
    directory: Path,
    *variants: tuple[Variant, bytes],
    version: str = "1",
    evaluation: str = "e",
    signed: bool = True,
) -> Path:
    sources = directory.parent / f"{directory.name}-sources"
    sources.mkdir()
    files: dict[str, Path] = {}
    for made, content in variants:
        files[f"{made.directory}/m.bin"] = sources / made.name
        files[f"{made.directory}/m.bin"].write_bytes(content)
    manifest = Manifest(
        name="demo",
        version=version,
        variants=tuple(made for made, _content in variants),
        metadata={"sources_sha256": {"evaluation": evaluation}},
    )
    write_package(directory, manifest, files, key=KEY if signed else None)
    return directory


def compare(old: Path, new: Path) -> PackageDifference:
    return compare_directories(old, new)


def by_name(found: PackageDifference) -> dict[str, VariantDifference]:
    return {v.name: v for v in found.variants}


def profiles(found: PackageDifference) -> dict[str, ProfileDifference]:
    return {p.name: p for p in found.profiles}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return package(
        tmp_path / "old",
        variant("float", FLOAT, "box", "gone"),
        variant("int8", INT8, "box"),
        variant("dropped", b"d", "gone"),
    )


def test_files_are_named_with_what_is_shared(old: Path, tmp_path: Path) -> None:
    new = package(tmp_path / "new", variant("float", FLOAT[: 2 * CHUNK_BYTES] + b"y", "box"))
    before, after = (open_package(directory)[1] for directory in (old, new))
    found = {d.path: d for d in compare_files(before, after)}
    assert found["float/m.bin"].change == "changed"
    assert found["float/m.bin"].shared_chunks == 2
    assert (found["int8/m.bin"].change, found["int8/m.bin"].new_bytes) == ("removed", 0)
    assert compare_files(before, before) == ()


def test_a_package_and_itself_are_the_same(old: Path) -> None:
    found = compare(old, old)
    assert found.same
    assert {v.change for v in found.variants} == {"same"}
    assert {p.change for p in found.profiles} == {"common"}
    assert {p.fetch_bytes for p in found.profiles} == {0}


def test_variants_are_added_removed_changed_declared_or_the_same(old: Path, tmp_path: Path) -> None:
    faster = msgspec.structs.replace(PERFORMANCE, latency_p50_ms=0.5)
    better = msgspec.structs.replace(ACCURACY, value=0.91, retention=0.91 / 0.9)
    new = package(
        tmp_path / "new",
        variant("float", FLOAT, "box", "new", performance=faster),
        variant("int8", INT8[1:], "box", accuracy=better),
        variant("int4", b"4", "box"),
        version="2",
    )
    found = compare(old, new)
    assert (found.old, found.new) == ("demo:1", "demo:2")
    changes = {name: v.change for name, v in by_name(found).items()}
    assert changes == {
        "float": "declared", "int8": "changed", "int4": "added", "dropped": "removed",
    }  # fmt: skip
    assert by_name(found)["float"].differs == ("performance", "profiles")
    assert by_name(found)["int8"].differs == ("files", "accuracy", "size_bytes")
    rows = {row[0]: row for row in variant_rows(found)}
    assert rows["float"][1:] == (
        "declared: performance, profiles", "top1", "0.9000", "256.0", "1.000 -> 0.500", "",
    )  # fmt: skip
    assert rows["int8"][1:] == ("changed", "top1", "0.9000 -> 0.9100", "97.7", "1.000", "")
    assert rows["int4"][3:6] == ("- -> 0.9000", "- -> 0.0", "- -> 1.000")
    assert rows["dropped"][3:6] == ("0.9000 -> -", "0.0 -> -", "1.000 -> -")


@pytest.mark.parametrize(
    ("performance", "note"),
    [
        (
            msgspec.structs.replace(PERFORMANCE, machine=N100),
            f"latency measured on {EPYC} and on {N100}",
        ),
        (
            msgspec.structs.replace(PERFORMANCE, threads=4),
            "latency measured with 1 and with 4 threads",
        ),
        (None, "latency not measured in NEW"),
    ],
)
def test_latencies_that_cannot_be_compared_are_not_shown(
    performance: Performance | None, note: str, old: Path, tmp_path: Path
) -> None:
    new = package(tmp_path / "new", variant("int8", INT8, "box", performance=performance))
    found = by_name(compare(old, new))["int8"]
    assert (found.old_latency_p50_ms, found.new_latency_p50_ms) == (None, None)
    assert found.notes == (note,)
    assert (found.old_value, found.new_value) == (0.9, 0.9)


def test_a_metric_on_other_samples_says_so(old: Path, tmp_path: Path) -> None:
    fewer = msgspec.structs.replace(ACCURACY, samples=50)
    other = msgspec.structs.replace(ACCURACY, metric="top5")
    new = package(
        tmp_path / "new",
        variant("float", FLOAT, "box"),
        variant("int8", INT8, "box", accuracy=fewer),
        variant("dropped", b"d", accuracy=other),
        evaluation="another",
    )
    found = by_name(compare(old, new))
    assert found["float"].notes == ("judged on other samples",)
    assert found["int8"].notes == ("judged on other samples: 100 and 50",)
    assert found["dropped"].notes == ("another metric",)
    assert found["dropped"].metric == "top1 and top5"


def test_further_metrics_stand_side_by_side(old: Path, tmp_path: Path) -> None:
    def judged(retention: float, metric: str = "mae") -> Accuracy:
        found = FurtherAccuracy(
            output="place", metric=metric, value=0.2, reference=0.2,
            retention=retention, worst_error=0.1, samples=100,
        )  # fmt: skip
        return msgspec.structs.replace(ACCURACY, further=(found,))

    first = package(
        tmp_path / "first",
        variant("float", FLOAT, accuracy=judged(1.0)),
        variant("int8", INT8, accuracy=judged(0.9, "rmse")),
    )
    second = package(
        tmp_path / "second",
        variant("float", FLOAT, accuracy=judged(0.95)),
        variant("int8", INT8, accuracy=judged(0.9)),
    )
    found = compare(first, second)
    assert difference_rows(found) == [
        ("float", "place=mae", "0.2000", "1.0000 -> 0.9500"),
        ("int8", "place=rmse", "0.2000 -> -", "0.9000 -> -"),
        ("int8", "place=mae", "- -> 0.2000", "- -> 0.9000"),
    ]
    assert by_name(found)["float"].change == "declared"
    plain = compare(old, old)
    assert difference_rows(plain) == []
    assert b"further" not in to_json(plain)


def test_a_device_fetches_manifest_signature_and_the_chunks_it_lacks(
    old: Path, tmp_path: Path
) -> None:
    new = package(
        tmp_path / "new",
        variant("float", FLOAT[:-1], "box", "gone-but-back"),
        variant("int8", INT8, "box"),
        variant("copy", FLOAT, "box"),
        version="2",
    )
    found = profiles(compare(old, new))
    fixed = sum((new / name).stat().st_size for name in ("manifest.json", ENVELOPE_FILE))
    # Only the changed tail of `float`; `int8` is there, and `copy` is what `float` was.
    assert found["box"].fetch_bytes == fixed + 3
    assert found["box"].new_bytes == fixed + 2 * len(FLOAT) - 1 + len(INT8)
    assert found[""].fetch_bytes == found["box"].fetch_bytes
    assert (found["gone"].change, found["gone"].fetch_bytes) == ("lost", None)
    assert found["gone-but-back"].change == "gained"
    rows = {row[0]: row for row in profile_rows(compare(old, new))}
    assert rows["gone"][4:] == (None, None)
    assert str(rows["gone-but-back"][4]).startswith("at most ")


def test_a_manifest_is_fetched_though_it_is_the_same(old: Path, tmp_path: Path) -> None:
    new = package(
        tmp_path / "new",
        variant("float", FLOAT, "box", "gone"),
        variant("int8", b"j" + INT8[1:], "box"),
        variant("dropped", b"d", "gone"),
    )
    manifest = (new / "manifest.json").read_bytes()
    assert manifest == (old / "manifest.json").read_bytes()
    fixed = len(manifest) + (new / ENVELOPE_FILE).stat().st_size
    found = compare(old, new)
    assert [d.path for d in found.files] == ["int8/m.bin"]
    assert profiles(found)["box"].fetch_bytes == fixed + len(INT8)


def test_chunks_of_variants_that_a_device_never_had_are_fetched(tmp_path: Path) -> None:
    old = package(tmp_path / "old", variant("a", FLOAT, "big"), variant("b", b"b", "small", "big"))
    new = package(tmp_path / "new", variant("a", FLOAT, "big", "small"), version="2")
    found = profiles(compare(old, new))
    small, big = found["small"].fetch_bytes, found["big"].fetch_bytes
    assert small is not None
    assert big is not None
    # Both thirds of FLOAT that are equal are asked for: each has its own place in the file.
    assert small - big == len(FLOAT)


def test_what_is_counted_is_what_an_agent_would_not_find_on_its_disk(
    old: Path, tmp_path: Path
) -> None:
    new = package(tmp_path / "new", variant("float", FLOAT[:-1], "box"), variant("x", INT8, "box"))
    root = TrustRoot(
        release=Role(keys=(encode_key(KEY.public_key),)),
        director=Role(keys=(encode_key(b"d" * 32),)),
    )
    index = open_package(old)[1]
    held = old.rename(tmp_path / index.digest)
    store = LocalPackages([held], root)
    wanted = open_package(new)[1]
    lacking = sum(
        min(CHUNK_BYTES, entry.size_bytes - number * CHUNK_BYTES)
        for entry in wanted.files
        for number, chunk in enumerate(entry.chunks)
        if entry.path != "manifest.json" and store.chunk(chunk) is None
    )
    fixed = sum((new / name).stat().st_size for name in ("manifest.json", ENVELOPE_FILE))
    assert profiles(compare(held, new))["box"].fetch_bytes == lacking + fixed


def test_an_unsigned_package_has_no_signature_to_fetch(old: Path, tmp_path: Path) -> None:
    new = package(tmp_path / "new", variant("int8", INT8, "box"), signed=False)
    unsigned = profiles(compare(old, new))["box"].fetch_bytes
    assert unsigned == (new / "manifest.json").stat().st_size
    seal(new, KEY)
    signed = profiles(compare(old, new))["box"].fetch_bytes
    assert signed == unsigned + (new / ENVELOPE_FILE).stat().st_size


def test_the_command_line_shows_it_as_tables_and_as_json(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = package(tmp_path / "new", variant("int8", INT8[1:], "box"), version="2")
    assert main(["package", "diff", str(old), str(new)]) == 1
    shown = capsys.readouterr().out
    for text in ("demo:1 ", "demo:2 ", "float", "removed", "changed", "int8/m.bin", "lost"):
        assert text in shown
    assert main(["package", "diff", str(old), str(new), "--json"]) == 1
    printed = capsys.readouterr().out.encode()
    assert from_json(printed, PackageDifference) == compare(old, new)
    fields = {"path", "change", "old_bytes", "new_bytes", "shared_chunks"}
    assert all(set(file) == fields for file in json.loads(printed)["files"])
    assert main(["package", "diff", str(old), str(old)]) == 0
