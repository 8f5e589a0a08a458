"""DuckDB over rows of telemetry, where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.telemetry_rows.minutes import POOL
from telemetry.server import sketches

try:
    import duckdb
except ImportError:
    duckdb = None


def has_duckdb() -> bool:
    """Tell whether it is installed."""
    return duckdb is not None


class Duck:
    """Rows in DuckDB: one list of buckets and one of counts in each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = duckdb.connect(str(path))
        self._connection.execute("SET threads = 2")
        for table in ("minutes", "fleet"):
            self._connection.execute(
                f"CREATE TABLE IF NOT EXISTS {table} "
                "(variant VARCHAR, minute INTEGER, device VARCHAR, n BIGINT, total DOUBLE, "
                "least DOUBLE, greatest DOUBLE, buckets SMALLINT[], counts INTEGER[])"
            )

    def add(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Write rows: variant, minute, device, count, total, least, greatest, sketch."""
        import pyarrow as pa

        unpacked = [_buckets(row[-1]) for row in rows]
        columns = list(zip(*(row[:-1] for row in rows), strict=True))
        names = ("variant", "minute", "device", "n", "total", "least", "greatest")
        arrays = {name: pa.array(column) for name, column in zip(names, columns, strict=True)}
        arrays["buckets"] = pa.array([one[0] for one in unpacked], pa.list_(pa.int16()))
        arrays["counts"] = pa.array([one[1] for one in unpacked], pa.list_(pa.int32()))
        block = pa.table(arrays)
        self._connection.register("block", block)
        self._connection.execute(f"INSERT INTO {table} SELECT * FROM block")  # noqa: S608
        self._connection.unregister("block")

    def p95(self, table: str, where: str) -> list[tuple[Any, ...]]:
        """Return the p95 by variant."""
        text = f"""
            WITH each AS (
              SELECT variant, unnest(buckets) AS bucket, unnest(counts) AS n
              FROM {table} WHERE {where}
            ), summed AS (
              SELECT variant, bucket, sum(n) AS n FROM each GROUP BY ALL
            ), running AS (
              SELECT variant, bucket, sum(n) OVER (PARTITION BY variant ORDER BY bucket) AS upto,
                sum(n) OVER (PARTITION BY variant) AS whole
              FROM summed
            )
            SELECT variant, min(bucket) FROM running WHERE upto >= ceil(0.95 * whole)
            GROUP BY variant ORDER BY variant
        """  # noqa: S608 - constants
        return list(self._connection.execute(text).fetchall())

    def mean(self, table: str, where: str) -> list[tuple[Any, ...]]:
        """Return the mean by variant."""
        text = (
            f"SELECT variant, sum(total) / sum(n) FROM {table} WHERE {where} GROUP BY 1 ORDER BY 1"  # noqa: S608
        )
        return list(self._connection.execute(text).fetchall())

    def close(self) -> None:
        """Write everything into the file."""
        self._connection.execute("CHECKPOINT")
        self._connection.close()


_UNPACKED: dict[bytes, tuple[list[int], list[int]]] = {}


def _buckets(sketch: bytes) -> tuple[list[int], list[int]]:
    found = _UNPACKED.get(sketch)
    if found is None:
        buckets = dict(sketches.decode(sketch).buckets())
        found = (list(buckets), list(buckets.values()))
        if len(_UNPACKED) < 2 * POOL:
            _UNPACKED[sketch] = found
    return found
