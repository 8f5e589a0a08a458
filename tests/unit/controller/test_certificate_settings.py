"""The settings of device certificates."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.broker.device_authority import DeviceAuthority
from controller.certificate_settings import DeviceCertificatesConfig
from controller.config import ControllerConfig, load_config
from controller.errors import SettingsError
from tests.simulators.certificates import Authority
from tests.simulators.clock import FakeClock

TLS = 'database_url = "sqlite:///x.db"\n[broker]\nca_file = "ca.pem"\nport = 8883\n'
TABLE = "[device_certificates]\n"


def load(directory: Path, text: str) -> ControllerConfig:
    path = directory / "controller.toml"
    path.write_text(text)
    return load_config(path)


def test_without_the_table_devices_have_passwords(tmp_path: Path) -> None:
    assert load(tmp_path, TLS).device_certificates is None


def test_the_table_alone_is_enough(tmp_path: Path) -> None:
    certificates = load(tmp_path, TLS + TABLE).device_certificates
    assert certificates == DeviceCertificatesConfig(
        ca_file=str(tmp_path / "keys/devices-ca.pem"),
        key_file=str(tmp_path / "keys/devices-ca.key"),
    )
    assert (certificates.port, certificates.valid_s) == (8884, 7 * 86_400.0)
    assert not certificates.accept_passwords


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (TLS + TABLE + "port = 0\n", "device_certificates.port is not a port"),
        (TLS + TABLE + "port = 8883\n", "must not be that of the broker"),
        (TLS + TABLE + "valid_days = 0\n", "is not within 10 seconds to 366 days"),
        (TLS + TABLE + "valid_days = 367\n", "is not within 10 seconds to 366 days"),
        (TLS + TABLE + "valid_days = nan\n", "is not within 10 seconds to 366 days"),
        (
            'database_url = "sqlite:///x.db"\n' + TABLE,
            "needs broker.ca_file: there are no certificates without TLS",
        ),
        (TLS + TABLE + "life = 7\n", "life"),
    ],
)
def test_an_impossible_setting_is_named(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    assert fault in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/controller.toml: ")


def config_of(ca_file: Path, key_file: Path) -> DeviceCertificatesConfig:
    return DeviceCertificatesConfig(ca_file=str(ca_file), key_file=str(key_file))


def test_files_that_are_no_authority_are_refused_by_name(tmp_path: Path) -> None:
    one, two = Authority(tmp_path, "one"), Authority(tmp_path, "two")
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("not PEM\n")
    key = tmp_path / "one.key"
    for ca_file, key_file, fault in (
        (two.ca_file, key, "is not the key of"),
        (tmp_path / "empty", key, "not a certificate and its key"),
        (one.ca_file, tmp_path / "text", "not a certificate and its key"),
        (key, key, "not a certificate and its key"),
        (tmp_path / "missing", key, "device_certificates.ca_file in controller.toml"),
        (one.ca_file, tmp_path / "missing", "device_certificates.key_file in controller.toml"),
    ):
        with pytest.raises(SettingsError) as caught:
            DeviceAuthority(config_of(ca_file, key_file), FakeClock())
        assert fault in str(caught.value), str(caught.value)
    DeviceAuthority(config_of(one.ca_file, key), FakeClock())
