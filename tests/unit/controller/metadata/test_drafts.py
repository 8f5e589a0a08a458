"""Whoever carries a draft may write into it what he likes: it is read, or refused in one line."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.metadata.drafts import difference, read_draft, write_draft
from controller.metadata.edit import RoleKeys, moved, undelegated, with_keys
from controller.metadata.errors import MetadataError
from controller.metadata.online import signer_of
from controller.metadata.signing import lacking, signed
from tests.simulators.repository import Repository
from wire.codec import to_json
from wire.errors import FleetError
from wire.trust.roles import ROOT

Place = tuple[Any, ...]
VALUES: list[Any] = [
    None, True, False, 0, -1, 10**11, 253402300800, 2**53, 2**70, 1.5, "", "x", "\ud800",
    "director", "digits", "2030-01-01T00:00:00Z",
    [], {}, [None], ["a" * 64], {"a": 1}, {"\ud800": 1}, {"keyids": [], "threshold": 1},
]  # fmt: skip


def made() -> list[dict[str, Any]]:
    """Return drafts of all kinds, each with the content of its files opened."""
    fleet = Repository()
    new = signer_of(b"n" * 32).public_key
    drafts = []
    for change in ("delegate", "undelegate", "root"):
        if change == "delegate":
            after = moved(fleet.authored, "digits", RoleKeys((new,)), fleet.now_s)
        elif change == "undelegate":
            fleet.delegate("digits")
            fleet.list("digits", "1.0.0", "1" * 64)
            after = undelegated(fleet.authored, "digits", fleet.now_s)
        else:
            root = with_keys(fleet.authored, ROOT, fleet.now_s, add=[new])
            before, after = fleet.authored, fleet.authored
            fleet.sign(root, ROOT)
            draft = json.loads(write_draft(before, after))
            draft["changes"] = [{"name": "2.root", "content": json.dumps(root.to_dict())}]
            drafts.append(draft)
            continue
        drafts.append(json.loads(write_draft(fleet.authored, after)))
    for draft in drafts:
        for file in (*draft["before"], *draft["changes"]):
            file["content"] = json.loads(file["content"])
    return drafts


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield where something lies in a value, at any depth."""
    members: Any = ()
    if isinstance(value, dict):
        members = value.items()
    elif isinstance(value, list):
        members = enumerate(value)
    for name, inner in members:
        yield (*place, name)
        yield from places(inner, (*place, name))


DRAFTS = made()
PLACES = [(number, place) for number, draft in enumerate(DRAFTS) for place in places(draft)]


def packed(draft: dict[str, Any]) -> bytes:
    """Return a draft as a file."""
    parts = (draft.get("before"), draft.get("changes"))
    for file in chain.from_iterable(part for part in parts if isinstance(part, list)):
        if isinstance(file, dict) and not isinstance(file.get("content"), str):
            file["content"] = json.dumps(file.get("content"))
    return json.dumps(draft).encode()


def is_read(data: bytes) -> bool:
    """Do all that is done with a draft; return whether it is one."""
    fault, found = "", None
    try:
        found = read_draft(data)
    except FleetError as exc:
        fault = exc.message
    assert fault.isprintable()
    if found is None:
        return False
    before, after = found
    assert all(line.isprintable() for line in difference(before, after))
    lacking(signed(after, [signer_of(b"n" * 32)]))
    to_json(write_draft(before, after).decode())
    return True


def test_drafts_are_read() -> None:
    assert [is_read(packed(copy.deepcopy(draft))) for draft in DRAFTS] == [True] * 3


@given(st.sampled_from(PLACES), st.sampled_from([*VALUES, "gone", "twice"]))
def test_what_somebody_wrote_into_a_draft_is_read_or_refused(
    where: tuple[int, Place], value: Any
) -> None:
    number, place = where
    draft = copy.deepcopy(DRAFTS[number])
    holder: Any = draft
    for name in place[:-1]:
        holder = holder[name]
    if value == "gone":
        del holder[place[-1]]
    elif value == "twice" and isinstance(holder, list):
        holder.append(copy.deepcopy(holder[place[-1]]))
    else:
        holder[place[-1]] = copy.deepcopy(value)
    is_read(packed(draft))


def test_a_list_of_no_role_is_refused() -> None:
    draft = copy.deepcopy(DRAFTS[0])
    (listed,) = (file for file in draft["changes"] if file["name"].endswith(".digits"))
    draft["changes"].append(listed | {"name": listed["name"].replace(".digits", ".other")})
    with pytest.raises(MetadataError, match="'other' lists no releases"):
        read_draft(packed(draft))


@pytest.mark.parametrize(
    "change",
    [{"consistent_snapshot": False}, {"x-edgefleet-fleet": "f" * 32}, {"version": 3}],
    ids=str,
)
def test_a_root_that_the_controller_would_refuse_is_not_signed(change: dict[str, Any]) -> None:
    """Its carrier might hand it to devices all the same."""
    draft = copy.deepcopy(DRAFTS[2])
    draft["changes"][0]["content"]["signed"] |= change
    with pytest.raises(MetadataError, match="the root"):
        read_draft(packed(draft))
