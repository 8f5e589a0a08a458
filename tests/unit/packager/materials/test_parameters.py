"""What was asked for, as the provenance tells it: all of it, and nothing of the user's folders."""

from __future__ import annotations

from pathlib import Path

import msgspec

from packager.materials.parameters import LEFT_OUT, PLAIN, ROLES, parameters
from packager.request import BuildRequest
from tests.simulators.packages import PROFILE
from wire.codec import to_json


def asked(**changes: object) -> BuildRequest:
    plain = BuildRequest(
        model="/home/anna/secret/net.onnx",
        profiles=(PROFILE,),
        evaluation="/home/anna/secret/data.npz",
        cache=Path("/home/anna/cache"),
    )
    return msgspec.structs.replace(plain, **changes)


def test_every_field_of_a_request_is_told_or_left_out_on_purpose() -> None:
    told = {"name", "version", "profiles", "metric", *ROLES, *PLAIN}
    assert told | set(LEFT_OUT) == {field.name for field in msgspec.structs.fields(BuildRequest)}
    assert not told & set(LEFT_OUT)


def test_files_are_told_by_their_roles_and_functions_by_their_names() -> None:
    request = asked(
        training="train:run",
        preprocessing=Path("/home/anna/p.toml"),
        metric="/home/anna/m.py:score",
    )
    found = parameters(request, "net", {"training": "train:run"})
    assert (found["model"], found["evaluation"], found["training"]) == (
        "source",
        "evaluation",
        "train:run",
    )
    assert (found["preprocessing"], found["metric"]) == ("preprocessing", "m.py:score")
    assert "calibration" not in found
    assert (found["name"], found["profiles"]) == ("net", ["bench"])
    assert b"anna" not in to_json(found)


def test_where_and_how_fast_a_build_runs_changes_nothing() -> None:
    here = parameters(asked(), "net", {})
    there = asked(
        jobs=3, executor="dask://host:1", output=Path("/x"), force=True, remeasure=True,
        key=Path("/x/key"), measurements=Path("/x/report.json"), cache=Path("/y"),
    )  # fmt: skip
    assert parameters(there, "net", {}) == here


def test_a_version_is_told_only_if_it_was_asked_for() -> None:
    assert "version" not in parameters(asked(), "net", {})
    assert parameters(asked(version="1.2"), "net", {})["version"] == "1.2"
