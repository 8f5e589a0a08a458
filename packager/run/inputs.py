"""What a user names on the command line, as sources with digests.

Rules:
- A file stands for its bytes, a folder for its `.npy` files, a function for the file that holds it.
- Everything that is named is looked at before the first step: a typing error costs no time.
"""

from __future__ import annotations

from pathlib import Path

from packager.callables import callable_file
from packager.errors import BuildError, DataError
from packager.plan.steps import CALIBRATION, EVALUATION, TUNING
from packager.run.cache import file_sha256
from packager.run.pipeline import Source
from wire.codec import sha256_hex, to_json


def file_source(path: Path) -> Source:
    """Return a file as a source.

    Args:
        path: The file.

    Returns:
        The source.

    Raises:
        BuildError: It cannot be read, or need not be the same when a step reads it.
    """
    if path.exists() and not path.is_file():
        raise BuildError(f"{path} is no plain file")
    return Source(path=path.resolve(), sha256=file_sha256(path))


def is_callable(text: str) -> bool:
    """Tell whether a text names a function and not a file."""
    return ":" in text and not Path(text).exists()


def data_source(text: str) -> Source:
    """Return a set of samples as a source.

    Args:
        text: An `.npz` file, a folder of `.npy` files, or a function.

    Returns:
        The source.

    Raises:
        BuildError: It cannot be read, or there is no such function.
    """
    if is_callable(text):
        return file_source(callable_file(text))
    path = Path(text)
    return _folder_source(path) if path.is_dir() else file_source(path)


def data_sources(
    *, evaluation: str, calibration: str = "", tuning: str = ""
) -> tuple[dict[str, Source], dict[str, str]]:
    """Return all sets of samples that were given, and which of them are functions.

    Args:
        evaluation: What the gates judge on, or the one set that is split.
        calibration: Empty for none.
        tuning: Empty for none.

    Returns:
        Sources by the name of the set; the functions' texts by the same names.

    Raises:
        DataError: Two sets are the same data.
        BuildError: One cannot be read.
    """
    texts = {CALIBRATION: calibration, TUNING: tuning, EVALUATION: evaluation}
    given = {name: text for name, text in texts.items() if text}
    sources = {name: data_source(text) for name, text in given.items()}
    seen: dict[tuple[str, str], str] = {}
    for name, source in sources.items():
        text = given[name] if is_callable(given[name]) else ""
        other = seen.setdefault((source.sha256, text), name)
        if other != name:
            raise DataError(
                f"{other} and {name} are the same data",
                remedy="give one set as --evaluation and it is split; figures are only worth "
                "something on data that no quantizer saw",
            )
    return sources, {name: text for name, text in given.items() if is_callable(text)}


def _folder_source(path: Path) -> Source:
    files = sorted(path.glob("*.npy"))
    if not files:
        raise BuildError(
            f"folder {path.name} holds no .npy files", remedy="write one per input of the model"
        )
    digest = sha256_hex(to_json([(file.name, file_sha256(file)) for file in files]))
    return Source(path=path.resolve(), sha256=digest)
