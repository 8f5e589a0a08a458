"""What the processor of this machine can do, as its kernel says in /proc/cpuinfo.

Source:
    Linux, Documentation/arch/arm64/elf_hwcaps.rst, arch/x86/include/asm/cpufeatures.h and
    arch/riscv/kernel/cpu.c: names and forms in /proc/cpuinfo.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Final

CPUINFO: Final = Path("/proc/cpuinfo")


def kernel_fields(file: Path) -> dict[str, str]:
    """Return the fields of a file such as /proc/cpuinfo; of a repeated field the first counts."""
    fields: dict[str, str] = {}
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return fields
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    return fields


def board_name(procfs: Path = Path("/proc")) -> str:
    """Return the name of the board, or else of its processor; empty if the kernel has none.

    Args:
        procfs: Where /proc is.

    Returns:
        Such as `Raspberry Pi 5 Model B Rev 1.0` or `Intel(R) N100`.
    """
    fields = kernel_fields(procfs / "cpuinfo")
    try:
        model = (procfs / "device-tree/model").read_text(encoding="utf-8", errors="replace")
    except OSError:
        model = ""
    return model.strip("\0\n ") or fields.get("Model") or fields.get("model name") or ""


def cpu_flags(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """Return the features of the processor, as the kernel names them.

    Args:
        cpuinfo: The kernel's description of the processor.

    Returns:
        Names such as `avx2` or `asimd`; for RISC-V's `rv64imafdc_zba` each letter and `zba`.
    """
    fields = kernel_fields(cpuinfo)
    if "isa" in fields:
        base, *extensions = fields["isa"].split("_")
        return frozenset({*base[len("rv64") :], *extensions})
    return frozenset((fields.get("flags") or fields.get("Features") or "").split())


def machine_name(cpuinfo: Path = CPUINFO) -> str:
    """Return the architecture and the processor's name, such as `x86_64 Intel(R) N100`."""
    fields = kernel_fields(cpuinfo)
    name = fields.get("model name") or fields.get("Model") or ""
    return f"{os.uname().machine} {name or platform.processor() or 'unknown processor'}"
