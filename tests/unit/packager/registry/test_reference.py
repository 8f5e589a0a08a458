"""References to packages in registries: what is one, and what a fault does not repeat."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.errors import RegistryError
from packager.registry.reference import Reference, parse_reference

PART = st.from_regex(r"[a-z0-9]{1,8}((\.|_|__|-{1,3})[a-z0-9]{1,8}){0,2}", fullmatch=True)
HOST = st.sampled_from(["registry.example", "127.0.0.1:5000", "[::1]:5000", "r", "A.b-c.example:1"])
REFERENCES = st.builds(
    Reference,
    HOST,
    st.lists(PART, min_size=1, max_size=4).map("/".join),
    st.just("") | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,30}", fullmatch=True),
    st.just("") | st.from_regex(r"sha256:[0-9a-f]{64}", fullmatch=True),
)


@given(REFERENCES)
def test_a_reference_is_read_as_it_is_written(reference: Reference) -> None:
    assert parse_reference(str(reference)) == reference


@given(st.text(max_size=600) | st.text(max_size=200).map("oci://".__add__))
def test_any_text_is_a_reference_or_one_fault(text: str) -> None:
    try:
        found = str(parse_reference(text))
    except RegistryError as exc:
        found = str(exc)
    assert found == text or len(found.splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    [
        "registry.example/x:1",
        "https://registry.example/x:1",
        "oci://registry.example",
        "oci://registry.example/",
        "oci://registry.example/Team/x",
        "oci://registry.example/a//b",
        "oci://registry.example/../x",
        "oci://registry.example/x:",
        "oci://registry.example/x:1/../../y",
        "oci://registry.example/x:1?a=b",
        "oci://registry.example/x@sha256:abc",
        "oci://registry.example/x@sha512:" + "0" * 128,
        "oci://registry.example:/x",
        "oci://-a.example/x",
        "oci://a b/x",
        "oci://registry.example/" + "a/" * 300 + "a",
        "",
    ],
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(RegistryError, match="not a reference to a package"):
        parse_reference(text)


@pytest.mark.parametrize(
    "text",
    [
        "oci://me:not-to-be-seen@registry.example/x:1",
        "oci://me:not/to/be-seen@registry.example/x:1",
        "oci://not-to-be-seen@registry.example/x",
    ],
)
def test_a_password_is_not_repeated(text: str) -> None:
    with pytest.raises(RegistryError) as told:
        parse_reference(text)
    assert "seen" not in str(told.value)
