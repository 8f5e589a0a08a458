"""The wire format, version 1, byte for byte.

The files beside this test were written by the first release. A device in the field speaks them for
years: they must decode for ever, and what is written today must not differ from them unless the
schema version does.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from wire.batch_clock import BatchClock
from wire.capture import SampleHead
from wire.certificates import CertificateAnswer, CertificateRequest, DeviceCertificate
from wire.codec import to_json, to_msgpack
from wire.delivery import (
    NOTHING_LEFT,
    BlobSources,
    Cast,
    CastPiece,
    CastReport,
    Chunk,
    ChunkRequest,
    DeltaSource,
    SourceRequest,
    Sources,
)
from wire.desired import DESIRED_PAYLOAD_TYPE, DesiredModels, DesiredState
from wire.enrolling import EnrolAnswer, EnrolReply, EnrolRequest
from wire.enrolment import challenged_proof, csr_proof, enrol_proof
from wire.installs import InstallReport, Refusal, ReleaseRef
from wire.measuring import Measure, Measured, MeasuredVariant, check_measured
from wire.messages import Message, decode_message
from wire.metadata import MetadataFiles
from wire.package.golden import Golden, Tolerance
from wire.package.index import PackageIndex, entry_for, index_from_bytes
from wire.package.manifest import manifest_from_bytes, manifest_to_bytes
from wire.package.performance import Performance, Relative
from wire.policy import PolicySpec
from wire.presence import ControllerStart, Hello, Presence
from wire.profile import DeviceProfile
from wire.reporting import ReportRequest
from wire.samples import SampleAck, SamplePiece
from wire.telemetry import (
    Event,
    GaugePoint,
    HistogramPoint,
    SumPoint,
    TelemetryAck,
    TelemetryBatch,
)
from wire.trust.envelope import SigningKey, seal
from wire.trust.peer_links import peer_path

HERE = Path(__file__).parent / "wire_v1"
PROFILE = DeviceProfile(
    name="rpi4",
    architecture="aarch64",
    isa_features=("asimd",),
    cpu_count=4,
    memory_bytes=2**31,
    storage_bytes=2**33,
    runtimes=("onnxruntime",),
    threads=2,
)
RELEASE = ReleaseRef(
    name="digits",
    version="1.0.0",
    digest="0" * 64,
    envelope_sha256="1" * 64,
    envelope_size_bytes=1234,
)
POINTS = (
    HistogramPoint(metric="m_ms", minute=1, attributes={"variant": "a"}, blob=b"\x01"),
    SumPoint(metric="n_total", minute=1, attributes={}, value=2.0),
    GaugePoint(
        metric="t_c", minute=1, attributes={}, count=2, total=90.0, least=40.0, greatest=50.0
    ),
)
CERTIFICATE = DeviceCertificate(pem="c", port=8884, begins_at_s=1.5, ends_at_s=2.5)
EVENT = Event(at_s=1.5, kind="switch", reason="hot", data={"from": "a", "to": "b"})
SAMPLE_HEAD = SampleHead(
    capture="4" * 32,
    sample="5" * 32,
    device="d",
    model="m",
    release="m:1",
    variant="v",
    at_s=1.5,
    why="margin",
    margin=0.25,
)
MESSAGES: dict[str, Message] = {
    "enrol_request.json": EnrolRequest(
        device="d", token="t", public_key="k", password="p", signature="s", profile=PROFILE
    ),
    "enrol_reply.json": EnrolReply(device="d", accepted=True),
    "enrol_answer.json": EnrolAnswer(device="d", accepted=True, request_sha256="0" * 64),
    "controller_start.json": ControllerStart(start_id="0" * 32, at_s=1.5),
    "enrol_request_challenged.json": EnrolRequest(
        device="d",
        token="",
        public_key="k",
        password="p",
        signature="s",
        profile=PROFILE,
        nonce="n",
        client_id="d:s",
        challenge="c",
    ),
    "enrol_answer_challenge.json": EnrolAnswer(
        device="d", accepted=False, request_sha256="0" * 64, reason="r", challenge="c"
    ),
    "enrol_answer_waits.json": EnrolAnswer(
        device="d", accepted=False, request_sha256="0" * 64, reason="r", ask_again_s=5.0
    ),
    "enrol_request_serial.json": EnrolRequest(
        device="d",
        token="t",
        public_key="k",
        password="p",
        signature="s",
        profile=PROFILE,
        serial="10000000a1",
    ),
    "enrol_request_csr.json": EnrolRequest(
        device="d",
        token="t",
        public_key="k",
        password="p",
        signature="s",
        profile=PROFILE,
        nonce="n",
        client_id="d:s",
        csr="r",
        csr_signature="s",
    ),
    "enrol_answer_certificate.json": EnrolAnswer(
        device="d", accepted=True, request_sha256="0" * 64, certificate=CERTIFICATE
    ),
    "certificate_request.json": CertificateRequest(device="d", csr="r", signature="s"),
    "certificate_answer.json": CertificateAnswer(
        device="d", csr_sha256="0" * 64, certificate=CERTIFICATE
    ),
    "hello.json": Hello(
        device="d",
        boot_id="b",
        agent_version="0.1.0",
        profile=PROFILE,
        revision=3,
        release="0" * 64,
        variant="a",
    ),
    "hello_runtimes.json": Hello(
        device="d",
        boot_id="b",
        agent_version="0.1.0",
        profile=PROFILE,
        runtimes=(),
        revision=0,
        release=None,
        variant=None,
    ),
    "hello_peer.json": Hello(
        device="d",
        boot_id="b",
        agent_version="0.1.0",
        profile=PROFILE,
        peer_url="http://192.168.1.20:8471",
        revision=3,
        release="0" * 64,
        variant="a",
    ),
    "presence.json": Presence(device="d", online=False, boot_id="b"),
    "desired.json": DesiredState(
        device="d",
        revision=4,
        issued_at_s=1.5,
        release=RELEASE,
        rollout="r",
        policy=PolicySpec(kind="rules", dwell_s=2.0),
    ),
    "report.json": InstallReport(
        device="d",
        revision=4,
        digest="0" * 64,
        phase="probing",
        outcome="failed",
        active="2" * 64,
        error_code="agent.golden",
        detail="no",
        at_s=2.5,
    ),
    "report_progress.json": InstallReport(
        device="d",
        boot_id="b",
        sequence=5,
        revision=4,
        digest="0" * 64,
        phase="fetching",
        outcome="running",
        active=None,
        done_bytes=30,
        total_bytes=100,
        at_s=2.5,
        rate_bytes_per_s=7.5,
        bytes_by_source={"local": 10, "mqtt": 20},
    ),
    "refusal.json": Refusal(
        device="d", sha256="0" * 64, error_code="wire.signature", detail="no", at_s=2.5
    ),
    "chunk_request.json": ChunkRequest(device="d", sha256="1" * 64, chunk_bytes=1024, indices=(0,)),
    "chunk.msgpack": Chunk(sha256="1" * 64, index=0, data=b"\x00\x01"),
    "chunk_request_numbered.json": ChunkRequest(
        device="d",
        sha256="1" * 64,
        chunk_bytes=8192,
        indices=(3, 4),
        number=7,
        seen=(6, 2),
        patience_s=2.5,
    ),
    "chunk_request_acknowledging.json": ChunkRequest(
        device="d",
        sha256="1" * 64,
        chunk_bytes=8192,
        indices=(),
        number=7,
        seen=(7, NOTHING_LEFT),
        patience_s=2.5,
    ),
    "chunk_numbered.msgpack": Chunk(
        sha256="1" * 64, index=3, data=b"\x00\x01", number=7, waited_s=0.25
    ),
    "source_request.json": SourceRequest(
        device="d", nonce="n", blobs=("1" * 64,), packages=("0" * 64,)
    ),
    "sources.json": Sources(
        device="d",
        nonce="n",
        blobs=(
            BlobSources(
                sha256="1" * 64,
                urls=("https://h/b?k=1",),
                delta=DeltaSource(
                    base="2" * 64,
                    sha256="3" * 64,
                    size_bytes=5,
                    chunk_bytes=1024,
                    chunks=("4" * 64,),
                    urls=("https://h/d?k=2",),
                ),
            ),
            BlobSources(sha256="5" * 64, delta_in_s=2.5),
        ),
        valid_s=600.0,
    ),
    "sources_cast.json": Sources(
        device="d",
        nonce="n",
        blobs=(BlobSources(sha256="1" * 64, cast=Cast(topic="6" * 32, wait_s=1.5)),),
        valid_s=600.0,
    ),
    "sources_peers.json": Sources(
        device="d",
        nonce="n",
        blobs=(
            BlobSources(
                sha256="1" * 64,
                peers=(
                    "http://192.168.1.20:8471"
                    + peer_path(
                        SigningKey(bytes(range(32))),
                        device="d",
                        peer="p",
                        sha256="1" * 64,
                        until_s=1_763_990_000,
                    ),
                ),
            ),
        ),
        valid_s=600.0,
    ),
    "cast_piece.msgpack": CastPiece(
        position=32768, offset=1024, data=b"\x00\x01", at_s=2.5, report_s=0.5
    ),
    "cast_report.json": CastReport(
        device="d",
        topic="6" * 32,
        chunk_bytes=1024,
        lacking="1f",
        position=34,
        lag_s=0.25,
        lost_bytes=7,
    ),
    "cast_report_first.json": CastReport(
        device="d", topic="6" * 32, chunk_bytes=1024, lacking="1f"
    ),
    "telemetry.msgpack": TelemetryBatch(
        device="d", boot_id="b", sequence=7, points=POINTS, events=(EVENT,), dropped=1
    ),
    "telemetry_ack.json": TelemetryAck(boot_id="b", sequences=(7,)),
    "telemetry_ack_reads.json": TelemetryAck(
        boot_id="b", sequences=(7,), reads=("zstd",), report_every_s=60.0
    ),
    "sample_piece.msgpack": SamplePiece(
        device="d", sample="5" * 32, head=to_json(SAMPLE_HEAD), piece=0, pieces=1, blob=b"\x00\x01"
    ),
    "sample_ack.json": SampleAck(sample="5" * 32, piece=0),
    "sample_ack_refused.json": SampleAck(sample="5" * 32, piece=0, refused="r"),
    "telemetry_clock.msgpack": TelemetryBatch(
        device="d",
        boot_id="b",
        sequence=7,
        clock=BatchClock(
            made_at_s=9.5, made_steady_s=1.5, sent_steady_s=2.5, shown_s=10.5, ahead_s=0.25
        ),
        answers="0a",
    ),
    "telemetry_clock_unknown.msgpack": TelemetryBatch(
        device="d",
        boot_id="b",
        sequence=7,
        clock=BatchClock(made_at_s=9.5, made_steady_s=1.5, sent_steady_s=2.5, ahead_s=None),
    ),
    "telemetry_ack_clock.json": TelemetryAck(
        boot_id="b", sequences=(7,), at_s=10.25, sent_steady_s=2.5, again=(8,)
    ),
    "report_request.json": ReportRequest(id="0a"),
    "measure.json": Measure(
        device="d", id="m-1", boot_id="b", issued_at_s=1.5, limit_s=600.0, release=RELEASE
    ),
    "measured.json": Measured(
        device="d",
        id="m-1",
        state="measured",
        variants=(
            MeasuredVariant(
                name="a",
                performance=Performance(
                    latency_p50_ms=1.5,
                    latency_p95_ms=2.5,
                    latency_iqr_ms=0.5,
                    load_ms=3.5,
                    first_inference_ms=4.5,
                    peak_memory_bytes=1024,
                    runs=30,
                    threads=1,
                    machine="m",
                    relative=Relative(reference="null", ratio=0.5, low=0.25, high=0.75, pairs=8),
                    background_cpus=0.5,
                ),
            ),
            MeasuredVariant(name="b", reason="r"),
        ),
        temperature_before_c=40.0,
        temperature_after_c=41.5,
        at_s=2.5,
    ),
    "measured_refused.json": Measured(device="d", id="m-1", state="refused", reason="r"),
}


def encode(name: str, message: Message) -> bytes:
    return to_msgpack(message) if name.endswith("msgpack") else to_json(message)


RETIRED = b'"objective":"accuracy",'
"""A field of profiles that nothing ever read: no longer written, and a reader of the first release
takes its default."""


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_of_version_1_is_unchanged(name: str) -> None:
    recorded = (HERE / name).read_bytes()
    message = MESSAGES[name]
    assert decode_message(recorded, type(message), packed=name.endswith("msgpack")) == message
    assert encode(name, message) == recorded.replace(RETIRED, b"")


class FirstEnrolReply(Message, frozen=True, kw_only=True):
    """What an agent of the first release reads."""

    device: str
    accepted: bool
    reason: str = ""


def test_the_first_release_reads_a_signed_answer_to_its_enrolment() -> None:
    reply = EnrolReply(device="d", accepted=False, reason="no", signed="an envelope")
    old = decode_message(to_json(reply), FirstEnrolReply)
    assert (old.device, old.accepted, old.reason) == ("d", False, "no")


class FirstEnrolAnswer(Message, frozen=True, kw_only=True):
    """What an agent reads that knows no challenges."""

    device: str
    accepted: bool
    request_sha256: str
    reason: str = ""


def test_an_agent_that_knows_no_certificates_reads_an_answer_with_one() -> None:
    answer = to_json(MESSAGES["enrol_answer_certificate.json"])
    assert decode_message(answer, FirstEnrolAnswer).accepted


def test_an_agent_that_knows_no_challenges_reads_one_as_a_refusal() -> None:
    challenged = to_json(MESSAGES["enrol_answer_challenge.json"])
    old = decode_message(challenged, FirstEnrolAnswer)
    assert (old.accepted, old.reason) == (False, "r")


class FirstHello(Message, frozen=True, kw_only=True):
    """What a controller reads that knows no peers."""

    device: str
    revision: int


def test_a_controller_that_knows_no_peers_reads_a_greeting_with_one() -> None:
    old = decode_message(to_json(MESSAGES["hello_peer.json"]), FirstHello)
    assert (old.device, old.revision) == ("d", 3)


class FirstTelemetryAck(Message, frozen=True, kw_only=True):
    """What an agent reads that compresses nothing and has its own interval."""

    boot_id: str
    sequences: tuple[int, ...]


@pytest.mark.parametrize("name", ["telemetry_ack_reads.json", "telemetry_ack_clock.json"])
def test_an_agent_of_before_reads_a_newer_acknowledgement(name: str) -> None:
    old = decode_message(to_json(MESSAGES[name]), FirstTelemetryAck)
    assert (old.boot_id, old.sequences) == ("b", (7,))


class FirstTelemetryBatch(Message, frozen=True, kw_only=True):
    """What a controller reads that compares no clocks."""

    device: str
    sequence: int


def test_a_controller_that_compares_no_clocks_reads_a_batch_with_some() -> None:
    data = to_msgpack(MESSAGES["telemetry_clock.msgpack"])
    old = decode_message(data, FirstTelemetryBatch, packed=True)
    assert (old.device, old.sequence) == ("d", 7)


def test_compressed_telemetry_is_read() -> None:
    recorded = (HERE / "telemetry_packed.msgpack.zst").read_bytes()
    batch = MESSAGES["telemetry.msgpack"]
    assert decode_message(recorded, TelemetryBatch, packed=True) == batch


class FirstBlobSources(msgspec.Struct, frozen=True, kw_only=True):
    """A way as a device reads it that knows no peers."""

    sha256: str
    urls: tuple[str, ...] = ()


class FirstSources(Message, frozen=True, kw_only=True):
    """What a device reads that knows no peers."""

    device: str
    blobs: tuple[FirstBlobSources, ...] = ()


def test_a_device_that_knows_no_peers_reads_an_answer_with_some() -> None:
    old = decode_message(to_json(MESSAGES["sources_peers.json"]), FirstSources)
    assert [each.sha256 for each in old.blobs] == ["1" * 64]


class FirstInstallReport(Message, frozen=True, kw_only=True):
    """What a controller reads that knows no rates."""

    device: str
    done_bytes: int = 0
    total_bytes: int = 0


def test_a_controller_that_knows_no_rates_reads_a_report_with_one() -> None:
    old = decode_message(to_json(MESSAGES["report_progress.json"]), FirstInstallReport)
    assert (old.done_bytes, old.total_bytes) == (30, 100)


def test_a_report_may_name_a_source_that_nobody_knows_yet() -> None:
    text = to_json(MESSAGES["report_progress.json"]).replace(b'"local"', b'"multicast"')
    report = decode_message(text, InstallReport)
    assert report.bytes_by_source == {"multicast": 10, "mqtt": 20}


def test_the_bytes_that_a_device_signs_to_enrol_are_unchanged() -> None:
    assert enrol_proof("d", "t", "p") == b"edgefleet-enrol-v1\nd\nt\np"
    proof = challenged_proof(
        device="d", token="", password="p", client_id="d:s", nonce="n", challenge="c"
    )
    assert proof == b'edgefleet-enrol-v2\n["d","","p","d:s","n","c"]'
    proof = csr_proof(device="d", nonce="n", challenge="c", csr="r")
    assert proof == b'edgefleet-enrol-csr-v1\n["d","n","c","r"]'


def test_no_message_is_without_a_record() -> None:
    kinds = {type(message) for message in MESSAGES.values()}
    ours = set(Message.__subclasses__())
    assert kinds == ours - {
        FirstEnrolReply,
        FirstEnrolAnswer,
        FirstHello,
        FirstInstallReport,
        FirstSources,
        FirstTelemetryAck,
        FirstTelemetryBatch,
        DesiredModels,  # test_wire_v2.py has these
        MetadataFiles,
    }


def test_the_recorded_answer_to_a_measurement_is_possible() -> None:
    check_measured(decode_message((HERE / "measured.json").read_bytes(), Measured))


def test_a_signed_desired_state_of_version_1_is_unchanged() -> None:
    payload = to_json(MESSAGES["desired.json"])
    key = SigningKey(bytes(range(32)))
    sealed = seal(payload, payload_type=DESIRED_PAYLOAD_TYPE, keys=[key])
    assert sealed == (HERE / "desired.dsse.json").read_bytes()


def test_a_desired_state_that_names_the_start_of_the_agent_only_adds_that() -> None:
    recorded = (HERE / "desired.json").read_bytes()
    message = msgspec.structs.replace(MESSAGES["desired.json"], boot_id="b")
    assert to_json(message) == recorded[:-1] + b',"boot_id":"b"}'
    assert decode_message(to_json(message), DesiredState) == message


def test_a_desired_state_of_a_controller_with_other_sources_only_adds_that() -> None:
    recorded = (HERE / "desired.json").read_bytes()
    message = msgspec.structs.replace(MESSAGES["desired.json"], has_sources=True)
    assert to_json(message) == recorded[:-1] + b',"has_sources":true}'
    assert decode_message(to_json(message), DesiredState) == message


def test_a_package_index_of_version_1_is_unchanged() -> None:
    index = PackageIndex(name="digits", version="1.0.0", files=(entry_for("a/b", b"content"),))
    recorded = (HERE / "index.json").read_bytes()
    assert index.to_bytes() == recorded
    assert index_from_bytes(recorded) == index


def test_a_manifest_of_version_1_is_unchanged() -> None:
    data = (HERE / "manifest.json").read_bytes()
    assert manifest_to_bytes(manifest_from_bytes(data)) == data


class FirstGolden(msgspec.Struct, frozen=True, kw_only=True):
    """A golden test as the first release knew it."""

    asset: str
    samples: int
    tolerances: dict[str, Tolerance]
    min_agreement: float = 1.0


def test_an_agent_that_knows_no_kernels_reads_a_golden_test_that_names_some() -> None:
    old = manifest_from_bytes((HERE / "manifest.json").read_bytes()).variants[0].info.golden
    assert old is not None
    new = msgspec.structs.replace(
        old,
        kernels="ai-edge-litert: XNNPACK",
        other_tolerances={"y": Tolerance(absolute=86.5, relative=0.001)},
    )
    read = msgspec.json.decode(to_json(new), type=FirstGolden)
    assert to_json(read) == to_json(old)
    assert msgspec.json.decode(to_json(new), type=Golden) == new
