"""Where the serial number of a device comes from."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agent.app.config import AgentConfig
from agent.app.serial_number import serial_number


@pytest.fixture
def config(tmp_path: Path) -> AgentConfig:
    nowhere = tmp_path / "nowhere"
    (tmp_path / "proc" / "device-tree").mkdir(parents=True)
    (tmp_path / "sys" / "class" / "dmi" / "id").mkdir(parents=True)
    return AgentConfig(
        device="cam-1",
        state_dir=nowhere,
        profile=nowhere,
        trust=nowhere,
        procfs_root=tmp_path / "proc",
        sysfs_root=tmp_path / "sys",
    )


def test_the_operator_comes_first_then_the_board_then_the_firmware(config: AgentConfig) -> None:
    assert serial_number(config) is None
    firmware = config.sysfs_root / "class" / "dmi" / "id" / "product_serial"
    firmware.write_bytes(b"PF3ABC12\n")
    assert serial_number(config) == "PF3ABC12"
    (config.procfs_root / "device-tree" / "serial-number").write_bytes(b"10000000a1\0")
    assert serial_number(config) == "10000000a1"
    assert serial_number(msgspec.structs.replace(config, serial="printed-7")) == "printed-7"


@pytest.mark.parametrize(
    "content", [b"", b"\0", b"None\n", b"To be filled by O.E.M.\n", b"0\n", b"\xff\xfe", b"x" * 65]
)
def test_what_vendors_write_for_none_is_none(config: AgentConfig, content: bytes) -> None:
    path = config.sysfs_root / "class" / "dmi" / "id" / "product_serial"
    path.write_bytes(content)
    assert serial_number(config) is None
