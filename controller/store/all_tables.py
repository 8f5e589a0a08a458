"""All tables of a controller's database, of the control state and of the telemetry."""

from __future__ import annotations

from typing import Final

from controller.store.measurement_tables import MeasurementRow
from telemetry.server.tables import metadata as telemetry_metadata

CONTROL_METADATA: Final = MeasurementRow.metadata
ALL_TABLES: Final = (*CONTROL_METADATA.sorted_tables, *telemetry_metadata.sorted_tables)
"""Each after those that it refers to."""
