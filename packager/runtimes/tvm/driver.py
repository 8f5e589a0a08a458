"""Links a program and its kernels to one shared library that needs only the C library.

`driver.c` beside this file is the same for all models; this module writes the tables.

Rules:
- Equal programs and kernels give equal bytes: no build identifier, no path, no name of a file.
- Only the interface's symbols are visible, so that one process can load many libraries.
- An undefined symbol fails here, before the library reaches a device.
"""

from __future__ import annotations

import os
import shutil
import string
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from packager.errors import StepError
from packager.runtimes.tvm.program import Program, Tensor
from runtime_adapters.tvm.abi import SYMBOLS

SOURCE: Final = Path(__file__).with_suffix(".c")
KERNELS_FILE: Final = "kernels.o"
LIBRARY_FILE: Final = "library.so"
LINK_TIMEOUT_S: Final = 300.0

_KINDS: Final = {"i": 0, "u": 1, "f": 2, "b": 6}
"""NumPy's kind of a type to DLPack's code: kDLInt, kDLUInt, kDLFloat, kDLBool."""

_PLAIN: Final = frozenset(string.ascii_letters + " _-.,:[]{}")
"""Characters that stay as they are in C; a digit would become part of an escape before it."""

_CONSTANTS: Final = """\
.section .rodata
.balign 64
.globl constants
.hidden constants
constants:
.incbin "constants.bin"
.byte 0
.section .note.GNU-stack,"",%progbits
"""
_FLAGS: Final = (
    "-O2",
    "-std=c11",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-static-libgcc",
    "-s",
    "-Wl,--build-id=none",
    "-Wl,--version-script=symbols.map",
    "-Wl,-z,relro,-z,now,-z,noexecstack,-z,defs",
    "-Wl,--as-needed",
)


def link(program: Program, abi: bytes, compiler: str, folder: Path) -> Path:
    """Link a library.

    Args:
        program: What the library does.
        abi: The library's description of itself, as JSON.
        compiler: The C compiler for the target.
        folder: A folder with only the kernels, in `KERNELS_FILE`; all other files go there.

    Returns:
        The library's path.

    Raises:
        StepError: The compiler failed.
    """
    shutil.copyfile(SOURCE, folder / "driver.c")
    (folder / "model.inc").write_text(_tables(program, abi), encoding="ascii")
    (folder / "constants.bin").write_bytes(program.constants)
    (folder / "constants.s").write_text(_CONSTANTS, encoding="ascii")
    visible = "".join(f"{symbol};" for symbol in SYMBOLS)
    (folder / "symbols.map").write_text(f"{{global:{visible}local:*;}};\n", encoding="ascii")
    files = ("driver.c", "constants.s", KERNELS_FILE)
    compile_c(compiler, [*_FLAGS, *files, "-o", LIBRARY_FILE, "-lm"], folder)
    return folder / LIBRARY_FILE


def compile_c(compiler: str, arguments: Sequence[str], folder: Path) -> None:
    """Run a C compiler in a folder.

    Args:
        compiler: Its path.
        arguments: Its arguments; names of files are relative to the folder.
        folder: Where it works.

    Raises:
        StepError: It failed or took too long.
    """
    name = Path(compiler).name
    try:
        done = subprocess.run(
            [compiler, *arguments],
            check=False,
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LINK_TIMEOUT_S,
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as exc:
        raise StepError(f"{name} failed: {exc.strerror}") from exc
    except subprocess.TimeoutExpired as exc:
        raise StepError(f"{name} took longer than {LINK_TIMEOUT_S:g} s") from exc
    if done.returncode != 0:
        reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr)
        raise StepError(f"{name} failed: {' '.join(reason.split())[:200]}")


def _tables(program: Program, abi: bytes) -> str:
    kernels = sorted({call.kernel for call in program.calls})
    shapes: list[int] = []
    tensors: list[str] = []
    for tensor in program.tensors:
        tensors.append(_tensor(tensor, len(shapes)))
        shapes += tensor.shape
    steps: list[str] = []
    operands: list[int] = []
    for call in program.calls:
        steps.append(f"{{__tvm_ffi_{call.kernel}, {len(operands)}, {len(call.arguments)}}}")
        operands += call.arguments
    widest = max((len(call.arguments) for call in program.calls), default=0)
    return "\n".join(
        [
            f"#define MAX_ARGUMENTS {widest + 1}",
            f"#define STEPS {len(steps)}",
            f"#define INPUTS {len(program.inputs)}",
            f"#define OUTPUTS {len(program.outputs)}",
            f"static const char abi[] = {_text(abi)};",
            f"static uint8_t arena[{program.arena_bytes}] __attribute__((aligned(ALIGNMENT)));",
            "extern const uint8_t constants[];",
            *(
                f"int __tvm_ffi_{kernel}(void *, Argument *, int32_t, Argument *);"
                for kernel in kernels
            ),
            _table("int64_t shapes", map(str, shapes), "0"),
            _table("Tensor tensors", tensors, "{0}"),
            _table("const uint32_t operands", map(str, operands), "0"),
            _table("const Step steps", steps, "{0}"),
            _table("const Port inputs", _ports(program, program.inputs), "{0}"),
            _table("const Port outputs", _ports(program, program.outputs), "{0}"),
            "",
        ]
    )


def _tensor(tensor: Tensor, first: int) -> str:
    block = "(uint8_t *)constants" if tensor.constant else "arena"
    dtype = np.dtype(tensor.dtype)
    kind, bits = _KINDS[dtype.kind], dtype.itemsize * 8
    return (
        f"{{{block} + {tensor.offset}, {{1, 0}}, {len(tensor.shape)}, {{{kind}, {bits}, 1}}, "
        f"shapes + {first}, 0, 0}}"
    )


def _ports(program: Program, positions: Sequence[int]) -> list[str]:
    return [f"{{{position}, {program.tensors[position].size_bytes}}}" for position in positions]


def _table(declaration: str, rows: Iterable[str], last: str) -> str:
    """Return a table with an unused last row, because C has no empty tables."""
    return f"static {declaration}[] = {{\n{''.join(f'{row},{chr(10)}' for row in rows)}{last}}};"


def _text(content: bytes) -> str:
    escaped = "".join(chr(b) if chr(b) in _PLAIN else f"\\{b:03o}" for b in content)
    return f'"{escaped}"'
