"""Documents of a package are read as they were signed, and must be about its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from packager.errors import PackageError
from packager.materials.documents import documents
from packager.materials.reading import (
    content_source,
    directory_source,
    read_bill,
    read_document,
    read_provenance,
    save_document,
)
from packager.package.archive import archive_content, export
from packager.package.content import Content, directory_content
from packager.report import materials
from tests.simulators.materials import described, documented, written
from tests.simulators.packages import PROFILE, STRANGER_KEY, TRUST, package, two_variants, variant
from wire.codec import to_json
from wire.errors import FleetError, IntegrityError, SignatureError
from wire.package.index import BILL_FILE, MATERIALS, PROVENANCE_FILE

TOLD = documents(described())


def test_the_documents_of_a_package_on_this_disk_are_read_as_they_are(tmp_path: Path) -> None:
    place = written(documented(), tmp_path / "p")
    source = directory_source(place, TRUST)
    for one in (source, directory_source(place, None)):
        assert {path: read_document(one, path) for path in MATERIALS} == TOLD
    assert read_bill(source, TOLD[BILL_FILE]).metadata.component.name == "digits"
    assert set(read_provenance(source, TOLD[PROVENANCE_FILE]).subjects) >= {BILL_FILE}


def test_those_in_an_archive_are_read_without_unpacking_it(tmp_path: Path) -> None:
    content = directory_content(written(documented(), tmp_path / "p"))
    export(content, tmp_path / "all.tar")
    with archive_content(tmp_path / "all.tar", TRUST) as found:
        source = content_source(found, TRUST)
        assert {path: read_document(source, path) for path in MATERIALS} == TOLD


def test_an_archive_for_devices_holds_none_of_them(tmp_path: Path) -> None:
    content = directory_content(written(documented(), tmp_path / "p"))
    export(content, tmp_path / "some.tar", profiles=[PROFILE])
    with archive_content(tmp_path / "some.tar", TRUST) as found:
        for path in MATERIALS:
            with pytest.raises(PackageError, match=f"it lacks {path}; export it without --profile"):
                read_document(content_source(found, TRUST), path)


@pytest.mark.parametrize(
    ("path", "called"), [(BILL_FILE, "bill of materials"), (PROVENANCE_FILE, "provenance")]
)
def test_a_package_of_before_has_none_of_them(path: str, called: str, tmp_path: Path) -> None:
    source = directory_source(written(two_variants("1.0.0"), tmp_path / "p"), TRUST)
    with pytest.raises(PackageError) as caught:
        read_document(source, path)
    assert str(caught.value) == (
        f"digits:1.0.0 has no {called}: an earlier version of fleet built it; build it again"
    )


def test_a_signature_counts_where_it_is_asked_for(tmp_path: Path) -> None:
    stranger = package("1.0.0", [(variant("best"), b"best")], key=STRANGER_KEY, documents=TOLD)
    place = written(stranger, tmp_path / "p")
    content = directory_content(place)
    assert read_document(content_source(content, None), BILL_FILE) == TOLD[BILL_FILE]
    with pytest.raises(SignatureError):
        content_source(content, TRUST)
    with pytest.raises(SignatureError):
        directory_source(place, TRUST)


def test_a_document_that_is_not_the_signed_one_is_refused(tmp_path: Path) -> None:
    content = directory_content(written(documented(), tmp_path / "p"))
    other = Content(content.envelope, lambda _: iter((b"another",)))
    with pytest.raises(PackageError, match=f"{BILL_FILE} differs from the signed file"):
        read_document(content_source(other, TRUST), BILL_FILE)


@pytest.mark.parametrize("path", sorted(MATERIALS))
@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b'{"subject": []}'])
def test_a_malformed_document_is_refused_with_one_line(
    path: str, data: bytes, tmp_path: Path
) -> None:
    source = directory_source(written(documented({path: data}), tmp_path / "p"), TRUST)
    with pytest.raises(FleetError, match=path) as caught:
        read_bill(source, data) if path == BILL_FILE else read_provenance(source, data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("depth", [300, 900, 100_000])
def test_a_bill_of_any_depth_is_shown_or_refused_with_one_line(depth: int, tmp_path: Path) -> None:
    head, tail = b'{"type": "data", "name": "a", "components": [', b"]}"
    within = head * depth + tail * depth
    data = (
        b'{"bomFormat": "CycloneDX", "specVersion": "1.6", "metadata": {"component": %s}}' % within
    )
    source = directory_source(written(documented({BILL_FILE: data}), tmp_path / "p"), TRUST)
    fault = ""
    try:
        assert len(read_bill(source, data).parts) == depth
    except PackageError as exc:
        fault = str(exc)
    assert "\n" not in fault


def test_a_provenance_of_other_files_is_refused(tmp_path: Path) -> None:
    told = json.loads(TOLD[PROVENANCE_FILE])
    more = {"name": "variants/best/other", "digest": {"sha256": "0" * 64}}
    missing, additional = dict(told), dict(told)
    missing["subject"] = told["subject"][:-1]
    additional["subject"] = [*told["subject"], more]
    other = documents(described(more="another"))[PROVENANCE_FILE]
    for number, (data, fault) in enumerate(
        [
            (to_json(missing), "does not name variants/small/model.json"),
            (to_json(additional), "is about another variants/best/other than the package has"),
            (other, "is about another"),
        ]
    ):
        source = directory_source(
            written(documented({PROVENANCE_FILE: data}), tmp_path / str(number)), TRUST
        )
        with pytest.raises(IntegrityError, match=fault):
            read_provenance(source, data)


def test_a_bill_of_other_files_is_refused(tmp_path: Path) -> None:
    data = documents(described(more="another"))[BILL_FILE]
    source = directory_source(written(documented({BILL_FILE: data}), tmp_path / "p"), TRUST)
    with pytest.raises(IntegrityError, match=r"is about another variants/best/model\.json"):
        read_bill(source, data)


def test_a_document_is_written_to_a_new_file_only(tmp_path: Path) -> None:
    save_document(b"{}", tmp_path / "bom.json")
    assert (tmp_path / "bom.json").read_bytes() == b"{}"
    with pytest.raises(PackageError, match="exists already"):
        save_document(b"[]", tmp_path / "bom.json")
    with pytest.raises(PackageError, match="cannot be written: No such file"):
        save_document(b"[]", tmp_path / "nowhere" / "bom.json")


def test_tables_show_what_the_documents_say(tmp_path: Path) -> None:
    source = directory_source(written(documented(), tmp_path / "p"), TRUST)
    bill = read_bill(source, TOLD[BILL_FILE])
    rows = {row[0]: row for row in materials.part_rows(bill)}
    assert rows["numpy"] == ("numpy", "library", "2.0.1", "MIT", None)
    assert rows["source"] == ("source", "file", None, None, "a" * 64)
    assert dict(materials.bill_fields(bill))["licence"] == "not told"
    statement = read_provenance(source, TOLD[PROVENANCE_FILE])
    assert ("profiles", '["bench"]') in materials.parameter_rows(statement)
    assert ("source", f"sha256:{'a' * 64}") in materials.input_rows(statement)
    assert ("gcc", "pkg:generic/gcc@gcc%20%28D%29%2012") in materials.input_rows(statement)
    assert BILL_FILE in {row[0] for row in materials.subject_rows(statement)}
    assert dict(materials.provenance_fields(statement))["version"] == ["edgefleet 0.1.0"]


def test_empty_values_of_a_request_are_not_shown() -> None:
    nested: dict[str, Any] = {
        "gates": {"strict": False, "max": None},
        "keep": [],
        "search": None,
        "name": "net",
    }
    assert materials.flat(nested) == {"gates.strict": "false", "name": "net"}
