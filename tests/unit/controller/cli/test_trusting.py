"""What `--trust` takes: a trust file, or exported metadata; a root alone lists nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.cli.errors import ArgumentError
from controller.cli.trusting import load_trust
from packager.errors import PackageError
from tests.simulators.agent_process import null_package
from tests.simulators.packages import TRUST
from tests.simulators.repository import Repository
from wire.codec import to_json
from wire.errors import SignatureError
from wire.metadata import MetadataFiles
from wire.package.index import PAYLOAD_TYPE


def test_exported_metadata_vouches_for_what_is_listed(tmp_path: Path) -> None:
    fleet, path = Repository(), tmp_path / "metadata.json"
    made, other = null_package("1.0.0"), null_package("2.0.0")
    fleet.list_package(made)
    path.write_bytes(to_json(MetadataFiles(files=fleet.files())))
    trust = load_trust(path)
    assert trust.unseal(made.envelope, role="release", payload_type=PAYLOAD_TYPE)
    with pytest.raises(SignatureError, match="no trusted list"):
        trust.unseal(other.envelope, role="release", payload_type=PAYLOAD_TYPE)
    path.write_bytes(path.read_bytes().replace(b"digits", b"digitz"))
    with pytest.raises(ArgumentError, match="signatures"):
        load_trust(path)


def test_a_root_alone_lists_nothing(tmp_path: Path) -> None:
    path = Repository().write_root(tmp_path / "root.json")
    with pytest.raises(ArgumentError, match="lists no packages") as caught:
        load_trust(path)
    assert "fleet key export" in caught.value.remedy


def test_a_trust_file_goes_on_to_count(tmp_path: Path) -> None:
    path = tmp_path / "trust.json"
    path.write_bytes(TRUST.to_bytes())
    assert load_trust(path) == TRUST
    for content in (b"", b"{}", b"nothing"):
        path.write_bytes(content)
        with pytest.raises(PackageError):
            load_trust(path)
    with pytest.raises(PackageError):
        load_trust(tmp_path / "none")
