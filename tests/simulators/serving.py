"""Workers that are no processes: the port of `agent.ports.ModelServerPort`, faults on demand."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from agent.errors import AgentError
from agent.ports import Running, SignedPort
from agent.serve.errors import WorkerCrashedError, WorkerLoadError
from wire.package.variant import Variant


@dataclass(frozen=True, kw_only=True)
class FakeProbe:
    passed: bool
    agreement: float = 1.0
    detail: str = ""
    latency_ms: float | None = None


@dataclass(kw_only=True)
class FakeWorker:
    digest: str
    variant: Variant
    content: bytes
    """Of the model file when it was loaded."""

    package: Path
    """From where it reads its golden sample at each probe."""

    memory_bytes: int = 0


@dataclass
class FakeModelServer:
    """Loads the bytes of model files and says what the test wants.

    `hook` is called before each call with its name: it may raise, as a power cut does.
    """

    hook: Callable[[str], None] = lambda _call: None
    active: FakeWorker | None = None
    bad_golden: set[str] = field(default_factory=set)
    """Content of model files, as text, that fail their golden test."""

    bad_load: set[str] = field(default_factory=set)
    takes_ms: dict[str, float] = field(default_factory=dict)
    """What a golden sample takes, by the content of the model file."""

    crashes: int = 0
    """How often the next probes crash."""

    calls: list[str] = field(default_factory=list)
    served: list[bytes] = field(default_factory=list)
    """Content of all that ever was active."""

    running: int = 0
    running_as: Running = field(default_factory=Running)
    waiting: int = 0
    most: int = 64
    """How many workers can start."""

    kept_previous: bool = False
    """Whether the version before went on when the model was withdrawn."""

    kept_bytes: int = 0
    """What the version before holds."""

    kept_only: set[str | None] = field(default_factory=set)
    why_none: str = ""
    stopped_first: list[str] = field(default_factory=list)
    """Variants for which the worker before had to end first."""

    signed: SignedPort | None = None
    """What was signed of the files, which are compared before they are loaded."""

    @property
    def held_bytes(self) -> int:
        return self.active.memory_bytes if self.active is not None else 0

    def most_workers(self, asked: int) -> int:
        return min(asked, self.most)

    def run_requests(self, running: Running) -> None:
        self.running_as = running

    def switch_to(
        self, package: Path, digest: str, variant: Variant, *, stop_first: bool = False
    ) -> None:
        if stop_first:
            self.stopped_first.append(variant.name)
        prepared = self._prepare(package, digest, variant)
        self._call("activate")
        if self.active is not None:
            self.running -= 1
        self.active = prepared
        self.served.append(prepared.content)

    def probe(self, package: Path, digest: str, variant: Variant) -> FakeProbe:
        prepared = self._prepare(package, digest, variant)
        try:
            return self._probe(prepared)
        finally:
            self._call("discard")
            self.running -= 1

    def _prepare(self, package: Path, digest: str, variant: Variant) -> FakeWorker:
        self._call("prepare")
        if self.signed is not None:
            self.signed.check(digest, variant)
        content = (package / variant.directory / variant.info.model_file).read_bytes()
        if content.decode() in self.bad_load:
            raise WorkerLoadError(f"cannot load {variant.name}")
        self.running += 1
        return FakeWorker(digest=digest, variant=variant, content=content, package=package)

    def _probe(self, prepared: FakeWorker) -> FakeProbe:
        self._call("probe")
        if not prepared.package.is_dir():
            raise WorkerCrashedError("the golden sample is not there")
        if self.crashes > 0:
            self.crashes -= 1
            raise WorkerCrashedError("the worker ended")
        if prepared.content.decode() in self.bad_golden:
            return FakeProbe(passed=False, agreement=0.1, detail="agreement 0.10 below 0.99")
        return FakeProbe(passed=True, latency_ms=self.takes_ms.get(prepared.content.decode()))

    def probe_active(self) -> FakeProbe:
        if self.active is None:
            raise AgentError("nothing serves")
        return self._probe(self.active)

    def keep_only(self, digests: Collection[str | None]) -> int:
        self.kept_only = set(digests)
        return self.kept_bytes

    def withdraw(self, why: str = "", *, keeps_previous: bool = False) -> None:
        self.why_none, self.kept_previous = why, keeps_previous
        self._call("withdraw")
        self.running -= 1 if self.active else 0
        self.active = None

    def supervise(self) -> None:
        self._call("supervise")

    def _call(self, name: str) -> None:
        self.calls.append(name)
        self.hook(name)
