"""The configuration file: strict, with errors that say what to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.app.broker import broker_address
from agent.app.config import serving_settings
from agent.app.config_file import load_config
from agent.errors import ConfigError

LEAST = 'device = "kiosk-17"\nstate_dir = "state"\nprofile = "p.toml"\ntrust = "t.json"\n'


def write(directory: Path, text: str) -> Path:
    path = directory / "agent.toml"
    path.write_text(text)
    return path


def test_the_least_configuration_has_defaults_and_absolute_paths(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, LEAST))
    assert config.state_dir == tmp_path / "state"
    assert config.profile == tmp_path / "p.toml"
    assert config.token_file is None
    assert (config.sense_interval_s, config.telemetry_interval_s, config.confirm_s) == (1, 10, 10)
    assert str(config.sysfs_root) == "/sys"
    assert config.hooks.directory is None
    assert broker_address(config).port == 1883


def test_all_keys(tmp_path: Path) -> None:
    text = LEAST + (
        'token_file = "/etc/token"\nconfirm_s = 30\nlabels = {site = "berlin"}\n'
        '[broker]\nhost = "b"\nport = 8883\nca_file = "ca.pem"\ncert_file = "c.pem"\n'
        'key_file = "k.pem"\n[endpoint]\nunix_path = "run/infer.sock"\n'
        '[hooks]\ndirectory = "hooks.d"\ndelay_s = 0\n'
        '[install]\nwindow = "22:00-04:30"\nmin_battery_percent = 30\n'
        "[scrub]\nevery_days = 30\nbytes_per_s = 65536\n"
    )
    config = load_config(write(tmp_path, text))
    assert config.token_file == Path("/etc/token")
    assert config.labels == {"site": "berlin"}
    assert config.endpoint.unix_path == tmp_path / "run/infer.sock"
    assert (config.hooks.directory, config.hooks.delay_s) == (tmp_path / "hooks.d", 0)
    assert (config.install.window, config.install.min_battery_percent) == ("22:00-04:30", 30)
    assert (config.scrub.every_days, config.scrub.bytes_per_s) == (30, 65536)
    address = broker_address(config)
    assert (address.host, address.port) == ("b", 8883)
    assert address.ca_file == str(tmp_path / "ca.pem")
    assert address.key_file == str(tmp_path / "k.pem")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LEAST + "confirm = 3\n", "there is no setting confirm (did you mean confirm_s?); correct"),
        (LEAST + '[broker]\nhots = "b"\n', "there is no setting broker.hots"),
        (LEAST + "[scrub]\nevery_days = -1\n", "scrub.every_days is not within 0 to 366"),
        (LEAST + "[scrub]\nbytes_per_s = 1\n", "scrub.bytes_per_s is not within 16384 to 8388608"),
        (
            LEAST + "[delivery]\nleast_bytes_per_s = -1\n",
            "delivery.least_bytes_per_s is not within 0 to 1048576",
        ),
        (
            LEAST + "[delivery]\nslow_window_s = 0.5\n",
            "delivery.slow_window_s is not within 1 to 3600",
        ),
        (LEAST + "[scrub]\nevery = 1\n", "there is no setting scrub.every"),
        (LEAST + "[serving]\ncompany_ms = 1.0\n", "there is no setting serving.company_ms"),
        (LEAST.replace('device = "kiosk-17"\n', ""), "the setting device is missing"),
        (LEAST.replace("kiosk-17", "Kiosk 17"), "not a device identifier"),
        (LEAST.replace('"state"', "3"), "expected a path"),
        (LEAST.replace('"state"', '""'), "expected a path"),
        (LEAST + "[policy.objective]\nmin_retention = 2\n", "min_retention is not within 0 to 1"),
        (LEAST + "[policy]\ncool_headroom = 2\n", "policy: cool_headroom is above"),
        (
            LEAST + "[policy.objective]\ndeadline = 5\n",
            "policy.objective.deadline (did you mean policy.objective.deadline_ms?)",
        ),
        (LEAST + "[policy]\nhot = 2\n", "there is no setting policy.hot; correct"),
        (LEAST + "[serving]\nmemory_bytes = 0\n", "serving.memory_bytes is not positive"),
        (LEAST + "[serving]\nmax_batch = 0\n", "max_batch is not within"),
        (LEAST + '[endpoint]\ncert_file = "c"\n', "must be set together"),
        (LEAST + '[endpoint]\nclient_ca_file = "c"\n', "needs endpoint.cert_file"),
        (
            LEAST + '[endpoint]\nallow_origins = ["panel"]\n',
            "endpoint.allow_origins has 'panel': write an origin as https://panel.example",
        ),
        (
            LEAST + '[endpoint]\ntoken_file = "t"\nallow_origins = ["*"]\n',
            'endpoint.allow_origins has "*" although clients need a token',
        ),
        (
            LEAST + '[endpoint]\ncert_file = "c"\nkey_file = "k"\nclient_ca_file = "a"\n'
            'allow_origins = ["https://panel.example"]\n',
            "endpoint.allow_origins does not go with client_ca_file: set token_file",
        ),
        (LEAST + "[endpoint]\nmetrics = 1\n", "endpoint.metrics"),
        (
            LEAST + "[endpoint]\nshared_memory_bytes = -1\n",
            "endpoint.shared_memory_bytes is negative",
        ),
        (
            LEAST + '[endpoint]\nhost = "0.0.0.0"\ntoken_file = "t"\nclear_text = true\n'
            "shared_memory_bytes = 1\n",
            "endpoint.shared_memory_bytes needs a loopback address as host, or unix_path",
        ),
        (LEAST + "[hooks]\ntimeout_s = 0\n", "hooks.timeout_s is not above 0"),
        (LEAST + "[hooks]\nretry_s = inf\n", "hooks.retry_s is not above 0, or is above 7 days"),
        (LEAST + "[hooks]\ndelay_s = -1\n", "hooks.delay_s is negative"),
        (LEAST + "[hooks]\ndelay_s = nan\n", "hooks.delay_s is negative"),
        (
            LEAST + '[hooks]\ndirektory = "/etc"\n',
            "there is no setting hooks.direktory (did you mean hooks.directory?)",
        ),
        (LEAST + '[install]\nwindow = "1-5"\n', "install.window is not two different times"),
        (LEAST + '[install]\nwindow = "01:00-01:00"\n', "install.window is not two different"),
        (LEAST + "[install]\nmin_battery_percent = 101\n", "percent is not within 0 to 100"),
        (LEAST + "[install]\nmin_battery_percent = nan\n", "percent is not within 0 to 100"),
        (
            LEAST + '[install]\nwindows = "01:00-05:00"\n',
            "there is no setting install.windows (did you mean install.window?)",
        ),
        (LEAST + "sense_interval_s = 0\n", "sense_interval_s is not above 0"),
        (LEAST + "sense_interval_s = nan\n", "sense_interval_s is not above 0"),
        (LEAST + "telemetry_interval_s = inf\n", "telemetry_interval_s is not above 0"),
        (LEAST + "confirm_s = -1\n", "confirm_s is negative"),
        (LEAST + "[broker]\nport = 0\n", "broker.port is not within"),
        (LEAST + "[endpoint]\nport = 70000\n", "endpoint.port is not within"),
        (LEAST + "[endpoint.grpc]\nport = 70000\n", "endpoint.grpc.port is not within"),
        (LEAST + '[endpoint.grpc]\nport = 1\nunix_path = "g"\n', "has port and unix_path"),
        (LEAST + "[endpoint.grpc]\ncalls = 0\n", "endpoint.grpc.calls is not within 1 to 1024"),
        (
            LEAST + "[endpoint.grpc]\nmax_message_bytes = 99999999999\n",
            "endpoint.grpc.max_message_bytes is not within 4096 to 67108864",
        ),
        (
            LEAST + '[endpoint.grpc]\nhost = "0.0.0.0"\nport = 1\n',
            "endpoint.grpc.host 0.0.0.0 is not local: set endpoint.token_file",
        ),
        (
            LEAST + '[endpoint]\ntoken_file = "t"\n[endpoint.grpc]\nhost = "::"\nport = 1\n',
            "endpoint.grpc.host :: is not local: set endpoint.cert_file",
        ),
        (LEAST + '[endpoint]\nhost = "0.0.0.0"\n', "set token_file or client_ca_file"),
        (LEAST + '[endpoint]\nhost = "kiosk.lan"\n', "set token_file or client_ca_file"),
        (LEAST + '[endpoint]\nhost = "::"\n', "set token_file or client_ca_file"),
        (
            LEAST + '[endpoint]\nhost = "0.0.0.0"\ntoken_file = "t"\n',
            "set cert_file, or clear_text = true",
        ),
        (
            LEAST + '[endpoint]\nclear_text = true\ncert_file = "c"\nkey_file = "k"\n',
            "asks for TLS and endpoint.clear_text for none",
        ),
        (LEAST + '[broker]\ncert_file = "c"\n', "broker.cert_file needs broker.key_file"),
        (LEAST + "[broker]\ncertificate_port = 0\n", "certificate_port is not within 1 to 65535"),
        (LEAST + '[broker]\nkey_file = "k"\n', "broker.key_file needs broker.ca_file"),
        (LEAST + '[broker]\ncert_file = "c"\nkey_file = "k"\n', "needs broker.ca_file"),
        ("not toml", "Expected '=' after a key"),
        (LEAST + "spool_bytes = 'many'\n", "spool_bytes must be a whole number, not a text"),
    ],
)
def test_a_faulty_file_is_refused_with_its_reason(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text))
    assert str(caught.value).startswith(f"{tmp_path}/agent.toml: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_grpc_is_off_until_it_has_a_place(tmp_path: Path) -> None:
    assert not load_config(write(tmp_path, LEAST)).endpoint.grpc.is_on
    table = "[endpoint.grpc]\nport = 8001\n"
    assert load_config(write(tmp_path, LEAST + table)).endpoint.grpc.is_on
    table = '[endpoint.grpc]\nunix_path = "run/g.sock"\n'
    grpc = load_config(write(tmp_path, LEAST + table)).endpoint.grpc
    assert (grpc.is_on, grpc.unix_path) == (True, tmp_path / "run/g.sock")
    shared = '[endpoint]\ntoken_file = "t"\nclear_text = true\n[endpoint.grpc]\nhost = "::"\n'
    assert load_config(write(tmp_path, f"{LEAST}{shared}port = 1\n")).endpoint.grpc.is_on


def test_a_missing_file_says_what_to_check(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"cannot read the configuration .* name the agent's file with --config"
    ):
        load_config(tmp_path / "agent.toml")


def test_bounds_on_serving_reach_the_workers(tmp_path: Path) -> None:
    bounds = "[serving]\nmemory_bytes = 7000000\nwaiting = 5\nmax_batch = 3\n"
    bounds += "gap_wait_s = 1.5\nstart_timeout_s = 90.0\n"
    settings = serving_settings(load_config(write(tmp_path, LEAST + bounds)), threads=2)
    assert (settings.limits.threads, settings.limits.waiting) == (2, 5)
    assert settings.limits.memory_bytes == 7_000_000
    assert (settings.mode.max_batch, settings.gap_wait_s) == (3, 1.5)
    assert settings.start_timeout_s == 90.0
