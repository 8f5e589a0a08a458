"""Runs the steps of a plan: from the cache where it can, else in a fresh process.

Rules:
- A step's key is the digest of its kind, options, inputs, the tools, the code and the machine;
  equal keys, equal output. Measured figures are cached like all else, so a second build gives the
  same bytes.
- A failed step costs what depends on it, unless it is vital.
- A build that was killed goes on from what it had finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from packager.cache import Cache, Entry
from packager.errors import DiskFullError, PackagerError, StepError
from packager.plan import Step
from packager.process import MEMORY_SHARE, StepLimits, machine_memory_bytes, run_job
from packager.step import RESULT_FILE, Job
from wire.clock import Clock
from wire.codec import from_json, sha256_hex, to_json

Progress = Callable[[str], None]
T = TypeVar("T")


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A file that the user gave."""

    path: Path
    sha256: str


class Toolchain(msgspec.Struct, frozen=True, kw_only=True):
    """What a step's output depends on beside its inputs."""

    tools: dict[str, str]
    code: str
    machine: str


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a step, for the report."""

    name: str
    state: str
    """`cached`, `done`, `failed` or `skipped`."""

    seconds: float = 0.0
    reason: str = ""


class _Output(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    digest: str


class Pipeline:
    """One run over the steps of a build.

    Args:
        sources: The user's files, by the names that steps use.
        cache: Where outputs are kept.
        toolchain: What outputs depend on.
        limits: What a step may use.
        clock: The source of durations.
        progress: Told one line per step.
    """

    def __init__(
        self,
        sources: dict[str, Source],
        *,
        cache: Cache,
        toolchain: Toolchain,
        limits: StepLimits,
        clock: Clock,
        progress: Progress,
    ) -> None:
        self._sources = sources
        self._outputs = {
            name: _Output(path=source.path, digest=source.sha256)
            for name, source in sources.items()
        }
        self._cache = cache
        self.toolchain = toolchain
        self._limits = limits
        self._clock = clock
        self._progress = progress
        self._reasons: dict[str, str] = {}
        self.records: list[StepRecord] = []

    def run(self, steps: Iterable[Step]) -> None:
        """Run steps in order.

        Args:
            steps: Each after those that it needs.

        Raises:
            PackagerError: A vital step failed.
        """
        for step in steps:
            self._run(step)

    def source_digests(self) -> dict[str, str]:
        """Return the SHA-256 of each file that the user gave, by its role."""
        return {name: source.sha256 for name, source in self._sources.items()}

    def folder(self, step: str) -> Path:
        """Return the output folder of a step that succeeded."""
        return self._outputs[step].path

    def result(self, step: str, kind: type[T]) -> T:
        """Return the result of a step that succeeded.

        Args:
            step: Its name.
            kind: The type of its result.

        Returns:
            The result.

        Raises:
            WireFormatError: It is of another type.
        """
        return from_json((self.folder(step) / RESULT_FILE).read_bytes(), kind)

    def lost(self, *steps: str) -> str | None:
        """Return why one of some steps has no output; None when all have."""
        return next((self._reasons[step] for step in steps if step in self._reasons), None)

    def _run(self, step: Step) -> None:
        blocked = self.lost(*step.inputs.values())
        if blocked is not None:
            self._reasons[step.name] = blocked
            self._record(step, "skipped", reason=blocked)
            return
        key = self._key(step)
        found = self._cache.find(key)
        began_s = self._clock.monotonic_s()
        if found is None:
            self._progress(f"{step.name} ...")
            try:
                found = self._make(step, key)
            except PackagerError as exc:
                seconds = self._clock.monotonic_s() - began_s
                self._fail(step, exc, seconds)
                return
            state = "done"
        else:
            state = "cached"
        folder, entry = found
        self._outputs[step.name] = _Output(path=folder, digest=entry.digest)
        self._record(step, state, seconds=self._clock.monotonic_s() - began_s)

    def _make(self, step: Step, key: str) -> tuple[Path, Entry]:
        with self._cache.workspace(step.name) as workspace:
            output = workspace / "output"
            output.mkdir()
            job = Job(
                kind=step.kind,
                inputs={role: str(self._outputs[n].path) for role, n in step.inputs.items()},
                options=step.options,
                output=str(output),
                memory_bytes=self._limits.memory_bytes
                or int(MEMORY_SHARE * machine_memory_bytes()),
                machine=self.toolchain.machine,
            )
            run_job(job, workspace, timeout_s=self._limits.timeout_s)
            if not (output / RESULT_FILE).is_file():
                raise StepError("its process ended well but left no result")
            return self._cache.keep(key, output)

    def _fail(self, step: Step, exc: PackagerError, seconds: float) -> None:
        self._record(step, "failed", seconds=seconds, reason=exc.message)
        if isinstance(exc, DiskFullError):
            raise exc
        if step.vital:
            if isinstance(exc, StepError):
                raise StepError(f"{step.name}: {exc.message}", remedy=exc.remedy) from exc
            raise exc
        self._reasons[step.name] = f"{step.name}: {exc.message}"

    def _record(self, step: Step, state: str, *, seconds: float = 0.0, reason: str = "") -> None:
        self.records.append(
            StepRecord(name=step.name, state=state, seconds=round(seconds, 3), reason=reason)
        )
        text = f": {reason}" if reason else f" ({seconds:.1f} s)" if state == "done" else ""
        self._progress(f"{step.name} {state}{text}")

    def _key(self, step: Step) -> str:
        inputs = {role: self._outputs[name].digest for role, name in step.inputs.items()}
        return sha256_hex(
            to_json([step.kind, step.options, inputs, msgspec.to_builtins(self.toolchain)])
        )
