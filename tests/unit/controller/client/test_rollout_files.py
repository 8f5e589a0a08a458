"""A rollout as a file: what may stand in it, and what is said of what may not."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import msgspec
import pytest

from controller.client.errors import ArgumentError
from controller.client.rollout_files import (
    MAX_FILE_BYTES,
    check_options,
    read_rollout_file,
    request_of,
    rollout_file,
    rollout_request,
)
from controller.client.rollout_words import RolloutFile, schema
from controller.rollout_schemas import RolloutRequest
from controller.stage_schemas import Rate, Stage, StageShadow
from wire.codec import from_toml

WHOLE = """
release = "detector:1.1.0"
selector = "site=berlin"
stages = [
  1,
  {size = "12.5%", shadow = {agreement = "99.5%", requests = 1000, for = "1h", share = "5%"}},
  {size = "50%", soak = "2h", approval = false, gates = ["max(x) <= +1"]},
  "x3",
]
spread = "site"
rate = 10
rate_factor = 2
rate_after = 20
rate_max = 200
soak = "1h30m"
deadline = "2h"
offline_limit = "8d"
max_in_flight = 5
max_failures = 2
max_failure_percent = 7
min_finished = 20
approval = true
gates = ["p95(inference_latency_ms) <= +10%"]
control = "20%"
shadow_agreement = "99.5%"
unfit = "exclude"
max_refused = 4
max_timed_out = 5
worst_case = true
on_halt = "revert"
supersede = true
priority = 7
windows = ["22:00-05:00", "sat,sun 10:00-18:00"]
"""
VALIDATOR = jsonschema.Draft202012Validator(schema())


def test_every_key_reaches_the_request() -> None:
    assert set(from_toml(WHOLE.encode(), dict)) == set(RolloutFile.__struct_fields__)
    assert request_of(read_rollout_file(WHOLE.encode(), "r.toml")) == RolloutRequest(
        release="detector:1.1.0",
        selector="site=berlin",
        stages=[
            Stage(count=1),
            Stage(
                percent=12.5,
                shadow=StageShadow(agreement_percent=99.5, requests=1000, for_s=3600.0, share=0.05),
            ),
            Stage(percent=50.0, soak_s=7200.0, approval=False, gates=["max(x) <= +1"]),
            Stage(grow=3.0),
        ],
        spread="site",
        rate=Rate(per_minute=10.0, factor=2.0, after=20, max_per_minute=200.0),
        soak_s=5400.0,
        device_deadline_s=7200.0,
        offline_limit_s=8 * 86_400.0,
        max_in_flight=5,
        max_failures=2,
        max_failure_percent=7.0,
        min_finished=20,
        approval=True,
        gates=["p95(inference_latency_ms) <= +10%"],
        control_percent=20.0,
        shadow_agreement_percent=99.5,
        unfit="exclude",
        max_refused=4,
        max_timed_out=5,
        worst_case=True,
        on_halt="revert",
        supersede=True,
        priority=7,
        windows=["22:00-05:00", "sat,sun 10:00-18:00"],
    )


def test_an_empty_file_is_a_rollout_with_the_defaults_of_the_api() -> None:
    assert request_of(read_rollout_file(b"", "r.toml")) == RolloutRequest(release="")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("agreement = 0.99", ".agreement: 0.99 would be 0.99 %"),
        ('agreement = "100%"', ".agreement must be above 0 and below 100 %, not 100 %"),
        ('agreement = "101%"', ".agreement: '101%' is not a percentage up to 100%"),
        ('agreement = "99%", requests = 5', ".requests must be 100 to 1000000000, not 5"),
        ('agreement = "99%", share = 0', ".share: a shadow sees more than nothing"),
        ('agreement = "99%", for = "1"', ".for: '1' has no unit"),
        ('agreement = "99%", for = "2000d"', ".for must be a time, up to 366d, not '2000d'"),
    ],
)
def test_a_fault_of_a_shadow_names_its_stage(words: str, said: str) -> None:
    text = f'stages = [1, {{size = "100%", shadow = {{{words}}}}}]'
    with pytest.raises(ArgumentError) as caught:
        read_rollout_file(text.encode(), "r.toml")
    assert caught.value.message == f"r.toml: stages[1].shadow{said}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('soack = "1m"', "there is no setting soack (did you mean soak?)"),
        ('stage = ["1"]', "there is no setting stage (did you mean stages?)"),
        ("[limits]", "there is no setting limits"),
        ("soak = 5", "soak must be a text, not a whole number"),
        ('soak = "5"', "soak: '5' has no unit"),
        ('soak = "2000d"', "soak must be a time, up to 366d, not '2000d'"),
        ('deadline = "0s"', "deadline must be a time above 0, up to 366d, not '0s'"),
        ("stages = []", "stages must be 1 to 100 of: a number of devices"),
        ('stages = ["0%"]', "stages[0]: '0%' is not a number of devices or a percentage"),
        ("stages = [1.5]", "stages[0] must be a whole number or a text or a table, not a number"),
        ("[[stages]]\nsoack = '1h'", "there is no setting stages[0].soack (did you mean"),
        ("[[stages]]\nsoak = '1h'", "stages[0] needs a size or a selector"),
        ("rate = 0", "rate must be a number from 0.001 to 1000000, not 0"),
        ("rate_factor = 2", "rate_factor says nothing without rate"),
        ('shadow_agreement = "0.995"', "shadow_agreement: 0.995 would be 0.995 %"),
        ("shadow_agreement = 0", 'shadow_agreement must be a share such as "99%", above 0'),
        ('shadow_agreement = "0%"', 'shadow_agreement must be a share such as "99%", above 0'),
        ("max_in_flight = 0", "max_in_flight must be a whole number, 1 to 10000000, not 0"),
        ("max_in_flight = true", "max_in_flight must be a whole number, not true or false"),
        ("max_failure_percent = inf", "max_failure_percent must be a number, 0 to 100, not inf"),
        ('unfit = "no"', "unfit must be one of refuse, exclude, allow, not 'no'"),
        ('control = "60%"', "control must be a share such as \"10%\", 0 to 50, not '60%'"),
        ("control = nan", 'control must be a share such as "10%", 0 to 50, not nan'),
        ('windows = ["25:00"]', "windows: '25:00' is no window that opens, such as 22:00-05:00"),
        ('gates = ["faster"]', "gates: cannot read the gate 'faster'"),
        ('selector = "a=="', "selector: cannot read the selector at character 4"),
        ('release = ""', "release must be NAME:VERSION or a digest, not ''"),
        ("soak", "not TOML: Expected '='"),
        ("#" * MAX_FILE_BYTES + "#", "not TOML: "),
    ],
)
def test_a_fault_names_the_file_and_the_key(text: str, said: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        read_rollout_file(text.encode(), "r.toml")
    assert caught.value.message.startswith(f"r.toml: {said}")
    assert caught.value.remedy
    assert "\n" not in f"{caught.value.message}{caught.value.remedy}"


def test_a_value_on_the_line_is_told_by_its_option() -> None:
    with pytest.raises(ArgumentError, match=r"^--stage: 'all' is not a number"):
        request_of(RolloutFile(stages=["all"]))


@pytest.mark.parametrize(
    "text",
    [
        "", WHOLE, "control = 5.5", 'stages = ["7", 9]', 'soak = "0"',
        'stages = [{selector = "canary"}, "site=lab", "!(a or b)", "x1.5"]',
    ],
)  # fmt: skip
def test_the_schema_takes_what_the_reader_takes(text: str) -> None:
    read_rollout_file(text.encode(), "r.toml")
    VALIDATOR.validate(from_toml(text.encode(), dict))


@pytest.mark.parametrize(
    "text",
    [
        'soack = "1m"', "soak = 5", 'soak = "5"', "stages = []", "stages = [0]", 'stages = ["x"]',
        "max_in_flight = 0", "max_failure_percent = 101", 'unfit = "no"', "control = 60",
        'release = ""', 'stages = ["lab"]', "stages = [{soack = 1}]", 'stages = [{size = "lab"}]',
        "rate = 0", "rate_factor = 1",
    ],
)  # fmt: skip
def test_the_schema_refuses_what_the_reader_refuses(text: str) -> None:
    assert not VALIDATOR.is_valid(from_toml(text.encode(), dict))


def test_a_program_uses_the_words_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "rollout.toml"
    file.write_text('release = "digits:2"\nstages = [1, "100%"]\nsoak = "10m"\ncontrol = 20\n')
    expected = RolloutRequest(
        release="digits:2",
        stages=[Stage(count=1), Stage(percent=100)],
        soak_s=600,
        control_percent=20,
    )
    assert rollout_file(file) == rollout_file(str(file)) == expected
    made = rollout_request(release="digits:2", stages=[1, "100%"], soak="10m", control=20)
    assert made == expected
    size = {"size": "10%", "soak": "1h"}
    (stage,) = rollout_request(release="digits:2", stages=[size]).stages
    assert stage == Stage(percent=10, soak_s=3600)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"soak_s": 600}, "rollout_request: there is no setting soak_s (did you mean soak?)"),
        ({"stages": ["0%"]}, "rollout_request: stages[0]: '0%' is not a number of devices"),
        ({"soak": 600}, "rollout_request: soak must be a text, not a whole number"),
    ],
)
def test_a_fault_in_a_program_names_the_key(words: dict[str, object], said: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        rollout_request(**({"release": "digits:2"} | words))
    assert caught.value.message.startswith(said)
    assert caught.value.remedy


def test_a_file_without_a_release_or_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").touch()
    with pytest.raises(ArgumentError, match=r"empty\.toml: no release is named"):
        rollout_file(tmp_path / "empty.toml")
    with pytest.raises(ArgumentError, match=r"cannot read .*: no such file"):
        rollout_file(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"soak": "400d"}, "--soak must be a time, up to 366d, not '400d'"),
        ({"control": "80%"}, "--control must be a share such as \"10%\", 0 to 50, not '80%'"),
        ({"rate": 0.0}, "--rate must be a number from 0.001 to 1000000, not 0.0"),
        ({"max_in_flight": 0}, "--max-in-flight must be a whole number, 1 to "),
    ],
)
def test_an_option_beyond_its_limits_is_refused_in_the_words_of_the_line(
    given: dict[str, object], fault: str
) -> None:
    request = request_of(msgspec.structs.replace(RolloutFile(), **given))
    with pytest.raises(ArgumentError) as refused:
        check_options(given, request)
    assert refused.value.message.startswith(fault)


def test_options_within_their_limits_may_be() -> None:
    given: dict[str, object] = {
        "release": "digits:1", "stages": ["1", "site=lab", "100%"], "rate": 10.0, "soak": "1h",
        "gates": ["p95(inference_latency_ms) <= +10%"], "control": "20%", "max_failures": 3,
        "windows": ["22:00-05:00"], "unfit": "allow", "shadow_agreement": "99%", "priority": 7,
    }  # fmt: skip
    check_options(given, request_of(msgspec.structs.replace(RolloutFile(), **given)))
