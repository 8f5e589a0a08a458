"""What runs on a device stays small: no numpy, no SQLAlchemy, nothing of the controller."""

from __future__ import annotations

import subprocess
import sys

from tests.simulators.patience import PATIENCE_S

PROGRAM = """
import sys
import telemetry.histogram, telemetry.device.recorder
import telemetry.device.sensors, telemetry.device.spool
heavy = {"numpy", "sqlalchemy", "alembic", "pydantic", "controller", "packager", "agent"}
heavy |= {"runtime_adapters"}
print(*sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
"""


def test_the_device_modules_import_nothing_heavy() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert result.stdout.strip() == ""
