"""Makes a Parquet file of rows."""

from __future__ import annotations

import io
from collections.abc import Sequence

from controller.cli.formats import Kind


def parquet_bytes(kinds: Sequence[tuple[str, Kind]], rows: Sequence[Sequence[object]]) -> bytes:
    """Return rows as a Parquet file.

    The type of a column does not depend on its values, so files of several answers fit together.

    Args:
        kinds: Names of the columns, and what they hold: `text`, `number`, `whole` or `flag`.
        rows: One value for each column; None is null.

    Returns:
        The file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"text": pa.string(), "number": pa.float64(), "whole": pa.int64(), "flag": pa.bool_()}
    schema = pa.schema([(name, types[kind]) for name, kind in kinds])
    columns = [
        pa.array([row[index] for row in rows], type=field.type)
        for index, field in enumerate(schema)
    ]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), sink, compression="zstd")
    return sink.getvalue()
