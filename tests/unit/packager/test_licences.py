"""Licences: SPDX expressions are checked, and nothing is guessed from the metadata of packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.errors import BuildError
from packager.licences import Licence, installed_licence, read_licence


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("Apache-2.0", "Apache-2.0"),
        ("apache-2.0", "Apache-2.0"),
        ("Apache-2.0 OR MIT", "Apache-2.0 OR MIT"),
        ("GPL-2.0-only WITH Classpath-exception-2.0", "GPL-2.0-only WITH Classpath-exception-2.0"),
        ("LicenseRef-acme", "LicenseRef-acme"),
        ("MIT AND LicenseRef-acme.2", "MIT AND LicenseRef-acme.2"),
        (" MIT ", "MIT"),
    ],
)
def test_an_spdx_expression_is_taken(text: str, expression: str) -> None:
    assert read_licence(text) == Licence(expression=expression)


def test_no_licence_is_told_if_none_is_given() -> None:
    assert read_licence("") == Licence()


@pytest.mark.parametrize(
    "text", ["our own", "Apache 2.0", "MIT AND", "LicenseRef-", "MIT\nMIT", "(", " ", "M" * 300]
)
def test_what_is_no_spdx_expression_is_refused(text: str) -> None:
    with pytest.raises(BuildError, match=r"is no SPDX expression; write one such as Apache-2\.0"):
        read_licence(text)


@given(st.text())
def test_any_text_is_taken_or_refused_with_one_line(text: str) -> None:
    fault = ""
    try:
        read_licence(text)
    except BuildError as exc:
        fault = str(exc)
    assert "\n" not in fault


@pytest.mark.parametrize(
    ("lines", "licence"),
    [
        (["License-Expression: BSD-3-Clause AND MIT"], Licence(expression="BSD-3-Clause AND MIT")),
        (["License: Apache-2.0"], Licence(expression="Apache-2.0")),
        (
            [
                "License: Apache 2.0",
                "Classifier: License :: OSI Approved :: Apache Software License",
            ],
            Licence(names=("Apache Software License",)),
        ),
        (["License: a licence of our own"], Licence(names=("a licence of our own",))),
        (["License: Copyright of us", "        All rights", "        reserved"], Licence()),
        ([], Licence()),
    ],
)
def test_a_package_has_the_licence_that_its_metadata_declares(
    lines: list[str], licence: Licence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "some_tool-1.0.dist-info"
    folder.mkdir()
    head = ["Metadata-Version: 2.4", "Name: some-tool", "Version: 1.0"]
    (folder / "METADATA").write_text("\n".join([*head, *lines, ""]))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert installed_licence("some-tool") == licence


def test_a_package_that_is_not_installed_has_no_known_licence() -> None:
    assert installed_licence("no-such-package-anywhere") == Licence()
