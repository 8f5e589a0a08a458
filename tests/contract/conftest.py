"""What the tests of all adapters share: a kit of each runtime, its model, and a session of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime_adapters import registry
from runtime_adapters.protocol import Session
from tests.contract.adapter_models import KITS, LIMITS, Kit
from wire.package.variant import VariantInfo


@pytest.fixture(params=KITS, ids=lambda kit: kit.name)
def kit(request: pytest.FixtureRequest) -> Kit:
    chosen: Kit = request.param
    if lacking := chosen.missing():
        pytest.skip(lacking)
    return chosen


@pytest.fixture
def info(kit: Kit, tmp_path: Path) -> VariantInfo:
    return kit.copying(tmp_path, "FP32")


@pytest.fixture
def session(info: VariantInfo, tmp_path: Path) -> Session:
    return registry.open_session(tmp_path, info, LIMITS)
