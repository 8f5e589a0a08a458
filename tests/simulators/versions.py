"""Versions of models as packages: weights that moved a little, and files without any likeness."""

from __future__ import annotations

import json
import random
from functools import cache

import msgspec
import numpy as np

from tests.simulators.packages import SignedPackage, package, variant

KIB = 1024
STEP = 1e-4


def tensor(values: np.ndarray) -> bytes:  # type: ignore[type-arg, unused-ignore]
    """Return a file of the format safetensors with one tensor."""
    size_bytes = values.astype("<f4").nbytes
    header = {"w": {"dtype": "F32", "shape": [values.size], "data_offsets": [0, size_bytes]}}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + values.astype("<f4").tobytes()


@cache
def trained(steps: int = 0, *, size_kib: int = 256, seed: int = 1) -> bytes:
    """Return weights after some steps of training, each of which moves all a little."""
    source = np.random.default_rng(seed)
    values = source.standard_normal(size_kib * KIB // 4).astype(np.float32)
    for _ in range(steps):
        values *= 1 + STEP * source.standard_normal(values.size).astype(np.float32)
    return tensor(values)


@cache
def noise(size_kib: int = 256, seed: int = 1) -> bytes:
    """Return bytes that nothing makes smaller."""
    return random.Random(seed).randbytes(size_kib * KIB)


def version(number: str, name: str = "digits", **contents: bytes) -> SignedPackage:
    """Return a package with a variant for each name, and that content."""
    pairs = []
    for place, content in contents.items():
        made = variant(place, size_bytes=len(content))
        info = msgspec.structs.replace(made.info, model_file="model.safetensors")
        pairs.append((msgspec.structs.replace(made, info=info), content))
    return package(number, pairs, name=name)
