"""A controller whose process can be killed, and devices that answer it as they are told.

```
fleet = Fleet(database_url, tmp_path)
fleet.enrol(*names("cam", 10))
fleet.devices["cam-3"].outcome = "failed"
rollout = fleet.roll_out("digits:2", stages=[...])
fleet.run()                   # ticks until nothing changes any more
fleet.kill()                  # a new controller on the same database, as after a crash
```

Devices keep what a real agent keeps on its disk: the accepted revision and what is active. A device
with `desired_form=1` is an agent of before, with one model; one with `2` has several.
"""

from __future__ import annotations

import base64
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx
import msgspec

from controller.alert_settings import AlertsConfig
from controller.api_settings import ApiConfig
from controller.app.service import Controller
from controller.certificate_settings import DeviceCertificatesConfig
from controller.config import BrokerConfig, ControllerConfig, TrustConfig
from controller.penalty_settings import PenaltyConfig
from tests.simulators.clock import FakeClock
from tests.simulators.packages import DIRECTOR_KEY, PROFILE, TRUST, SignedPackage
from tests.simulators.transport import MemoryHub
from wire import topics
from wire.codec import from_json, sha256_hex, to_json
from wire.desired import (
    DESIRED_PAYLOAD_TYPE,
    NAMED_MODELS,
    DesiredModels,
    DesiredState,
    ModelState,
    desired_from_json,
)
from wire.enrolling import ENROL_PAYLOAD_TYPE, EnrolAnswer, EnrolReply, EnrolRequest
from wire.enrolment import challenged_proof, enrol_proof
from wire.installs import InstallOutcome, InstallPhase, InstallReport
from wire.messages import decode_message
from wire.metadata import MetadataVersions
from wire.policy import PolicySpec
from wire.presence import Hello, Presence, ServedModel
from wire.profile import DeviceProfile
from wire.transport import Received
from wire.trust.envelope import SigningKey

with warnings.catch_warnings():
    # Starlette 1 prefers a successor of httpx, which nothing else here needs; httpx works.
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient as TestClient  # noqa: PLC0414 - exported

API_TOKEN = "test-token-0123456789abcdef"
Outcome = Literal["succeeded", "failed", "silent", "liar", "busy"]


class MemoryAccess:
    """The broker's accounts, in memory; `broken` makes every call fail."""

    def __init__(self) -> None:
        self.enrolment: dict[str, str] = {}
        self.passwords: dict[str, str] = {}
        self.client_ids: dict[str, str] = {}
        self.refused: set[str] = set()
        self.broken: Exception | None = None
        self.meanwhile: Callable[[], object] = lambda: None
        """What happens while an account is made."""

    def allow_enrolment(self, username: str, password: str) -> None:
        self._answer()
        self.enrolment[username] = password
        self.meanwhile()

    def end_enrolment(self, username: str) -> None:
        self._answer()
        self.enrolment.pop(username, None)

    def allow_device(self, device: str, password: str, client_id: str) -> None:
        self._answer()
        self.passwords[device] = password
        self.client_ids[device] = client_id
        self.refused.discard(device)
        self.meanwhile()

    def allow_certificate(self, device: str) -> None:
        self._answer()
        self.passwords.pop(device, None)
        self.refused.discard(device)
        self.meanwhile()

    def restore_device(self, device: str) -> None:
        self._answer()
        self.refused.discard(device)

    def refuse_device(self, device: str) -> None:
        self._answer()
        self.refused.add(device)

    def refused_devices(self) -> frozenset[str]:
        self._answer()
        return frozenset(self.refused)

    def close(self) -> None:
        pass

    def _answer(self) -> None:
        if self.broken is not None:
            raise self.broken


