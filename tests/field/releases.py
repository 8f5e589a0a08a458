"""Releases whose every answer is known, good ones and bad ones, and what a forger makes of them."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runtime_adapters.golden import save_golden
from runtime_adapters.protocol import Limits
from runtime_adapters.registry import open_session
from tests.simulators.packages import package, variant
from tests.simulators.rig import INPUT
from wire.package.golden import Golden, Tolerance
from wire.package.index import CHUNK_BYTES, asset_uri
from wire.package.variant import Variant
from wire.trust.envelope import SigningKey

NAMES = ("best", "small", "tiny")
MODEL_BYTES = 60_000
"""White space fills the model up, so that fetching it takes a while."""

GOLDEN_ROWS = 500
FORGED_SEED = 9_000_000
ROWS = np.linspace(-1, 1, 4 * GOLDEN_ROWS, dtype=np.float32).reshape(GOLDEN_ROWS, 4)


@dataclass
class Releases:
    """The releases that were made.

    Args:
        root: Where packages are written.
        key: Signs them.
    """

    root: Path
    key: SigningKey
    answers: dict[tuple[str, str], NDArray[np.float32]] = field(default_factory=dict)
    """The right answer to `INPUT`, by release and variant; a bad release has none."""

    def make(self, number: int, *, bad: bool = False) -> Path:
        """Write a package.

        Args:
            number: Its version is `NUMBER.0.0`.
            bad: Its best variant does not answer as its golden samples say.

        Returns:
            Its directory.
        """
        pairs, assets = [], {}
        for position, name in enumerate(NAMES):
            content = model(10 * number + position)
            plain = variant(name)
            files = save_golden({"x": ROWS}, _answers(plain, content, ROWS))
            assets[asset_uri(files)] = files
            golden = Golden(
                asset=asset_uri(files),
                samples=GOLDEN_ROWS,
                tolerances={"y": Tolerance(absolute=1e-5, relative=1e-4)},
            )
            wrong = bad and name == NAMES[0]
            made = variant(
                name,
                accuracy=0.99 - 0.03 * position,
                latency_ms=4.0 / (1 + position),
                golden=golden,
                options={"wrong": "1"} if wrong else {},
            )
            pairs.append((made, content))
            if not bad:
                right = _answers(plain, content, INPUT)["y"].ravel()
                self.answers[f"digits:{number}.0.0", name] = right.astype(np.float32)
        made_package = package(
            f"{number}.0.0", pairs, key=self.key, assets=assets, chunk_bytes=CHUNK_BYTES
        )
        directory = self.root / f"digits-{number}"
        made_package.write_to(directory)
        return directory


def model(seed: int) -> bytes:
    """Return a model file of the null runtime."""
    return (b'{"seed": %d}' % seed).ljust(MODEL_BYTES)


def forged() -> bytes:
    """Return a model that every runtime would load, and that nobody signed."""
    return model(FORGED_SEED)


def _answers(
    made: Variant, content: bytes, values: NDArray[np.float32]
) -> dict[str, NDArray[np.float32]]:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "model.json").write_bytes(content)
        session = open_session(Path(directory), made.info, Limits())
        return dict(session.infer({"x": values}))
