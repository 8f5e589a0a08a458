"""Fetches sealed samples, opens them and writes them as the packager reads samples.

```
DIR/inputs/DEVICE-SAMPLE.npz    the inputs of a request; the first axis of each array counts samples
DIR/answers/DEVICE-SAMPLE.npz   what the model answered
DIR/index.jsonl                 a line for each
```

Rules:
- The controller is not believed: names are checked before they become paths, and what is said of a
  sample is bound to it.
- A line of the index is written when the files of its sample are there, so a pull that is broken
  off is gone on with.
- Files are for the user alone: they hold what the fleet's users asked. The directory is made for
  the first of them.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from controller.capture_schemas import KeptSample
from controller.cli.errors import ArgumentError
from controller.client.fleet import Fleet
from packager.package.keys import check_private, read_key
from runtime_adapters.protocol import Tensor, Tensors
from runtime_adapters.sample_bytes import Sample, from_bytes
from wire.capture import KEY_BYTES, MAX_SEALED_BYTES, SampleHead, bound, is_id, read_head
from wire.codec import to_builtins
from wire.errors import FleetError, WireFormatError
from wire.files import PRIVATE, make_directory, write_atomic
from wire.topics import checked_device
from wire.trust.sealing import OpeningKey

INPUTS: Final = "inputs"
ANSWERS: Final = "answers"
INDEX: Final = "index.jsonl"
MAX_LINE_BYTES: Final = 64 * 1024
NAME_IT: Final = "give the file that `fleet capture key` wrote, not FILE.pub"


@dataclass(kw_only=True)
class Pulled:
    """What came of a pull."""

    new: int = 0
    known: int = 0
    unopened: int = 0
    example: str = ""
    """One that cannot be opened, and why."""


def opening_key(path: Path) -> OpeningKey:
    """Read a private key.

    Args:
        path: The file.

    Returns:
        The key.

    Raises:
        ArgumentError: It is none.
        KeyFileError: Missing, not a plain file, or others can read it.
    """
    secret, mode = read_key(path, KEY_BYTES + 1)
    if len(secret) != KEY_BYTES:
        raise ArgumentError(f"{path} is no private key of {KEY_BYTES} bytes", remedy=NAME_IT)
    check_private(path, mode)
    return OpeningKey(secret)


class Pull:
    """Fetches the samples of a model.

    Args:
        api: The controller.
        model: The model.
        key: Opens the samples.
        directory: Where they go.
    """

    def __init__(self, api: Fleet, model: str, key: OpeningKey, directory: Path) -> None:
        self._api = api
        self._model = model
        self._key = key
        self._directory = directory

    def run(self) -> Pulled:
        """Fetch what is not there.

        Returns:
            How much came.

        Raises:
            ArgumentError: The directory cannot be written or read.
            FleetError: The controller does not answer.
        """
        done = Pulled()
        try:
            known = self._known()
            for each in self._api.captures.samples(self._model):
                self._take(each, known, done)
        except OSError as exc:
            raise ArgumentError(
                f"cannot use {self._directory}: {(exc.strerror or str(exc)).lower()}",
                remedy="name another directory with --to",
            ) from exc
        return done

    def _known(self) -> set[str]:
        """Return the samples of which the index tells; a line that was broken off is none."""
        path = self._directory / INDEX
        if not path.exists():
            return set()
        found: set[str] = set()
        last = b"\n"
        with path.open("rb") as lines:
            while line := lines.readline(MAX_LINE_BYTES):
                last = line
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    found.add(str(json.loads(line)["sample"]))
        if not last.endswith(b"\n"):
            with path.open("ab") as index:
                index.write(b"\n")
        return found

    def _take(self, listed: KeptSample, known: set[str], done: Pulled) -> None:
        if listed.sample in known:
            done.known += 1
            return
        try:
            head, sample = self._opened(listed)
        except FleetError as exc:
            if not exc.code.startswith("wire."):  # the controller, not the sample, is at fault
                raise
            done.unopened += 1
            device = listed.device[:64]
            done.example = done.example or f"{listed.sample[:32]} of {device}: {exc.message}"
            return
        self._write(head, sample)
        done.new += 1

    def _opened(self, listed: KeptSample) -> tuple[SampleHead, Sample]:
        """Fetch a sample and open it.

        Raises:
            SealedError: It cannot be opened.
            WireFormatError: It is malformed, or is another than the list says.
        """
        device, name = checked_device(listed.device), listed.sample
        if not is_id(name):
            raise WireFormatError("a sample has no possible name")
        got = self._api.captures.sample(self._model, device, name)
        said, sealed = _bytes(got.head), _bytes(got.sealed or "")
        content = self._key.open(sealed, info=bound(said))
        head = read_head(said)
        if (head.device, head.sample, head.model) != (device, name, self._model):
            raise WireFormatError("it is another sample than the controller says")
        return head, from_bytes(content, MAX_SEALED_BYTES)

    def _write(self, head: SampleHead, sample: Sample) -> None:
        name = f"{head.device}-{head.sample}.npz"
        inputs = _with_samples(sample.inputs, is_batch=sample.is_batch)
        answers = _with_samples(sample.outputs, is_batch=sample.is_batch)
        for folder, arrays in ((INPUTS, inputs), (ANSWERS, answers)):
            make_directory(self._directory / folder)
            write_atomic(self._directory / folder / name, _archive(arrays), mode=PRIVATE)
        line = to_builtins(head) | {
            INPUTS: f"{INPUTS}/{name}",
            ANSWERS: f"{ANSWERS}/{name}",
            "samples": len(next(iter(inputs.values()), ())),
        }
        path = self._directory / INDEX
        path.touch(mode=PRIVATE)
        with path.open("a", encoding="utf-8") as index:
            index.write(json.dumps(line, ensure_ascii=False) + "\n")


def _with_samples(tensors: Tensors, *, is_batch: bool) -> Tensors:
    """Return arrays whose first axis counts samples: a call without batches is one sample."""
    return tensors if is_batch else {name: array[np.newaxis] for name, array in tensors.items()}


def _archive(arrays: dict[str, Tensor]) -> bytes:
    """Return arrays as `numpy.savez` writes them; names may be any."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
    return buffer.getvalue()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise WireFormatError("a sample is no base64") from exc
