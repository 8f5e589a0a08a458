"""The page of rollouts says what is so: its file, its table of keys, and the schema beside it.

`fleet rollout schema > docs/rollout.schema.json` writes the schema anew.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import msgspec
import pytest

from controller.cli import main
from controller.client.rollout_files import read_rollout_file
from controller.client.rollout_words import RolloutFile, option_of, schema
from controller.domain.gates.language import MAX_GATES
from controller.rollout_schemas import RolloutRequest
from controller.stage_schemas import MAX_STAGES
from wire.codec import to_pretty_json

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "rollouts.md").read_text()
ROW = re.compile(r"(?m)^\| `(\w+)` \| `([\w-]+)`[^|]* \| (?:`([^`]+)`)? *\| ")


def test_the_file_of_the_page_is_a_rollout() -> None:
    text, *_settings = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    spec = read_rollout_file(text.encode(), "rollout.toml")
    assert (spec.release, spec.stages) == ("detector:1.1.0", [1, "10%", "100%"])
    assert f"{MAX_STAGES} stages and {MAX_GATES} gates" in PAGE


def test_the_page_of_the_client_has_each_key_that_a_request_calls_otherwise() -> None:
    table = (DOCS / "client.md").read_text().partition("| in the file |")[2].partition("\n\n")[0]
    keys, names = (
        set(
            re.findall(r"\w+", " ".join(row.split(" | ")[column] for row in table.splitlines()[2:]))
        )
        for column in (0, 1)
    )
    of_file, of_request = (
        set(RolloutFile.__struct_fields__),
        {f.name for f in fields(RolloutRequest)},
    )
    assert of_file - of_request <= keys
    assert of_request - of_file - {"id"} <= names


def test_the_table_has_every_key_with_its_option_and_default() -> None:
    written = {
        key: (option, tomllib.loads(f"v = {default}")["v"] if default else msgspec.UNSET)
        for key, option, default in ROW.findall(PAGE)
    }
    plain = RolloutFile()
    expected = {
        field.name: (option_of(field.name), getattr(plain, field.name))
        for field in msgspec.structs.fields(RolloutFile)
    }
    expected["unfit"] = ("--exclude-unfit", plain.unfit)
    assert written == expected


def test_the_options_of_the_table_exist_with_the_same_defaults(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["rollout", "create", "--help"]) == 0
    text = capsys.readouterr().out
    for key, option, default in ROW.findall(PAGE):
        assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text), key
        has_none = {"selector", "stages", "spread", "approval", "gates", "unfit", "windows"}
        if default and key not in has_none | {"worst_case", "supersede"}:
            entry = text.partition(f"{option} ")[2].partition("\n  -")[0]
            assert f"default: {tomllib.loads(f'v = {default}')['v']}" in entry, key


def test_the_schema_beside_the_page_is_the_programs_own() -> None:
    assert (DOCS / "rollout.schema.json").read_bytes() == to_pretty_json(schema())
