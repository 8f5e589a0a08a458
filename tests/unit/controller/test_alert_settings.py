"""The settings of alerts."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.config import ControllerConfig, load_config
from controller.errors import SettingsError
from controller.services.webhook_posts import Webhook

LEAST = 'database_url = "sqlite:///x.db"\n'
HOOK = '[[alerts.webhooks]]\nname = "pager"\nsecret_file = "keys/pager"\n'


def load(directory: Path, text: str) -> ControllerConfig:
    path = directory / "controller.toml"
    path.write_text(LEAST + text)
    return load_config(path)


def test_rules_are_judged_by_default_and_nobody_is_told(tmp_path: Path) -> None:
    alerts = load(tmp_path, "").alerts
    assert (alerts.enabled, alerts.interval_s, alerts.webhooks) == (True, 30.0, ())


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    text = f'{HOOK}url = "https://pager.example/x?y=z"\nca_file = "ca.pem"\n'
    (webhook,) = load(tmp_path, text).alerts.webhooks
    assert webhook.secret_file == str(tmp_path / "keys/pager")
    assert webhook.ca_file == str(tmp_path / "ca.pem")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/x",
        "http://[::1]/",
        "http://localhost/",
        "http://10.1.2.3/hook",
        "http://[fd00::5]/",
    ],
)
def test_near_receivers_need_no_tls_if_the_settings_say_so(tmp_path: Path, url: str) -> None:
    assert load(tmp_path, f'{HOOK}url = "{url}"\nclear_text = true\n').alerts.webhooks
    with pytest.raises(SettingsError, match="url has no TLS"):
        load(tmp_path, f'{HOOK}url = "{url}"\n')


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[alerts]\ninterval_s = 0.5\n", "alerts.interval_s is not within 1 to 3600"),
        ("[alerts]\nrepeat_s = 5\n", "alerts.repeat_s is neither 0 nor"),
        ("[alerts]\nhistory_days = 0\n", "alerts.history_days is not within"),
        ("[alerts]\nintervals = 5\n", "there is no setting alerts.intervals"),
        (f'{HOOK}url = "https://a.example"\n' * 5, "alerts.webhooks has more than 4"),
        (f'{HOOK}url = "https://a.example"\n' * 2, "alerts.webhooks has the name pager twice"),
        (f'{HOOK}url = "ftp://a.example"\n', "url does not begin with https:// and a host"),
        (f'{HOOK}url = "https:///x"\n', "url does not begin with https:// and a host"),
        (f'{HOOK}url = "https://a.example:99999"\n', "url is not an address"),
        (f'{HOOK}url = "https://u:p@a.example"\n', "url has a name or a password"),
        (f'{HOOK}url = "https://a.example/\\u00e4"\n', "printable ASCII"),
        (f'{HOOK}url = "http://8.8.8.8/"\nclear_text = true\n', "for loopback and private"),
        (f'{HOOK}url = "http://169.254.169.254/"\nclear_text = true\n', "for loopback and private"),
        (f'{HOOK}url = "http://240.0.0.1/"\nclear_text = true\n', "for loopback and private"),
        (f'{HOOK}url = "http://192.0.2.1/"\nclear_text = true\n', "for loopback and private"),
        (f'{HOOK}url = "http://[fe80::1%25eth0]/"\nclear_text = true\n', "loopback and private"),
        (f'{HOOK}url = "http://[ff02::1]/"\nclear_text = true\n', "for loopback and private"),
        (f'{HOOK}url = "http://a.example/"\nclear_text = true\n', "for loopback and private"),
        (f'{HOOK}url = "http://0.0.0.0/"\nclear_text = true\n', "for loopback and private"),
        (f'{HOOK}url = "https://a.example/"\nclear_text = true\n', "asks for TLS"),
        (f'{HOOK}url = "http://10.0.0.1"\nclear_text = true\nca_file = "x"\n', "needs https"),
        (HOOK.replace("pager", "The Pager", 1) + 'url = "https://a.example"\n', "1 to 63"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    assert named in caught.value.message
    assert "\n" not in caught.value.message


def test_no_fault_tells_an_address(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, f'{HOOK}url = "http://hooks.example/T0KEN"\n')
    assert "T0KEN" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "mode", "fault"),
    [
        ("0123456789abcdef\n", 0o644, "can be read by others"),
        ("0123456789abcdef\n", 0o640, "can be read by others"),
        ("short\n", 0o600, "shorter than 16"),
        ("", 0o600, "is not one line"),
        (None, 0o600, "cannot read the secret of a webhook"),
    ],
)
def test_a_secret_is_long_and_only_its_owners(
    tmp_path: Path, content: str | None, mode: int, fault: str
) -> None:
    (tmp_path / "keys").mkdir()
    if content is not None:
        (tmp_path / "keys/pager").write_text(content)
        (tmp_path / "keys/pager").chmod(mode)
    (config,) = load(tmp_path, f'{HOOK}url = "https://a.example"\n').alerts.webhooks
    with pytest.raises(SettingsError) as caught:
        Webhook(config)
    assert fault in caught.value.message
    assert "0123456789abcdef" not in str(caught.value)
    (tmp_path / "keys/pager").write_text("0123456789abcdef\n")
    (tmp_path / "keys/pager").chmod(0o600)
    Webhook(config)