@dataclass(kw_only=True)
class FleetDevice:
    """A device that speaks the protocol."""

    hub: MemoryHub
    name: str
    key: SigningKey
    outcome: Outcome = "succeeded"
    phase: InstallPhase = "fetching"
    """Where the install of a device stands whose outcome is `busy`."""

    waits_for: str = ""
    """What such an install waits for."""

    password: str = "a password of the device"
    labels: dict[str, str] = field(default_factory=dict)
    boot_id: str = "boot-1"
    desired_form: int = NAMED_MODELS
    allows_shadows: bool = True
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """What comes of the installs of a model, where that differs from `outcome`."""

    revision: int = 0
    actives: dict[str, str | None] = field(default_factory=dict)
    """The models that it has, each with the digest of the package that is active."""

    revisions: dict[str, int] = field(default_factory=dict)
    """The newest revision of each model that it has accepted."""

    profile: DeviceProfile = PROFILE
    runtimes: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    peer_url: str | msgspec.UnsetType = msgspec.UNSET
    """Where it serves the devices of its site."""

    metadata: MetadataVersions | msgspec.UnsetType = msgspec.UNSET
    """The trusted metadata that it says it has."""

    online: bool = False
    accepted: list[DesiredState] = field(default_factory=list)
    """What the documents say of the first model."""

    documents: list[DesiredModels] = field(default_factory=list)
    """All of what was accepted."""

    replies: list[EnrolReply] = field(default_factory=list)
    sequence: int = 0
    """Number of the last report; it begins again with each start."""

    hears: Callable[[DesiredState], None] = lambda _wanted: None
    """Called with every desired state that comes, also with one that is refused."""

    @property
    def active(self) -> str | None:
        """Digest of the package of its first model."""
        return next(iter(self.actives.values()), None)

    @active.setter
    def active(self, digest: str | None) -> None:
        name = next(iter(self.actives), "digits")
        self.actives = {} if digest is None else {name: digest}

    def listen(self) -> None:
        self.hub.on(topics.all_down(self.name), self._down)
        self.hub.on(topics.enrol_reply(self.name), self._reply)

    def ask_to_enrol(
        self,
        token: str,
        *,
        key: SigningKey | None = None,
        client_id: str | None = None,
        doubt: str | None = None,
    ) -> EnrolAnswer:
        """Ask, answer a challenge, and return the last answer that the director signed."""
        request = self.enrol_request(token, key=key, client_id=client_id, doubt=doubt)
        answer = self.ask(to_json(request))
        if isinstance(answer.challenge, str):
            answer = self.ask(to_json(self.challenged(request, answer.challenge, key=key)))
        return answer

    def enrol_request(
        self,
        token: str,
        *,
        key: SigningKey | None = None,
        client_id: str | None = None,
        doubt: str | None = None,
    ) -> EnrolRequest:
        """Return a request to enrol, as it was before there were challenges."""
        key = key or self.key
        proof = key.sign(enrol_proof(self.name, token, self.password))
        return EnrolRequest(
            device=self.name,
            token=token,
            public_key=base64.b64encode(key.public_key).decode(),
            password=self.password,
            signature=base64.b64encode(proof).decode(),
            profile=self.profile,
            labels=self.labels,
            agent_version="1.0",
            client_id=client_id or msgspec.UNSET,
            doubt=doubt or msgspec.UNSET,
        )

    def challenged(
        self, request: EnrolRequest, challenge: str, *, key: SigningKey | None = None
    ) -> EnrolRequest:
        """Return a request with the proof over a challenge."""
        own = request.client_id
        proof = challenged_proof(
            device=self.name,
            token=request.token,
            password=request.password,
            client_id=own if isinstance(own, str) else self.name,
            nonce="a nonce",
            challenge=challenge,
        )
        signature = base64.b64encode((key or self.key).sign(proof)).decode()
        return msgspec.structs.replace(
            request, nonce="a nonce", challenge=challenge, signature=signature
        )

    def ask(self, payload: bytes) -> EnrolAnswer:
        """Send a request to enrol, and return the answer that the director signed."""
        before = len(self.replies)
        self.hub.deliver(Received(topics.enrol_request(self.name), payload))
        assert len(self.replies) == before + 1, "no answer to an enrolment"
        reply = self.replies[-1]
        assert isinstance(reply.signed, str)
        signed = TRUST.unseal(
            reply.signed.encode(), role="director", payload_type=ENROL_PAYLOAD_TYPE
        )
        answer = decode_message(signed, EnrolAnswer)
        assert answer.request_sha256 == sha256_hex(payload)
        said = (reply.device, reply.accepted, reply.reason)
        assert said == (self.name, answer.accepted, answer.reason)
        assert answer.device == self.name
        return answer

    def connect(self) -> None:
        """Connect, as after a boot."""
        self.online = True
        hello = Hello(
            device=self.name,
            boot_id=self.boot_id,
            agent_version="1.0",
            profile=self.profile,
            runtimes=self.runtimes,
            peer_url=self.peer_url,
            revision=self.revision,
            release=self.active,
            variant="best" if self.active else None,
            models=self._served() if self.desired_form >= NAMED_MODELS else msgspec.UNSET,
            desired_form=self.desired_form if self.desired_form >= NAMED_MODELS else msgspec.UNSET,
            metadata=self.metadata,
            shadows=msgspec.UNSET if self.allows_shadows else False,
        )
        self.hub.deliver(Received(topics.up(self.name, "hello"), to_json(hello)))

    def leave(self) -> None:
        """Lose the connection: the broker publishes the last will."""
        self.online = False
        gone = Presence(device=self.name, online=False, boot_id=self.boot_id)
        self.hub.deliver(Received(topics.up(self.name, "presence"), to_json(gone)))

    def _served(self) -> tuple[ServedModel, ...]:
        return tuple(
            ServedModel(
                name=name,
                revision=self.revisions.get(name, 0),
                release=digest,
                variant="best" if digest else None,
            )
            for name, digest in self.actives.items()
        )

    def report(
        self, revision: int, wanted: str | None, outcome: Outcome, model: str | None = None
    ) -> None:
        """Say how an install ended, or how far it is; without a name, of the only model."""
        self.sequence += 1
        ended: InstallOutcome = "failed" if outcome == "failed" else "succeeded"
        report = InstallReport(
            device=self.name,
            boot_id=self.boot_id,
            sequence=self.sequence,
            revision=revision,
            digest=wanted,
            phase=self.phase if outcome == "busy" else "idle",
            outcome="running" if outcome == "busy" else ended,
            active=self.active if model is None else self.actives.get(model),
            variant="best",
            model=msgspec.UNSET if model is None else model,
            error_code="agent.probe" if outcome == "failed" else "",
            detail="the golden test failed" if outcome == "failed" else self.waits_for,
        )
        self.hub.deliver(Received(topics.up(self.name, "report"), to_json(report)))

    def _reply(self, received: Received) -> None:
        self.replies.append(decode_message(received.payload, EnrolReply))

    def _down(self, received: Received) -> None:
        if topics.down_kind(received.topic) != "desired" or not self.online:
            return
        payload = TRUST.unseal(received.payload, role="director", payload_type=DESIRED_PAYLOAD_TYPE)
        named = desired_from_json(payload)
        assert named.device == self.name
        assert not named.faults()
        assert from_json(payload, _Form).schema_version == _form_of(named, self.desired_form)
        wanted = _of_one(named)
        self.hears(wanted)
        if named.revision < self.revision or self.outcome == "silent":
            return
        is_new = named.revision > self.revision
        if is_new:
            self.accepted.append(wanted)
            self.documents.append(named)
        self.revision = named.revision
        if self.desired_form >= NAMED_MODELS:
            self._install_all(named, is_new=is_new)
            return
        digest = wanted.release.digest if wanted.release else None
        back = digest in {None, self.active}
        if self.outcome == "succeeded" and digest is not None:
            self.active = digest
        self.report(wanted.revision, digest, "succeeded" if back else self.outcome)

    def _install_all(self, wanted: DesiredModels, *, is_new: bool) -> None:
        """Do what an agent with several models does, and say so."""
        for name in [name for name in self.actives if wanted.model(name) is None]:
            if not wanted.keeps_others:
                del self.actives[name]
                self.revisions.pop(name, None)
        ordered = [
            model
            for model in wanted.models
            if not is_new or model.revision != self.revisions.get(model.name)
        ]
        for model in ordered:
            self._install(model)
        if is_new and not any(model.revision == wanted.revision for model in ordered):
            self.connect()  # no report tells that it was accepted

    def _install(self, model: ModelState) -> None:
        self.revisions[model.name] = model.revision
        outcome = self.outcomes.get(model.name, self.outcome)
        if outcome == "silent":
            return
        digest = model.release.digest if model.release else None
        back = digest in {None, self.actives.get(model.name)}
        if outcome == "succeeded" and digest is not None:
            self.actives[model.name] = digest
        self.report(model.revision, digest, "succeeded" if back else outcome, model.name)


