"""What a controller that gives certificates makes of requests for them, whole or wrong."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from controller.broker.certificates import make_authority
from controller.certificate_settings import SECONDS_PER_DAY, DeviceCertificatesConfig
from controller.services.shut_out import KEPT_S, LOOK_AGAIN_S, TRY_AGAIN_S
from tests.simulators.controller_fleet import Fleet, FleetDevice
from tests.simulators.packages import STRANGER_KEY, TRUST
from wire import topics
from wire.certificates import (
    CERTIFICATE_PAYLOAD_TYPE,
    CertificateAnswer,
    CertificateRequest,
    DeviceCertificate,
)
from wire.codec import sha256_hex, to_json
from wire.enrolling import EnrolAnswer, EnrolRequest
from wire.enrolment import csr_proof
from wire.errors import TransportError
from wire.messages import decode_message
from wire.transport import Received
from wire.trust.envelope import SigningKey

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey
KEY = ec.generate_private_key(ec.SECP256R1())
LIFE_S = 7 * SECONDS_PER_DAY


def csr_of(key: Key = KEY, name: str = "whatever") -> str:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(serialization.Encoding.PEM).decode()


CSR = csr_of()


def settings(directory: Path, **changes: object) -> DeviceCertificatesConfig:
    authority = make_authority(directory, "devices")
    (directory / "devices.pem").write_bytes(authority.certificate)
    (directory / "devices.key").write_bytes(authority.key)
    config = DeviceCertificatesConfig(
        ca_file=str(directory / "devices.pem"), key_file=str(directory / "devices.key")
    )
    return msgspec.structs.replace(config, **changes)


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path, certificates=settings(tmp_path))
    yield made
    made.close()


@pytest.fixture
def device(fleet: Fleet) -> FleetDevice:
    return fleet.device("cam-1")


def token(fleet: Fleet, uses: int = 1) -> str:
    answer = fleet.api.post("/v1/tokens", json={"uses": uses})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["token"])


def with_csr(
    request: EnrolRequest, csr: str = CSR, *, key: SigningKey, signed: str | None = None
) -> EnrolRequest:
    proof = csr_proof(
        device=request.device,
        nonce=request.nonce if isinstance(request.nonce, str) else "",
        challenge=request.challenge if isinstance(request.challenge, str) else "",
        csr=csr if signed is None else signed,
    )
    signature = base64.b64encode(key.sign(proof)).decode()
    return msgspec.structs.replace(request, csr=csr, csr_signature=signature)


def ask(
    device: FleetDevice, secret: str, csr: str = CSR, *, key: SigningKey | None = None
) -> EnrolAnswer:
    """Ask with a request for a certificate, and answer a challenge."""
    key = key or device.key
    request = device.enrol_request(secret, key=key)
    answer = device.ask(to_json(with_csr(request, csr, key=key)))
    if isinstance(answer.challenge, str):
        challenged = device.challenged(request, answer.challenge, key=key)
        answer = device.ask(to_json(with_csr(challenged, csr, key=key)))
    return answer


def given(answer: EnrolAnswer) -> DeviceCertificate:
    assert answer.accepted, answer.reason
    assert isinstance(answer.certificate, DeviceCertificate)
    return answer.certificate


def read(certificate: DeviceCertificate) -> x509.Certificate:
    return x509.load_pem_x509_certificate(certificate.pem.encode())


def at(time_s: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(int(time_s), dt.UTC)


def test_a_certificate_names_the_device_and_opens_nothing_else(
    fleet: Fleet, device: FleetDevice, tmp_path: Path
) -> None:
    made = given(ask(device, token(fleet), csr_of(name="cam-2")))
    certificate = read(made)
    assert certificate.subject.rfc4514_string() == "CN=cam-1"
    authority = x509.load_pem_x509_certificate((tmp_path / "devices.pem").read_bytes())
    certificate.verify_directly_issued_by(authority)
    now_s = fleet.clock.now_s()
    assert certificate.not_valid_after_utc == at(now_s + LIFE_S)
    assert (made.port, made.begins_at_s, made.ends_at_s) == (8884, now_s, now_s + LIFE_S)
    extensions = certificate.extensions
    usage = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert fleet.access.passwords == {}


def test_two_certificates_have_different_numbers(fleet: Fleet) -> None:
    secret = token(fleet, 2)
    numbers = {read(given(ask(fleet.device(n), secret))).serial_number for n in ("a", "b")}
    assert len(numbers) == 2


def test_a_device_that_asks_for_no_certificate_is_refused_and_keeps_its_token(
    fleet: Fleet, device: FleetDevice
) -> None:
    secret = token(fleet)
    answer = device.ask_to_enrol(secret)
    assert not answer.accepted
    assert "the device asked for none: update its agent, or install openssl there" in answer.reason
    given(ask(device, secret))


def test_older_agents_get_passwords_where_the_operator_says_so(
    database_url: str, tmp_path: Path
) -> None:
    fleet = Fleet(database_url, tmp_path, certificates=settings(tmp_path, accept_passwords=True))
    try:
        old, new = fleet.device("old"), fleet.device("new")
        secret = token(fleet, 2)
        answer = old.ask_to_enrol(secret)
        assert (answer.accepted, answer.certificate) == (True, msgspec.UNSET)
        given(ask(new, secret))
        assert set(fleet.access.passwords) == {"old"}
    finally:
        fleet.close()


def test_a_controller_with_passwords_alone_makes_an_account_for_a_new_agent(
    database_url: str, tmp_path: Path
) -> None:
    fleet = Fleet(database_url, tmp_path)
    try:
        device = fleet.device("cam-1")
        answer = ask(device, token(fleet))
        assert (answer.accepted, answer.certificate) == (True, msgspec.UNSET)
        assert fleet.access.passwords == {"cam-1": device.password}
    finally:
        fleet.close()


@pytest.mark.parametrize(
    ("csr", "reason"),
    [
        ("", "cannot be read"),
        ("-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n", "read"),
        ("x" * 8193, "over 8192 characters"),
        (csr_of(ed25519.Ed25519PrivateKey.generate()), "must be on the curve"),
        (csr_of(ec.generate_private_key(ec.SECP256K1())), "must be on the curve"),
        (csr_of(rsa.generate_private_key(65537, 1024)), "RSA with 2048 to"),  # noqa: S505
    ],
    ids=["nothing", "garbage", "long", "ed25519", "another curve", "short rsa"],
)
def test_a_request_that_cannot_be_used_is_refused_and_keeps_the_token(
    fleet: Fleet, device: FleetDevice, csr: str, reason: str
) -> None:
    secret = token(fleet)
    answer = ask(device, secret, csr)
    assert (answer.accepted, reason in answer.reason) == (False, True), answer.reason
    given(ask(device, secret))


@pytest.mark.parametrize("bits", [2048, 3072])
def test_keys_that_a_tpm_makes_are_accepted(fleet: Fleet, device: FleetDevice, bits: int) -> None:
    given(ask(device, token(fleet), csr_of(rsa.generate_private_key(65537, bits))))


def test_a_request_that_its_key_did_not_sign_is_refused(fleet: Fleet, device: FleetDevice) -> None:
    der = bytearray(x509.load_pem_x509_csr(CSR.encode()).public_bytes(serialization.Encoding.DER))
    der[-1] ^= 1
    text = base64.encodebytes(bytes(der)).decode()
    pem = f"-----BEGIN CERTIFICATE REQUEST-----\n{text}-----END CERTIFICATE REQUEST-----\n"
    answer = ask(device, token(fleet), pem)
    assert "not signed by the key in it" in answer.reason


def test_the_devices_own_key_must_sign_the_request_for_the_certificate(
    fleet: Fleet, device: FleetDevice
) -> None:
    secret = token(fleet)
    request = device.enrol_request(secret)
    for wrong in (
        with_csr(request, key=STRANGER_KEY),
        with_csr(request, key=device.key, signed=csr_of()),
        msgspec.structs.replace(with_csr(request, key=device.key), nonce="another"),
        msgspec.structs.replace(with_csr(request, key=device.key), csr_signature="no base64"),
        msgspec.structs.replace(request, csr=CSR),
    ):
        assert "own key did not sign" in device.ask(to_json(wrong)).reason
    given(ask(device, secret))


def renewal(device: str, csr: str, key: SigningKey) -> bytes:
    proof = csr_proof(device=device, nonce="", challenge="", csr=csr)
    signature = base64.b64encode(key.sign(proof)).decode()
    return to_json(CertificateRequest(device=device, csr=csr, signature=signature))


def renewed(
    device: FleetDevice, csr: str = CSR, key: SigningKey | None = None
) -> CertificateAnswer | None:
    """Ask for the next certificate; return the answer, or None if there is none."""
    heard: list[bytes] = []
    topic = topics.down(device.name, "certificate")
    transport = device.hub.on(topic, lambda received: heard.append(received.payload))
    request = renewal(device.name, csr, key or device.key)
    device.hub.deliver(Received(topics.up(device.name, "certificate_request"), request))
    transport.close()
    if not heard:
        return None
    signed = TRUST.unseal(heard[-1], role="director", payload_type=CERTIFICATE_PAYLOAD_TYPE)
    return decode_message(signed, CertificateAnswer)


def test_a_device_that_is_enrolled_gets_its_next_certificate(
    fleet: Fleet, device: FleetDevice
) -> None:
    first = given(ask(device, token(fleet)))
    fleet.clock.advance(5 * SECONDS_PER_DAY)
    answer = renewed(device)
    assert answer is not None
    assert (answer.device, answer.csr_sha256) == ("cam-1", sha256_hex(CSR.encode()))
    assert answer.certificate.ends_at_s == first.ends_at_s + 5 * SECONDS_PER_DAY
    assert read(answer.certificate).subject.rfc4514_string() == "CN=cam-1"


def test_a_stolen_certificate_gets_no_next_one(fleet: Fleet, device: FleetDevice) -> None:
    given(ask(device, token(fleet)))
    assert renewed(device, key=STRANGER_KEY) is None
    assert renewed(device) is not None


@pytest.mark.parametrize("state", ["quarantined", "decommissioned"])
def test_a_device_that_is_shut_out_gets_none(fleet: Fleet, device: FleetDevice, state: str) -> None:
    given(ask(device, token(fleet)))
    fleet.api.patch("/v1/devices/cam-1", json={"state": state}).raise_for_status()
    assert renewed(device) is None
    assert fleet.access.refused == {"cam-1"}
    assert not ask(device, "").accepted
    assert fleet.access.refused == {"cam-1"}


def test_nobody_gets_one_who_is_not_enrolled_or_asks_for_another(
    fleet: Fleet, device: FleetDevice
) -> None:
    assert renewed(device) is None
    given(ask(device, token(fleet)))
    stranger = renewal("cam-2", CSR, device.key)
    device.hub.deliver(Received(topics.up("cam-1", "certificate_request"), stranger))
    assert renewed(device, "no request") is None


def test_a_device_that_is_shut_out_while_it_enrols_stays_so(
    fleet: Fleet, device: FleetDevice
) -> None:
    given(ask(device, token(fleet)))
    body = {"state": "quarantined"}
    fleet.access.meanwhile = lambda: fleet.api.patch("/v1/devices/cam-1", json=body)
    answer = ask(device, "")
    assert (answer.accepted, answer.certificate) == (False, msgspec.UNSET)
    assert fleet.access.refused == {"cam-1"}


def test_a_restored_device_is_let_in_by_its_certificate(fleet: Fleet, device: FleetDevice) -> None:
    given(ask(device, token(fleet)))
    for state in ("quarantined", "enrolled"):
        fleet.api.patch("/v1/devices/cam-1", json={"state": state}).raise_for_status()
    assert fleet.access.refused == set()
    assert renewed(device) is not None


def test_another_key_waits_until_the_certificate_of_the_device_before_has_ended(
    fleet: Fleet, device: FleetDevice
) -> None:
    given(ask(device, token(fleet)))
    for change in ({"state": "decommissioned"}, {"may_enrol_again": True}):
        fleet.api.patch("/v1/devices/cam-1", json=change).raise_for_status()
    secret = token(fleet)
    assert "still valid for 168 hours" in ask(device, secret, key=STRANGER_KEY).reason
    fleet.clock.advance(LIFE_S + 1)
    given(ask(device, token(fleet), key=STRANGER_KEY))


def test_the_same_key_or_one_that_is_gone_need_not_wait(fleet: Fleet, device: FleetDevice) -> None:
    given(ask(device, token(fleet)))
    change = {"may_enrol_again": True}
    for key, gone in ((device.key, False), (STRANGER_KEY, True)):
        fleet.api.patch("/v1/devices/cam-1", json={"state": "decommissioned"}).raise_for_status()
        body = change | {"key_is_gone": gone}
        fleet.api.patch("/v1/devices/cam-1", json=body).raise_for_status()
        given(ask(device, token(fleet), key=key))


def test_a_lost_answer_is_asked_for_again_with_the_used_up_token(
    fleet: Fleet, device: FleetDevice
) -> None:
    secret = token(fleet)
    first, second = (given(ask(device, secret)) for _ in range(2))
    assert first.pem != second.pem


def test_a_broker_that_lost_its_accounts_is_told_again_who_is_shut_out(fleet: Fleet) -> None:
    secret = token(fleet, 3)
    for name in ("cam-1", "cam-2", "cam-3"):
        given(ask(fleet.device(name), secret))
    for name, state in (("cam-1", "quarantined"), ("cam-2", "decommissioned")):
        fleet.api.patch(f"/v1/devices/{name}", json={"state": state}).raise_for_status()
    fleet.controller.tick()
    fleet.access.refused.clear()
    fleet.controller.tick()
    assert fleet.access.refused == set(), "nothing is told twice on one connection"
    fleet.transport.set_up(False)
    fleet.transport.set_up(True)
    fleet.access.broken = TransportError("no answer")
    fleet.controller.tick()
    fleet.access.broken = None
    fleet.clock.advance(TRY_AGAIN_S)
    fleet.controller.tick()
    assert fleet.access.refused == {"cam-1", "cam-2"}
    fleet.access.refused = {"cam-2", "cam-3", "cam-9"}  # one of an operator's own making
    fleet.clock.advance(LOOK_AGAIN_S)
    fleet.controller.tick()
    assert fleet.access.refused == {"cam-1", "cam-2", "cam-9"}, "without a new connection"
    fleet.clock.advance(LIFE_S)
    fleet.controller.tick()
    assert fleet.access.refused == {"cam-1", "cam-2", "cam-9"}, "clocks differ"
    fleet.clock.advance(KEPT_S + LIFE_S)
    fleet.controller.tick()
    assert fleet.access.refused == {"cam-9"}, "their certificates ended long ago"


@pytest.mark.parametrize("runs_s", [0.0, 2 * KEPT_S])
def test_a_clock_that_is_ahead_for_a_while_lets_nobody_in_for_long(
    fleet: Fleet, runs_s: float
) -> None:
    """Nor does a restored controller that does not know of the newest certificates."""
    fleet.clock.advance(runs_s)
    given(ask(fleet.device("cam-1"), token(fleet)))
    fleet.api.patch("/v1/devices/cam-1", json={"state": "decommissioned"}).raise_for_status()
    fleet.controller.tick()
    ahead_s = 2 * LIFE_S + KEPT_S + 1.0
    fleet.clock.correct(ahead_s)
    fleet.clock.advance(LOOK_AGAIN_S)
    fleet.controller.tick()
    assert fleet.access.refused == (set() if runs_s else {"cam-1"})
    fleet.clock.correct(-ahead_s)
    fleet.clock.advance(LOOK_AGAIN_S)
    fleet.controller.tick()
    assert fleet.access.refused == {"cam-1"}
