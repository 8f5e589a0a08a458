"""Deltas between two versions of a model, beside bsdiff4, `zstd --patch-from` and casync, in turn.

The networks were really trained on in PyTorch: the ResNet-20 that was trained on CIFAR-10, and in a
full run a network of 11 million weights in the shape of ResNet-18, trained here on digits; "head"
trains the last layer alone, "all" every layer a little. TFLite models cannot be trained: there,
"head" and "all" move weights by a seed. "calibrated anew" is the same network in int8 with other
calibration images. "other precision" goes from fp32 to fp16, where a device changes the variant.
The other changes are what exporters and pruning make of a network (`benchmarks.versions.exports`).

casync's figure is what its store sends over HTTP to a device that has the old file, with the index
and the heads of the answers. The others are the size of the delta alone, without what carries it.
"Chunks that are new" is what our chunks of one size leave to fetch where there is no delta.

Times are of the processor, for bsdiff4 needs minutes and others disturb it. Below a megabyte all
take milliseconds, so the aims hold for the large network alone. bsdiff4 is not run on its fp32
weights that all moved: that takes minutes and a gigabyte. EDGEFLEET_MODELS names the folder of
trained models.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import bsdiff4  # type: ignore[import-not-found, import-untyped, unused-ignore]
import numpy as np
import onnx
from numpy.typing import NDArray

from benchmarks.harness import Row, against, alone, main, not_measured
from benchmarks.versions import chunk_store
from benchmarks.versions.exports import exported_anew
from benchmarks.versions.files import Untyped, changed_tflite, onnx_files, quantised
from wire.delta import formats
from wire.delta.decode import decode
from wire.delta.encode import encode
from wire.package.index import CHUNK_BYTES

ROOT: Final = Path(__file__).resolve().parents[1]
MODELS: Final = Path(os.environ.get("EDGEFLEET_MODELS", str(ROOT.parent / "shared" / "models")))
CALIBRATION: Final = 32
SIZE_AIM: Final = 1.3
TIME_AIM: Final = 1 / 50
HEAD_AIM_PERCENT: Final = {"fp32": 2.0, "int8": 0.5}
SLOW_BYTES: Final = 30_000_000
"""Above this, bsdiff4 is not run where every weight moved."""

ROUNDS: Final = 3


class Versions(NamedTuple):
    """Two versions of one file."""

    model: str
    precision: str
    change: str
    suffix: str
    old: bytes
    new: bytes

    @property
    def is_large(self) -> bool:
        """Whether the aims of size and time hold for it."""
        return self.model == "ResNet-18"


def measure(quick: bool) -> list[Row]:
    """Measure every pair of files."""
    rows: list[Row] = []
    for versions in _all(quick):
        print(f"{versions[:3]}: {len(versions.new)} bytes", file=sys.stderr, flush=True)
        rows += _rows(versions, 1 if quick or versions.is_large else ROUNDS)
    if importlib.util.find_spec("torch") is None:
        rows.append(not_measured("trained networks", "PyTorch is not installed"))
    elif not (MODELS / "cifar10").is_dir():
        rows.append(not_measured("trained models", f"{MODELS} is not there; set EDGEFLEET_MODELS"))
    return rows


def _all(quick: bool) -> Iterator[Versions]:
    for path in sorted(MODELS.glob("mlperf_tiny/ic_*.tflite")):
        content = path.read_bytes()
        for change in ("head", "all"):
            new = changed_tflite(content, head_only=change == "head")
            precision = path.stem.rpartition("_")[2]
            yield Versions("ResNet-8 TFLite", precision, change, ".tflite", content, new)
    if importlib.util.find_spec("torch") is not None:
        if (MODELS / "cifar10").is_dir():
            yield from _residual20()
        if not quick:
            yield from _residual18()


def _residual20() -> Iterator[Versions]:
    from benchmarks.versions.training import trained

    with np.load(MODELS / "cifar10" / "calib512.npz") as file:
        scaled = (file["x"] / np.float32(255) - file["mean"]) / file["std"]
        images = np.ascontiguousarray(scaled.astype(np.float32).transpose(0, 3, 1, 2))
        labels = file["y"]
    model = onnx.load(str(MODELS / "cifar10" / "cifar_resnet20.onnx"))
    head = trained(model, images, labels, steps=10, rate=1e-3, only="linear")
    every = trained(model, images, labels, steps=10, rate=1e-4)
    yield from _precisions("ResNet-20", model, head, every, images)
    for change, (old, new) in exported_anew(model).items():
        yield Versions("ResNet-20", "fp32", change, ".onnx", old, new)


def _residual18() -> Iterator[Versions]:
    from benchmarks.versions.networks import digit_images, resnet18
    from benchmarks.versions.training import accuracy, trained

    images, labels = digit_images()
    model = trained(resnet18(), images[:1200], labels[:1200], steps=30, rate=1e-3, adam=True)
    found = accuracy(model, images[1200:], labels[1200:])
    print(f"ResNet-18: {found:.3f} of the digits are found", file=sys.stderr, flush=True)
    head = trained(model, images[1200:], labels[1200:], steps=5, rate=1e-2, only="head")
    every = trained(model, images[1200:], labels[1200:], steps=5, rate=1e-2)
    yield from _precisions("ResNet-18", model, head, every, images)


def _precisions(
    name: str, model: Untyped, head: Untyped, every: Untyped, images: NDArray[np.float32]
) -> Iterator[Versions]:
    """Yield the pairs of files of one trained network."""
    calibration = images[:CALIBRATION]
    before, *after = (onnx_files(version, calibration) for version in (model, head, every))
    for change, files in zip(("head", "all"), after, strict=True):
        for precision, content in files.items():
            yield Versions(name, precision, change, ".onnx", before[precision], content)
    anew = quantised(model, images[CALIBRATION : 2 * CALIBRATION])
    yield Versions(name, "int8", "calibrated anew", ".onnx", before["int8"], anew)
    yield Versions(name, "fp16", "other precision", ".onnx", before["fp32"], before["fp16"])


def _rows(versions: Versions, rounds: int) -> list[Row]:
    """Return the sizes, in percent of the file, and the times of one pair."""
    makers: dict[str, Callable[[bytes, bytes], bytes]] = {
        "ours": lambda old, new: encode(
            old,
            new,
            old_places=formats.places(f"m{versions.suffix}", old),
            new_places=formats.places(f"m{versions.suffix}", new),
        ),
        "zstd --patch-from": _patch_from,
    }
    moved = versions.change not in {"head", "calibrated anew"}
    if not (moved and len(versions.old) > SLOW_BYTES):
        makers["bsdiff4"] = bsdiff4.diff
    times: dict[str, list[float]] = {name: [] for name in makers}
    sizes: dict[str, list[float]] = {name: [] for name in makers}
    made = b""
    for _ in range(rounds):
        for name, make in makers.items():
            began_s = time.process_time()
            delta = make(versions.old, versions.new)
            times[name].append(time.process_time() - began_s)
            sizes[name].append(100 * len(delta) / len(versions.new))
            made = delta if name == "ours" else made
    title = f"{versions.model} {versions.precision}, {versions.change}"
    rows: list[Row] = []
    if versions.change == "head":
        aim = HEAD_AIM_PERCENT.get(versions.precision) if versions.is_large else None
        rows.append(alone(f"{title}: size", sizes["ours"], unit="% of the file", at_most=aim))
    for peer in sorted(makers.keys() - {"ours"}):
        has_aim = peer == "bsdiff4" and versions.is_large
        rows += [
            against(
                f"{title}: {what}",
                values["ours"],
                values[peer],
                unit=unit,
                peer=peer,
                at_most=aim if has_aim else None,
            )
            for what, values, unit, aim in (
                ("size", sizes, "% of the file", SIZE_AIM),
                ("time to make", times, "s", TIME_AIM),
            )
        ]
    rows.append(_beside_casync(f"{title}: size", versions, sizes["ours"][0]))
    rows.append(_beside_casync(f"{title}: chunks that are new", versions, _new_chunks(versions)))
    rows.append(alone(f"{title}: time to apply", _applied(versions, made, rounds), unit="s"))
    return rows


def _new_chunks(versions: Versions) -> float:
    """Return how much of a file is in chunks that the old one does not have, in percent of it."""
    old, new = (_chunks(data) for data in (versions.old, versions.new))
    return 100 * sum(len(chunk) for chunk in new if chunk not in old) / len(versions.new)


def _chunks(data: bytes) -> dict[bytes, None]:
    """Return the chunks as packages have them: all of one size, not packed."""
    return dict.fromkeys(data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES))


def _beside_casync(name: str, versions: Versions, percent: float) -> Row:
    """Return the row that compares a size with what casync sends, which is always the same."""
    if not chunk_store.is_installed():
        return not_measured(name, "casync is not installed", peer="casync over HTTP")
    sent_bytes = chunk_store.sent_bytes(versions.old, versions.new)
    theirs = 100 * sent_bytes / len(versions.new)
    return against(name, [percent], [theirs], unit="% of the file", peer="casync over HTTP")


def _applied(versions: Versions, delta: bytes, rounds: int) -> list[float]:
    """Return how long it took to apply a delta, and check what came of it.

    Raises:
        SystemExit: Another file came of it.
    """
    times: list[float] = []
    with tempfile.TemporaryDirectory(prefix="deltas-") as folder:
        old, middle, new = (Path(folder) / name for name in ("old", "delta", "new"))
        old.write_bytes(versions.old)
        middle.write_bytes(delta)
        for _ in range(rounds):
            began_s = time.process_time()
            decode(old, middle, new)
            times.append(time.process_time() - began_s)
            if new.read_bytes() != versions.new:
                raise SystemExit("a delta made another file than it should")
    return times


def _patch_from(old: bytes, new: bytes) -> bytes:
    """Compress as `zstd -3 --patch-from` does: the old file as prefix, over a long distance."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    parameter = zstd.CompressionParameter
    options: dict[int, int] = {
        parameter.compression_level: 3,
        parameter.window_log: max(10, (len(old) + len(new)).bit_length()),
        parameter.enable_long_distance_matching: 1,
    }
    prefix = zstd.ZstdDict(old, is_raw=True).as_prefix
    return zstd.compress(new, options=options, zstd_dict=prefix)


if __name__ == "__main__":
    sys.exit(main("Deltas between two versions of a model", measure))