class _Form(msgspec.Struct):
    schema_version: int


def _form_of(wanted: DesiredModels, newest: int) -> int:
    """Return the form in which a document is sent to a device that reads a form and all before."""
    has_windows = any(model.hours for model in wanted.models)
    return newest if has_windows else min(newest, NAMED_MODELS)


def _of_one(wanted: DesiredModels) -> DesiredState:
    """Return what a document says of the first of its models, as agents of before read it."""
    model = wanted.models[0] if wanted.models else None
    return DesiredState(
        device=wanted.device,
        revision=wanted.revision,
        issued_at_s=wanted.issued_at_s,
        release=model.release if model else None,
        rollout=model.rollout if model else None,
        policy=model.policy if model else PolicySpec(),
        boot_id=wanted.boot_id,
        has_sources=wanted.has_sources,
    )


class Fleet:
    """A controller, its API and its devices.

    Args:
        database_url: An empty database.
        directory: For the controller's files.
        desired_form: That of the agents that are made from now on; it may be changed.
        certificates: How devices get certificates; None: they have passwords.
        alerts: How rules are judged, and who is told; None for the defaults.
        penalty: When devices are held out of rollouts; None: none is.
    """

    def __init__(
        self,
        database_url: str,
        directory: Path,
        *,
        desired_form: int = NAMED_MODELS,
        certificates: DeviceCertificatesConfig | None = None,
        alerts: AlertsConfig | None = None,
        penalty: PenaltyConfig | None = None,
    ) -> None:
        self.desired_form = desired_form
        self.clock = FakeClock()
        self.hub = MemoryHub()
        self.access = MemoryAccess()
        config = make_home(directory, database_url)
        self.config = msgspec.structs.replace(config, device_certificates=certificates)
        if alerts is not None:
            self.config = msgspec.structs.replace(self.config, alerts=alerts)
        if penalty is not None:
            self.config = msgspec.structs.replace(self.config, penalty=penalty)
        self.devices: dict[str, FleetDevice] = {}
        self._api: TestClient | None = None
        self._approver = ""
        self.controller = self._boot()
        self.kill_every_step = False

    @property
    def api(self) -> TestClient:
        """The HTTP API with the right token."""
        if self._api is None:
            headers = {"Authorization": f"Bearer {API_TOKEN}"}
            self._api = TestClient(self.controller.app, headers=headers)
            self._api.__enter__()  # one event loop for all requests, not one for each
        return self._api

    def token(self, name: str, role: str, **settings: object) -> str:
        """Make an API token."""
        body = {"name": name, "role": role, **settings}
        made: str = self.api.post("/v1/access", json=body).raise_for_status().json()["token"]
        return made

    def ask(self, token: str, method: str, path: str, **more: Any) -> httpx.Response:
        """Ask the HTTP API with another token."""
        headers = {"Authorization": f"Bearer {token}"}
        answer: httpx.Response = self.api.request(method, path, headers=headers, **more)
        return answer

    def approve(self, rollout: str) -> httpx.Response:
        """Approve a stage, as somebody else than who made the rollout."""
        self._approver = self._approver or self.token("approver", "approver")
        return self.ask(self._approver, "POST", f"/v1/rollouts/{rollout}/approve")

    def kill(self) -> None:
        """End the controller as a kill does, and start another on the same database."""
        self.close()
        self.controller = self._boot()

    def stay_down(self, seconds: float) -> None:
        """End the controller as a kill does, and start another after some time."""
        self.close()
        self.clock.advance(seconds)
        self.controller = self._boot()

    def close(self) -> None:
        if self._api is not None:
            self._api.__exit__()
            self._api = None
        self.controller.stop()

    def device(self, name: str, **labels: str) -> FleetDevice:
        """Make a device that is not enrolled, with an agent of `desired_form`."""
        key = SigningKey(sha256_hex(name.encode())[:32].encode())
        device = FleetDevice(
            hub=self.hub, name=name, key=key, labels=labels, desired_form=self.desired_form
        )
        device.listen()
        self.devices[name] = device
        return device

    def enrol(self, *names: str, **labels: str) -> None:
        """Make devices, enrol and connect them."""
        body = {"uses": len(names)}
        token = self.api.post("/v1/tokens", json=body).raise_for_status().json()["token"]
        for name in names:
            device = self.device(name, **labels)
            assert device.ask_to_enrol(token).accepted
            device.connect()

    def publish(self, package: SignedPackage) -> str:
        """Upload and publish a package; return `name:version`."""
        for blob in package.blobs:
            self.api.put(f"/v1/blobs/{sha256_hex(blob)}", content=blob).raise_for_status()
        body = {"envelope_sha256": package.ref.envelope_sha256}
        self.api.post("/v1/releases", json=body).raise_for_status()
        return f"{package.index.name}:{package.index.version}"

    def roll_out(self, release: str, **settings: object) -> str:
        """Make a rollout and return its identifier."""
        body = {"release": release, **settings}
        made = self.api.post("/v1/rollouts", json=body)
        assert made.status_code == 201, made.text
        identifier: str = made.json()["id"]
        return identifier

    def step(self, seconds: float = 1.0) -> None:
        """Let a second pass and the controller think once."""
        self.clock.advance(seconds)
        self.controller.tick()
        if self.kill_every_step:
            self.kill()

    def run(self, rollout: str, *, steps: int = 60, step_s: float = 1.0) -> dict[str, Any]:
        """Step until a rollout has ended; return it."""
        shown: dict[str, Any] = {"state": "running"}
        while steps > 0 and shown["state"] in {"running", "paused"}:
            self.step(step_s)
            shown, steps = self.show(rollout), steps - 1
        return shown

    def show(self, rollout: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.api.get(f"/v1/rollouts/{rollout}").raise_for_status().json()
        return shown

    def state(self, rollout: str) -> object:
        return self.show(rollout)["state"]

    def running(self, digest: str) -> set[str]:
        """The devices that really run a package."""
        return {name for name, device in self.devices.items() if digest in device.actives.values()}

    def _boot(self) -> Controller:
        self.transport = transport = self.hub.connect()
        transports = iter([transport, self.hub.connect()])
        controller = Controller(
            self.config, self.access, connect=lambda: next(transports), clock=self.clock
        )
        for topic_filter in (*topics.CONTROL_UP, topics.ENROL_REQUESTS):
            transport.subscribe(topic_filter)
        transport.start(controller.receive, controller.on_connection)
        return controller


def make_home(directory: Path, database_url: str) -> ControllerConfig:
    """Make the files of a controller and return its settings."""
    (directory / "keys").mkdir(exist_ok=True)
    (directory / "api.token").write_text(f"{API_TOKEN}\n")
    (directory / "trust.json").write_bytes(TRUST.to_bytes())
    (directory / "keys/director.key").write_bytes(b"d" * 32)
    assert SigningKey(b"d" * 32).public_key == DIRECTOR_KEY.public_key
    return ControllerConfig(
        database_url=database_url,
        data_dir=str(directory),
        blobs_dir=str(directory / "blobs"),
        trust_file=str(directory / "trust.json"),
        director_key_file=str(directory / "keys/director.key"),
        trust=TrustConfig(
            snapshot_key_file=str(directory / "keys/snapshot.key"),
            timestamp_key_file=str(directory / "keys/timestamp.key"),
        ),
        api=ApiConfig(port=0, token_file=str(directory / "api.token")),
        broker=BrokerConfig(),
        access="open",
        tick_interval_s=0.05,
    )


def names(prefix: str, count: int) -> tuple[str, ...]:
    """Return device names that sort by number."""
    return tuple(f"{prefix}-{number:03}" for number in range(count))
