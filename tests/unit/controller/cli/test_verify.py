"""`fleet package verify` ends with 1 where the answer is no, and with 2 where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.cli import main
from tests.simulators.agent_process import null_package
from tests.simulators.packages import TRUST
from tests.simulators.repository import Repository
from wire.codec import to_json
from wire.metadata import MetadataFiles
from wire.package.index import ENVELOPE_FILE


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a signed package, beside the trust file of its fleet."""
    (tmp_path / "trust.json").write_bytes(TRUST.to_bytes())
    null_package("1.0.0").write_to(tmp_path / "package")
    return tmp_path / "package"


def verified(package: Path, trust: str = "trust.json") -> int:
    return main(["package", "verify", str(package), "--trust", str(package.parent / trust)])


def test_what_is_not_as_it_was_signed_is_a_no(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verified(package) == 0
    model = next(path for path in package.rglob("*") if path.is_file() and "model" in path.name)
    model.write_bytes(b"another")
    assert verified(package) == 1
    assert "was changed after the package was signed" in capsys.readouterr().err


def test_what_nobody_vouches_for_is_a_no(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = to_json(MetadataFiles(files=Repository().files()))
    (package.parent / "metadata.json").write_bytes(listed)
    assert verified(package, "metadata.json") == 1
    assert "no trusted list has this package" in capsys.readouterr().err
    (package / ENVELOPE_FILE).unlink()
    assert verified(package) == 1
    assert "is not signed; sign it with" in capsys.readouterr().err


def test_what_cannot_be_checked_is_a_fault(package: Path) -> None:
    assert verified(package, "none.json") == 2
    assert verified(package.parent / "nothing") == 2
