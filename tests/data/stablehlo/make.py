"""Make the StableHLO files of this folder, with JAX, which no test needs.

    python -m venv jax && jax/bin/pip install jax==0.10.2 flatbuffers && jax/bin/python make.py

Rules:
- The same call with the same JAX gives the same weights and answers; `mlp.mlir` names no file.
"""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
from jax import export

FOLDER = Path(__file__).parent
SAMPLES = 8


def main() -> None:
    """Write a dense network of two layers, an embedding, and what they answer."""
    jax.config.update("jax_traceback_in_locations_limit", 0)
    rng = np.random.default_rng(7)
    shapes = ((8, 16), (16,), (16, 4), (4,))
    w1, b1, w2, b2 = (rng.standard_normal(shape).astype(np.float32) / 2 for shape in shapes)
    table = rng.standard_normal((10, 3)).astype(np.float32)

    def mlp(features: jax.Array) -> dict[str, jax.Array]:
        hidden = jax.nn.relu(features @ w1 + b1)
        return {"scores": jax.nn.softmax(hidden @ w2 + b2)}

    def embedding(ids: jax.Array) -> jax.Array:
        return jax.numpy.take(table, ids, axis=0, mode="clip")

    spec = jax.ShapeDtypeStruct((1, 8), np.float32)
    made = export.export(jax.jit(mlp), platforms=["cpu"])(spec)
    (FOLDER / "mlp.stablehlo").write_bytes(bytes(made.serialize()))
    lines = str(made.mlir_module()).splitlines()
    (FOLDER / "mlp.mlir").write_text("\n".join(_plain(lines)) + "\n", encoding="utf-8")

    dynamic = jax.ShapeDtypeStruct(export.symbolic_shape("b, 8"), np.float32)
    open_batch = export.export(jax.jit(mlp), platforms=["cpu"])(dynamic)
    (FOLDER / "open_batch.mlirbc").write_bytes(open_batch.mlir_module_serialized)

    ids = jax.ShapeDtypeStruct((1, 2), np.int32)
    looked_up = export.export(jax.jit(embedding), platforms=["cpu"])(ids)
    (FOLDER / "embedding.mlirbc").write_bytes(looked_up.mlir_module_serialized)

    features = rng.standard_normal((SAMPLES, 8)).astype(np.float32)
    scores = np.concatenate([mlp(row[np.newaxis])["scores"] for row in features])
    np.savez(FOLDER / "mlp.npz", features=features, scores=scores, table=table)


def _plain(lines: list[str]) -> list[str]:
    """Return a module without the places in source files that it was traced at."""
    return [line.split(" loc(#")[0] for line in lines if not line.startswith("#loc")]


if __name__ == "__main__":
    main()
