"""PP-OCR's three networks: which way up a line is, what it says, and where the lines of a page are.

Rules:
- The pictures are drawn: words of this project's licence, in the fonts that Matplotlib brings, with
  other sizes, colours, turns, blur and noise each time. The truth is known by construction.
- A seed for each part, so that no two parts share a picture.
- Samples are prepared as the models' authors do it: 48 pixels high or a whole page, from -1 to 1,
  with zeros behind the line.

Source:
    rapidocr-onnxruntime 1.4.4: `resize_norm_img` of its recogniser and classifier, `DetPreProcess`
    of its detector; Liao et al., "Real-time Scene Text Detection with Differentiable Binarization",
    AAAI 2020, for how far the text in the truth is shrunk.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import matplotlib as mpl
import numpy as np
import onnx
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from benchmarks.quantizers import shipped
from benchmarks.quantizers.qualities import Array
from benchmarks.quantizers.task import ROOT, Samples, Sizes, Task, make_task

FONTS: Final = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSerif",
    "DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic",
)  # fmt: skip
HEIGHT: Final = 48
LINE: Final = (1, 3, HEIGHT, 320)
TURNED: Final = (1, 3, HEIGHT, 192)
PAGE: Final = (1, 3, 320, 320)
MAX_LINES: Final = 6
MAX_TEXT: Final = 40
INVERTED: Final = 0.2
"""Share of the lines that are light on dark."""

PIXELS: Final = 255
SHRUNK: Final = 0.4
"""DB's shrink ratio r: a text's region is made smaller by `area * (1 - r^2) / perimeter`."""

SEEDS: Final = {"calibration": 7301, "gate": 7302, "report": 7303}
Rng = np.random.Generator
Draw = Callable[[Rng], tuple[Array, Array]]


class _Line(NamedTuple):
    text: str
    picture: Image.Image
    """Grey, as large as the text."""


def angles(folder: Path, sizes: Sizes) -> Task | str:
    """Return the classifier that tells whether a line is upside down."""
    words = _words()

    def draw(rng: Rng) -> tuple[Array, Array]:
        line = _line(words, rng, most=3)
        turned = int(rng.integers(2))
        picture = line.picture.rotate(180) if turned else line.picture
        return _prepared(_fitted(picture, TURNED), TURNED, rng), np.array(turned)

    return _task("text angle", folder, sizes, shipped.TEXT_ANGLE, TURNED, draw)


def characters(folder: Path, sizes: Sizes) -> Task | str:
    """Return the recogniser of the characters in a line."""
    model = shipped.fetched(shipped.TEXT_RECOGNISER)
    if isinstance(model, str):
        return model
    tokens = _tokens(model)
    words = [word for word in _words() if all(letter in tokens for letter in word)]

    def draw(rng: Rng) -> tuple[Array, Array]:
        line = _line(words, rng, most=3)
        label = np.full(MAX_TEXT, -1, np.int64)
        label[: len(line.text)] = [tokens[letter] for letter in line.text]
        return _prepared(_fitted(line.picture, LINE), LINE, rng), label

    few = Sizes(min(sizes.calibration, 48), min(sizes.gate, 150), min(sizes.report, 300))
    return _task(
        "text line", folder, few, shipped.TEXT_RECOGNISER, LINE, draw,
        judged=("right_characters", "cer"),
    )  # fmt: skip


def pages(folder: Path, sizes: Sizes) -> Task | str:
    """Return the detector of the lines on a page."""
    words = _words()

    def draw(rng: Rng) -> tuple[Array, Array]:
        side = PAGE[-1]
        page = Image.new("L", (side, side), int(rng.integers(170, 256)))
        mask = Image.new("L", (side, side), 0)
        top = int(rng.integers(4, 40))
        for _ in range(int(rng.integers(1, MAX_LINES + 1))):
            line = _line(words, rng, most=3)
            height = int(rng.integers(16, 40))
            width = min(side - 12, round(line.picture.width * height / line.picture.height))
            if top + height + 4 > side:
                break
            left = int(rng.integers(4, side - width - 3))
            page.paste(line.picture.resize((width, height)), (left, top))
            inside = width * height * (1 - SHRUNK**2) / (2 * (width + height))
            ImageDraw.Draw(mask).rectangle(
                (left + inside, top + inside, left + width - inside, top + height - inside), fill=1
            )
            top += height + int(rng.integers(6, 40))
        return _prepared(page, PAGE, rng), np.asarray(mask, np.uint8)

    few = Sizes(min(sizes.calibration, 48), min(sizes.gate, 80), min(sizes.report, 160))
    return _task(
        "text detector", folder, few, shipped.TEXT_DETECTOR, PAGE, draw,
        judged=("found_pixels", f"{ROOT}/benchmarks/quantizers/qualities.py:dice"),
    )  # fmt: skip


def _task(
    name: str,
    folder: Path,
    sizes: Sizes,
    file: shipped.Shipped,
    shape: tuple[int, ...],
    draw: Draw,
    *,
    judged: tuple[str, str] = ("right_class", "top1"),
) -> Task | str:
    source = shipped.fetched(file)
    if isinstance(source, str):
        return source
    folder.mkdir(parents=True)
    model = folder / "model.onnx"
    input_name = shipped.of_one_shape(source, shape, model)
    parts: dict[str, Samples] = {}
    for part, count in sizes._asdict().items():
        rng = np.random.default_rng(SEEDS[part])
        drawn = [draw(rng) for _ in range(count)]
        parts[part] = (np.stack([x for x, _ in drawn]), np.stack([y for _, y in drawn]))
    made = make_task(name, folder, model, input_name=input_name, parts=parts, judged=judged)
    return made._replace(slow=True)


def _words() -> list[str]:
    """Return the words of the licence, and some numbers."""
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    found = sorted({word.strip('.,;:"()[]') for word in text.split()})
    numbers = [str(number) for number in range(1987, 9000, 61)]
    return [word for word in (*found, *numbers) if 1 < len(word) <= MAX_TEXT // 3]


def _tokens(model: Path) -> dict[str, int]:
    """Return the number of each character: 0 is the blank, and a space comes last."""
    stored = {entry.key: entry.value for entry in onnx.load(str(model)).metadata_props}
    known = stored["character"].splitlines()
    return {letter: number for number, letter in enumerate((*known, " "), 1)}


def _line(words: list[str], rng: Rng, *, most: int) -> _Line:
    chosen = rng.choice(len(words), int(rng.integers(1, most + 1)))
    text = " ".join(words[index] for index in chosen)
    fonts = Path(mpl.get_data_path()) / "fonts" / "ttf"
    name = FONTS[int(rng.integers(len(FONTS)))]
    font = ImageFont.truetype(str(fonts / f"{name}.ttf"), int(rng.integers(18, 44)))
    left, top, right, bottom = font.getbbox(text)
    room = [int(rng.integers(2, 8)) for _ in range(4)]
    size = (round(right - left) + room[0] + room[1], round(bottom - top) + room[2] + room[3])
    dark, light = int(rng.integers(0, 110)), int(rng.integers(160, 256))
    ink, paper = (light, dark) if rng.random() < INVERTED else (dark, light)
    picture = Image.new("L", size, paper)
    ImageDraw.Draw(picture).text((room[0] - left, room[2] - top), text, fill=ink, font=font)
    turn = float(rng.normal(0, 1.2))
    return _Line(text, picture.rotate(turn, Image.Resampling.BILINEAR, fillcolor=paper))


def _fitted(picture: Image.Image, shape: tuple[int, ...]) -> Image.Image:
    """Return a line as high as the model takes it, and no wider."""
    width = min(shape[-1], round(picture.width * HEIGHT / picture.height))
    return picture.resize((width, HEIGHT), Image.Resampling.BILINEAR)


def _prepared(picture: Image.Image, shape: tuple[int, ...], rng: Rng) -> Array:
    """Return a picture as the model takes it, blurred and with noise, and zeros behind it."""
    blurred = picture.filter(ImageFilter.GaussianBlur(float(rng.uniform(0, 1.2))))
    grey = np.asarray(blurred, np.float32)
    noisy = np.clip(grey + rng.normal(0, rng.uniform(0, 16), grey.shape), 0, PIXELS)
    whole = np.zeros(shape[1:], np.float32)
    whole[:, :, : grey.shape[1]] = 2 * noisy / PIXELS - 1
    return whole
