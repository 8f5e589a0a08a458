"""Budgets in `agent.toml`: what an operator may write, and what is refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.app.config_file import load_config
from agent.errors import ConfigError

LEAST = 'device = "camera-17"\nstate_dir = "state"\nprofile = "p.toml"\ntrust = "t.json"\n'
HEAD = "[[delivery.networks]]\n"
NAMED = HEAD + 'name = "cellular"\ninterfaces = ["wwan*"]\n'


def write(directory: Path, text: str) -> Path:
    path = directory / "agent.toml"
    path.write_text(LEAST + text)
    return path


def test_without_tables_nothing_is_bounded(tmp_path: Path) -> None:
    assert not load_config(write(tmp_path, "")).delivery.has_budgets


def test_all_keys(tmp_path: Path) -> None:
    text = "[delivery]\nwrite_bytes_per_day = 200_000_000\n" + NAMED
    text += 'bytes_per_day = 50_000_000\nbytes_per_month = 500_000_000\nhours = "22:00-04:00"\n'
    text += "full = true\n" + HEAD + 'name = "wifi"\ninterfaces = ["wlan0", "wlp*"]\n'
    delivery = load_config(write(tmp_path, text)).delivery
    cellular, wifi = delivery.networks
    assert (cellular.bytes_per_day, cellular.bytes_per_month) == (50_000_000, 500_000_000)
    assert (cellular.hours, cellular.is_full) == ("22:00-04:00", True)
    assert wifi.interfaces == ("wlan0", "wlp*")
    assert delivery.write_bytes_per_day == 200_000_000


@pytest.mark.parametrize(
    ("text", "is_full"),
    [
        ("", True),
        ('hours = "01:00-05:00"\n', True),
        ("bytes_per_day = 1\n", False),
        ("bytes_per_month = 1\n", False),
        ("bytes_per_day = 1\nfull = true\n", True),
        ("full = false\n", False),
    ],
)
def test_whole_files_come_by_a_metered_network_only_where_that_is_allowed(
    tmp_path: Path, text: str, *, is_full: bool
) -> None:
    assert load_config(write(tmp_path, NAMED + text)).delivery.networks[0].is_full is is_full


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + 'name = "Zell"\ninterfaces = ["a"]\n', "'Zell' is no name: use a-z, 0-9, - and _"),
        (HEAD + 'name = "other"\ninterfaces = ["a"]\n', "'other' is no name"),
        (HEAD + 'name = ""\ninterfaces = ["a"]\n', "'' is no name"),
        (HEAD + 'name = "a"\ninterfaces = []\n', "'a' has no interfaces, or above 32"),
        (HEAD + 'name = "a"\ninterfaces = [""]\n', "has an interface that is empty or too long"),
        (NAMED + "bytes_per_day = -1\n", "a bound is negative or above 2^53"),
        (NAMED + "bytes_per_month = 9007199254740993\n", "a bound is negative or above 2^53"),
        (NAMED + "bytes_per_day = 1.5\n", "bytes_per_day"),
        (NAMED + 'hours = "1-5"\n', "hours is not two different times, such as 01:00-05:00"),
        (NAMED + NAMED, "delivery.networks names a network twice"),
        (NAMED + "bytes_per_hour = 1\n", "bytes_per_hour"),
        (HEAD + 'name = "a"\n', "interfaces"),
        ("[delivery]\nwrite_bytes_per_day = 0\n", "write_bytes_per_day is not positive"),
        (
            "".join(f'{HEAD}name = "n{n}"\ninterfaces = ["a"]\n' for n in range(17)),
            "delivery.networks has more than 16 tables",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_wrong(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text))
    assert message in str(caught.value)
