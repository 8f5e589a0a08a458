"""What version 2 of the wire format adds, byte for byte: desired states that name models.

The files beside this test must decode for ever, as those of version 1 must.
"""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec
import pytest

from wire.capture import CaptureRule
from wire.codec import to_json
from wire.desired import (
    NAMED_MODELS,
    WINDOWS,
    DesiredModels,
    ModelState,
    desired_from_json,
    desired_to_json,
)
from wire.installs import InstallReport, ReleaseRef
from wire.messages import decode_message
from wire.metadata import MetadataFile, MetadataFiles, MetadataVersions
from wire.policy import Objective, PolicySpec, Sharing
from wire.presence import Hello, ServedModel
from wire.profile import DeviceProfile
from wire.shadow import ShadowRule

KEY = base64.b64encode(bytes(range(32))).decode()
HERE = Path(__file__).parent / "wire_v2"
OLD = Path(__file__).parent / "wire_v1"


def ref(name: str, digit: str) -> ReleaseRef:
    return ReleaseRef(
        name=name,
        version="1.0.0",
        digest=digit * 64,
        envelope_sha256="f" * 64,
        envelope_size_bytes=4096,
    )


DESIRED = DesiredModels(
    device="camera-7",
    revision=12,
    issued_at_s=1767225600.0,
    models=(
        ModelState(
            name="digits",
            revision=9,
            release=ref("digits", "a"),
            rollout="r-1",
            policy=PolicySpec(
                objective=Objective(deadline_ms=20.0),
                sharing=Sharing(weight=3.0, may_park=True),
            ),
        ),
        ModelState(name="speech", revision=12, release=ref("speech", "c"), rollout="r-2"),
        ModelState(name="wake-word", revision=4, release=None),
    ),
    boot_id="0123456789abcdef",
    has_sources=True,
)
PROFILE = DeviceProfile(
    name="cam",
    architecture="x86_64",
    runtimes=("onnxruntime",),
    memory_bytes=2**30,
    storage_bytes=2**30,
    threads=2,
)
HELLO = Hello(
    device="camera-7",
    boot_id="0123456789abcdef",
    agent_version="0.2.0",
    profile=PROFILE,
    revision=12,
    release="a" * 64,
    variant="onnxruntime-int8-static",
    models=(
        ServedModel(name="digits", revision=9, release="a" * 64, variant="onnxruntime-int8-static"),
        ServedModel(name="speech", revision=12, release=None, variant=None),
    ),
    desired_form=NAMED_MODELS,
)
REPORT = InstallReport(
    device="camera-7",
    revision=12,
    digest="c" * 64,
    phase="fetching",
    outcome="running",
    active=None,
    done_bytes=10,
    total_bytes=20,
    model="speech",
)


def test_a_desired_state_of_form_2_is_unchanged() -> None:
    recorded = (HERE / "desired.json").read_bytes()
    assert desired_to_json(DESIRED, form=NAMED_MODELS) == recorded
    assert desired_from_json(recorded) == DESIRED


WINDOWED = msgspec.structs.replace(
    DESIRED,
    models=(
        msgspec.structs.replace(DESIRED.models[0], windows=("22:00-05:00", "sat,sun 10:00-18:00")),
        *DESIRED.models[1:],
    ),
)


def test_windows_are_form_3_and_are_left_out_for_who_does_not_read_it() -> None:
    recorded = (HERE / "desired-windows.json").read_bytes()
    assert desired_to_json(WINDOWED, form=WINDOWS) == recorded
    assert desired_from_json(recorded) == msgspec.structs.replace(WINDOWED, schema_version=WINDOWS)
    older = desired_from_json(desired_to_json(WINDOWED, form=NAMED_MODELS))
    assert older == msgspec.structs.replace(DESIRED, schema_version=NAMED_MODELS)
    assert desired_to_json(DESIRED, form=WINDOWS) == (HERE / "desired.json").read_bytes()


def test_windows_that_never_open_are_refused() -> None:
    model = msgspec.structs.replace(DESIRED.models[0], windows=("05:00-05:00",))
    (fault,) = msgspec.structs.replace(DESIRED, models=(model,)).faults()
    assert "is no window that opens" in fault


@pytest.mark.parametrize(("name", "message"), [("hello.json", HELLO), ("report.json", REPORT)])
def test_what_the_other_messages_gain_is_unchanged(
    name: str, message: Hello | InstallReport
) -> None:
    recorded = (HERE / name).read_bytes()
    assert to_json(message) == recorded
    assert decode_message(recorded, type(message)) == message


def test_what_trusted_metadata_adds_to_a_greeting_and_a_desired_state_is_unchanged() -> None:
    versions = MetadataVersions(
        root=2,
        timestamp=1767225600,
        snapshot=1767139200,
        targets=1,
        roles={"releases": 7},
        models=("digits", "speech"),
        lacks_desired=True,
    )
    hello = msgspec.structs.replace(HELLO, metadata=versions)
    recorded = (HERE / "hello-metadata.json").read_bytes()
    assert to_json(hello) == recorded
    assert decode_message(recorded, Hello) == hello

    timely = msgspec.structs.replace(DESIRED, expires_at_s=1767830400.0, timestamp=1767225600)
    recorded = (HERE / "desired-timely.json").read_bytes()
    assert desired_to_json(timely, form=NAMED_MODELS) == recorded
    assert desired_from_json(recorded) == timely


def test_what_a_capture_adds_to_a_desired_state_is_unchanged() -> None:
    rule = CaptureRule(id="4" * 32, public_key=KEY, share=0.5, margin=0.25, bytes_per_day=1_000_000)
    digits, *others = DESIRED.models
    models = (msgspec.structs.replace(digits, capture=rule), *others)
    captured = msgspec.structs.replace(DESIRED, models=models)
    recorded = (HERE / "desired-capture.json").read_bytes()
    assert desired_to_json(captured, form=NAMED_MODELS) == recorded
    assert desired_from_json(recorded) == captured
    assert not captured.faults()


def test_what_a_shadow_adds_to_a_desired_state_is_unchanged() -> None:
    next_one = msgspec.structs.replace(ref("digits", "b"), version="1.1.0")
    digits, *others = DESIRED.models
    models = (msgspec.structs.replace(digits, shadow=ShadowRule(release=next_one)), *others)
    shadowed = msgspec.structs.replace(DESIRED, models=models)
    recorded = (HERE / "desired-shadow.json").read_bytes()
    assert desired_to_json(shadowed, form=NAMED_MODELS) == recorded
    assert desired_from_json(recorded) == shadowed
    assert not shadowed.faults()


def test_files_of_metadata_are_unchanged() -> None:
    files = MetadataFiles(
        files=(
            MetadataFile(name="2.root", content='{"signed":{}}'),
            MetadataFile(name="timestamp", content="{}"),
        )
    )
    recorded = (HERE / "metadata.json").read_bytes()
    assert to_json(files) == recorded
    assert decode_message(recorded, MetadataFiles) == files


def test_a_desired_state_of_form_1_is_read() -> None:
    desired = desired_from_json((OLD / "desired.json").read_bytes())
    (model,) = desired.models
    assert model.release is not None
    assert (model.name, model.revision) == (model.release.name, desired.revision)
    assert not desired.faults()
