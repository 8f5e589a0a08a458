"""The provenance: the fields of in-toto and SLSA, every file of the package, equal bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from packager.materials.documents import documents
from packager.materials.statement import statement_bytes, statement_from_bytes
from tests.simulators.materials import described, making
from wire.codec import sha256_hex, to_json
from wire.errors import WireFormatError
from wire.package.index import BILL_FILE, PROVENANCE_FILE
from wire.package.manifest import MANIFEST_FILE, manifest_to_bytes

DEFINITION = {"buildType", "externalParameters", "internalParameters", "resolvedDependencies"}
DETAILS = {"builder", "metadata", "byproducts"}
RESOURCE = {"name", "uri", "digest", "content", "downloadLocation", "mediaType", "annotations"}
"""The names of fields that the specifications publish."""


def read(data: bytes) -> dict[str, Any]:
    return dict(json.loads(data))


def test_its_fields_are_those_of_in_toto_and_slsa() -> None:
    told = read(statement_bytes(described(), {}))
    assert set(told) == {"_type", "subject", "predicateType", "predicate"}
    assert told["_type"] == "https://in-toto.io/Statement/v1"
    assert told["predicateType"] == "https://slsa.dev/provenance/v1"
    definition, details = told["predicate"]["buildDefinition"], told["predicate"]["runDetails"]
    assert set(told["predicate"]) == {"buildDefinition", "runDetails"}
    assert set(definition) == DEFINITION
    assert set(details) <= DETAILS
    assert set(details["builder"]) <= {"id", "builderDependencies", "version"}
    assert set(details["metadata"]) <= {"invocationId", "startedOn", "finishedOn"}
    assert not set(definition["externalParameters"]) & set(definition["internalParameters"])
    for resource in (*told["subject"], *definition["resolvedDependencies"]):
        assert set(resource) <= RESOURCE
        assert resource.get("digest") or resource.get("uri")
    assert all(one["digest"]["sha256"] for one in told["subject"])


def test_its_subjects_are_all_other_files_of_the_package() -> None:
    known = described()
    told = documents(known)
    subjects = statement_from_bytes(told[PROVENANCE_FILE]).subjects
    assert subjects == {
        **known.digests,
        MANIFEST_FILE: sha256_hex(manifest_to_bytes(known.manifest)),
        BILL_FILE: sha256_hex(told[BILL_FILE]),
    }


def test_it_names_what_went_in_by_digest_and_the_tools_by_version() -> None:
    told = read(statement_bytes(described(), {}))
    found = {
        one["name"]: one.get("uri") or one["digest"]["sha256"]
        for one in told["predicate"]["buildDefinition"]["resolvedDependencies"]
    }
    assert found == {
        "source": "a" * 64,
        "calibration": "1" * 64,
        "evaluation": "2" * 64,
        "profile/bench": "b" * 64,
        "gcc": "pkg:generic/gcc@gcc%20%28D%29%2012",
        "numpy": "pkg:pypi/numpy@2.0.1",
    }


def test_equal_builds_give_equal_bytes_and_others_another_invocation() -> None:
    def invocation(data: bytes) -> object:
        return read(data)["predicate"]["runDetails"]["metadata"]["invocationId"]

    first = statement_bytes(described(), {})
    assert statement_bytes(described(), {}) == first
    assert invocation(statement_bytes(described(making(source="f" * 64)), {})) != invocation(first)
    assert invocation(statement_bytes(described(more="another"), {})) != invocation(first)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"_type": "https://in-toto.io/Statement/v0.1"}, "is of another kind"),
        ({"predicateType": "https://slsa.dev/provenance/v0.2"}, "is of another kind"),
        ({"subject": 3}, "not a valid Statement"),
    ],
)
def test_what_is_no_such_statement_is_refused(change: dict[str, Any], fault: str) -> None:
    told = read(statement_bytes(described(), {})) | change
    with pytest.raises(WireFormatError, match=fault):
        statement_from_bytes(to_json(told))
