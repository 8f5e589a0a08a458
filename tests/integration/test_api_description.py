"""The API keeps to its own description: what schemathesis makes of it gets the answers it names.

Hypothesis makes requests that the description allows, and others that it does not, for every
operation. None is answered with 500 or more, and each answer has a status, a content type and a
form that the description names.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.simulators.controller_fleet import API_TOKEN, Fleet
from tests.simulators.packages import two_variants
from tests.thorough import THOROUGH

EXAMPLES: Final = 40 if THOROUGH else 3
CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
ONE = two_variants("1")
AnyCase: TypeAlias = "Case[Any]"
WITHOUT_INPUT: Final = frozenset({"GET /v1/health"})
"""What cannot be asked wrongly."""


@pytest.fixture
def fleet(sqlite_template: Path, tmp_path: Path) -> Iterator[Fleet]:
    database = tmp_path / "fleet.db"
    database.write_bytes(sqlite_template.read_bytes())
    made = Fleet(f"sqlite:///{database}", tmp_path)
    yield made
    made.close()


def known_names(fleet: Fleet) -> dict[str, str]:
    """Make something of each kind, so that not every request is about what is not there."""
    fleet.enrol("cam-1")
    fleet.publish(ONE)
    rollout = fleet.roll_out("digits:1", stages=[{"count": 1}], approval=True)
    fleet.token("kim", "viewer")
    token = fleet.api.get("/v1/tokens").json()[0]["id"]
    return {
        "device": "cam-1",
        "ref": "digits:1",
        "model": "digits",
        "rollout": rollout,
        "name": "kim",
        "policy": "calm",
        "query": "heat",
        "token": token,
        "sha256": ONE.ref.envelope_sha256,
    }


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_no_request_breaks_the_api_or_its_description(fleet: Fleet, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_dict(fleet.controller.app.openapi())
    known = known_names(fleet)
    asked = 0
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and operation.label in WITHOUT_INPUT:
            continue

        @given(case=operation.as_strategy(generation_mode=mode), use_known=st.booleans())
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def ask(case: AnyCase, use_known: bool) -> None:
            nonlocal asked
            asked += 1
            if use_known and case.path_parameters:
                names = {key: known.get(key, value) for key, value in case.path_parameters.items()}
                case.path_parameters.update(names)
            case.validate_response(answer(fleet, case), checks=CHECKS)

        ask()
    assert asked > len(fleet.controller.app.routes)


def answer(fleet: Fleet, case: AnyCase) -> Any:
    asked = case.as_transport_kwargs(base_url="http://testserver")
    headers = {**(asked.get("headers") or {}), "Authorization": f"Bearer {API_TOKEN}"}
    content = asked.get("data")
    return fleet.api.request(
        asked["method"],
        asked["url"],
        params=asked.get("params"),
        headers=headers,
        **({"json": asked["json"]} if content is None and "json" in asked else {}),
        **({} if content is None else {"content": content}),
    )
