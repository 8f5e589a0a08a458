"""The process that makes a delta: what it makes, what it may take, and how it ends."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import openvino
import psutil
import pytest
from onnx import numpy_helper

from benchmarks.versions.networks import resnet18
from controller.delivery.encoder import Job, Source
from controller.delivery.encoding import Encoding, StoppedError
from controller.domain.deltas import Package, Way
from controller.errors import DeltaMakingError, StorageError
from controller.services.blobs import BlobStore
from tests.simulators.deltas import applied, of_files
from tests.simulators.patience import PATIENCE_S, finished, until
from tests.simulators.versions import noise, trained
from wire.codec import to_json
from wire.delta import layout
from wire.package.index import FileEntry, PackageIndex
from wire.package.manifest import Manifest

MIB = 1024**2
SLOW = noise(8 * 1024)
"""Nothing in it is known: a delta to it takes seconds."""

RANDOM = np.random.default_rng(3)


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


@pytest.fixture
def encoding(tmp_path: Path, blobs: BlobStore) -> Encoding:
    return Encoding(tmp_path / "making", blobs)


def stored(blobs: BlobStore, files: dict[str, bytes]) -> Package:
    """Return a package whose files are in the store."""
    entries = tuple(
        FileEntry(path=path, size_bytes=len(content), sha256=blobs.put(content), chunks=())
        for path, content in files.items()
    )
    index = PackageIndex(name="m", version="1", files=entries)
    return Package(index=index, manifest=Manifest(name="m", version="1", variants=()))


def way(blobs: BlobStore, path: str, old: dict[str, bytes], new: dict[str, bytes]) -> Way:
    before, after = stored(blobs, old), stored(blobs, new)
    return Way(
        target=after.index.file(path),
        package=after,
        base=before.index.file(path) if path in old else None,
        base_package=before,
    )


def slow_way(blobs: BlobStore) -> Way:
    return way(blobs, "w", {"w": SLOW}, {"w": SLOW[::-1]})


def running() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "controller.delivery.encoder" in child.cmdline():
                found.append(child)
    return found


def started() -> psutil.Process:
    """Wait for the process of this one that makes a delta."""
    return until(running, "the process")[0]


def test_two_versions_of_a_large_network(encoding: Encoding, blobs: BlobStore) -> None:
    model = resnet18()
    old = model.SerializeToString()
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        moved = values * (1 + 1e-4 * RANDOM.standard_normal(values.shape))
        tensor.CopyFrom(numpy_helper.from_array(moved.astype(values.dtype), tensor.name))
    new = model.SerializeToString()
    assert len(new) > 40 * MIB
    made = encoding.make(way(blobs, "v/m.onnx", {"v/m.onnx": old}, {"v/m.onnx": new}))
    assert made is not None
    assert layout.pays(made.stat().st_size, len(new))
    assert applied(old, made.read_bytes()) == new


def test_what_lies_beside_a_file_says_where_its_tensors_are(
    encoding: Encoding, blobs: BlobStore, tmp_path: Path
) -> None:
    old = _openvino_model(tmp_path / "old", inner=False)
    new = _openvino_model(tmp_path / "new", inner=True)
    made = encoding.make(way(blobs, "v/m.bin", old, new))
    assert made is not None
    with_xml, without = (
        of_files("m.bin", old["v/m.bin"], new["v/m.bin"], beside_old=a, beside_new=b)
        for a, b in (({"m.xml": old["v/m.xml"]}, {"m.xml": new["v/m.xml"]}), ({}, {}))
    )
    assert made.read_bytes() == with_xml != without


def _openvino_model(folder: Path, *, inner: bool) -> dict[str, bytes]:
    """Return a model whose weights all moved, behind others if there is an inner layer."""
    folder.mkdir()
    ops = openvino.opset13
    shapes = [(50, 200), (200, 1000)] if inner else [(200, 1000)]
    x = place = ops.parameter([1, shapes[0][0]], np.float32)
    for shape in shapes:
        weights = np.linspace(-1, 1, shape[0] * shape[1]).reshape(shape)
        weights *= 1 + 1e-4 * RANDOM.standard_normal(shape)
        place = ops.matmul(place, weights.astype(np.float32), transpose_a=False, transpose_b=False)
    openvino.save_model(openvino.Model([place], [x], "m"), folder / "m.xml", compress_to_fp16=False)
    return {f"v/{name}": (folder / name).read_bytes() for name in ("m.xml", "m.bin")}


def test_what_does_not_pay_is_not_written(encoding: Encoding, blobs: BlobStore) -> None:
    assert encoding.make(way(blobs, "w", {"w": noise(seed=1)}, {"w": noise(seed=2)})) is None


def test_a_file_is_compressed_where_there_is_no_other(encoding: Encoding, blobs: BlobStore) -> None:
    made = encoding.make(way(blobs, "w", {}, {"w": b"0.0 " * MIB}))
    assert made is not None
    assert applied(b"", made.read_bytes()) == b"0.0 " * MIB


@pytest.mark.parametrize("damaged", [b"", b"\x08", b"<xml", trained()[:1000], b"\xff" * 4096])
def test_a_damaged_model_costs_size_alone(
    encoding: Encoding, blobs: BlobStore, damaged: bytes
) -> None:
    for name in ("m.onnx", "m.safetensors", "m.tflite"):
        new = damaged + trained(1)
        made = encoding.make(way(blobs, name, {name: damaged + trained()}, {name: new}))
        assert made is None or applied(damaged + trained(), made.read_bytes()) == new


def test_a_process_that_is_killed_is_an_error(encoding: Encoding, blobs: BlobStore) -> None:
    killer = threading.Thread(target=lambda: started().kill())
    killer.start()
    with pytest.raises(DeltaMakingError, match="SIGKILL"):
        encoding.make(slow_way(blobs))
    finished(killer)
    assert encoding.make(way(blobs, "w", {}, {"w": b"0.0 " * MIB})) is not None


def test_a_process_that_hangs_is_ended(tmp_path: Path, blobs: BlobStore) -> None:
    encoding = Encoding(tmp_path / "making", blobs, limit_s=lambda _way: 0.01)
    with pytest.raises(DeltaMakingError, match="longer"):
        encoding.make(slow_way(blobs))
    assert running() == []


def test_a_process_that_is_stopped_is_no_error(encoding: Encoding, blobs: BlobStore) -> None:
    def stop() -> None:
        started()
        encoding.stop()

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(StoppedError):
        encoding.make(slow_way(blobs))
    finished(stopper)
    with pytest.raises(StoppedError):
        encoding.make(slow_way(blobs))


def test_it_has_the_least_priority_and_few_secrets(
    encoding: Encoding, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_TOKEN", "secret")
    seen: list[psutil.Process] = []

    def look() -> None:
        process = started()
        until(lambda: process.nice() == 19, "the least priority")
        until(lambda: _limit(process) != "unlimited", "a limit of memory")
        assert "FLEET_TOKEN" not in process.environ()
        seen.append(process)
        process.kill()

    watcher = threading.Thread(target=look)
    watcher.start()
    with pytest.raises(DeltaMakingError):
        encoding.make(slow_way(blobs))
    finished(watcher)
    assert seen


def _limit(process: psutil.Process) -> str:
    lines = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
    return next(line.split()[3] for line in lines if line.startswith("Max data size"))


def test_a_delta_that_needs_more_memory_than_one_that_pays_is_none(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(trained())
    (tmp_path / "new").write_bytes(trained(1))
    sources = (Source(name="m.safetensors", path=str(tmp_path / name)) for name in ("old", "new"))
    job = Job(old=next(sources), new=next(sources), output=str(tmp_path / "delta"), memory_bytes=1)
    (tmp_path / "job.json").write_bytes(to_json(job))
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "controller.delivery.encoder", str(tmp_path / "job.json")],
        stdin=subprocess.PIPE,
    ) as process:
        assert process.wait(PATIENCE_S) == 0
    assert not (tmp_path / "delta").exists()


def test_a_file_that_is_gone_is_an_error_that_names_it(
    encoding: Encoding, blobs: BlobStore
) -> None:
    wanted = way(blobs, "w", {"w": trained()}, {"w": trained(1)})
    blobs.remove(wanted.pair[0])
    with pytest.raises(DeltaMakingError, match=wanted.pair[0]):
        encoding.make(wanted)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path, blobs: BlobStore) -> None:
    encoding = Encoding(tmp_path / "nowhere" / "making", blobs)
    with pytest.raises(StorageError, match="no such file"):
        encoding.make(way(blobs, "w", {}, {"w": trained()}))


def test_a_process_ends_with_its_controller(tmp_path: Path, blobs: BlobStore) -> None:
    old, new = blobs.put(SLOW), blobs.put(SLOW[::-1])
    script = """
import sys
from pathlib import Path
from controller.delivery.encoder import Job, Source
from controller.delivery.encoding import Encoding
from controller.domain.deltas import Package, Way
from controller.services.blobs import BlobStore
from wire.package.index import FileEntry, PackageIndex
from wire.package.manifest import Manifest
old, new = (FileEntry(path=d, size_bytes=1, sha256=d, chunks=()) for d in sys.argv[2:])
package = Package(index=PackageIndex(name="m", version="1", files=(old, new)),
                  manifest=Manifest(name="m", version="1", variants=()))
way = Way(target=new, package=package, base=old, base_package=package)
Encoding(Path(sys.argv[1]) / "making", BlobStore(Path(sys.argv[1]) / "blobs")).make(way)
"""
    with psutil.Popen([sys.executable, "-P", "-c", script, str(tmp_path), old, new]) as parent:
        (encoder,) = until(parent.children, "the process")
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    until(lambda: not encoder.is_running() or encoder.status() == "zombie", "its end")
