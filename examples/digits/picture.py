"""Draw the demo's output as a picture: `python -m examples.digits.picture docs/demo.svg`.

The demo runs on a terminal of its own, and what it showed there at the end is drawn.
"""

from __future__ import annotations

import os
import pty
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS, ROWS = 150, 50
_TEMPORARY = re.compile(r"\S*/edgefleet-demo-\w+")
_CURSOR = re.compile(r"\x1b\[\?25[lh]")
_TEMPLATE_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def record() -> tuple[str, int]:
    """Run the demo on a terminal and return what it wrote, and its status."""
    parts: list[bytes] = []

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 65536)
        parts.append(data)
        return data

    os.environ |= {"COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm-256color"}
    status = pty.spawn([sys.executable, "-m", "examples.digits.demo"], read)
    return b"".join(parts).decode(errors="replace"), os.waitstatus_to_exitcode(status)


def final_lines(raw: str) -> list[str]:
    """Return the lines as they stood at the end: what was redrawn in place is there once."""
    screen: list[str] = []
    row = 0
    for piece in re.split(r"(\r\n|\r|\x1b\[1A|\x1b\[2K|\n)", _CURSOR.sub("", raw)):
        while len(screen) <= row:
            screen.append("")
        if piece in {"\n", "\r\n"}:
            row += 1
        elif piece == "\x1b[1A":
            row = max(0, row - 1)
        elif piece == "\x1b[2K":
            screen[row] = ""
        elif piece != "\r":
            screen[row] += piece
    return [_TEMPORARY.sub("demo", line) for line in screen]


def draw(lines: list[str], path: Path) -> None:
    """Write the picture, without fonts from elsewhere."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        for line in lines:
            console.print(Text.from_ansi(line), soft_wrap=True)
    svg = console.export_svg(title="make demo")
    path.write_text(_TEMPLATE_FONT.sub("", svg))


def main() -> int:
    """Record and draw.

    Returns:
        The demo's status.
    """
    raw, status = record()
    draw(final_lines(raw), Path(sys.argv[1]))
    return status


if __name__ == "__main__":
    sys.exit(main())
