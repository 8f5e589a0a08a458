"""Runs the steps of a plan: takes each from the cache if it can, otherwise runs it by an executor.

Rules:
- A step's key is the digest of its kind, options, inputs, tools, code and machine; equal keys mean
  equal output. The cache also keeps measured figures, so a second build gives the same bytes.
- A step starts as soon as its inputs are ready. A step that measures waits until no other step
  runs.
- When a step fails, the steps that depend on it are skipped; when a vital step fails, or the cache
  cannot be used, the build ends.
- After a killed build, the next build runs only the steps that had not finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from pathlib import Path
from typing import TypeVar

import msgspec

from packager.errors import CacheError, StepError
from packager.plan.values import Step
from packager.run.cache import Cache, Entry
from packager.run.job import FAILURE_FILE, RESULT_FILE, Failure
from packager.run.process import (
    Outcome,
    StepLimits,
    Task,
    carry_out,
    end_running_jobs,
    error_of,
)
from wire.codec import from_json, sha256_hex, to_json

Progress = Callable[[str], None]
T = TypeVar("T")


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A file that the user gave."""

    path: Path
    sha256: str


class Toolchain(msgspec.Struct, frozen=True, kw_only=True):
    """What a step's output depends on in addition to its inputs."""

    tools: dict[str, str]
    code: str
    machine: str


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a step, for the report."""

    name: str
    state: str
    """`cached`, `done`, `failed` or `skipped`."""

    seconds: float = 0.0
    reason: str = ""


class _Output(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    digest: str
    files: dict[str, str]


class Pipeline:
    """One run over the steps of a build.

    Args:
        sources: The user's files, by the names that steps use.
        cache: Where outputs are kept.
        toolchain: What outputs depend on.
        limits: What a step may use.
        executor: Runs the steps that do not measure.
        jobs: How many of them run at once on this machine.
        progress: Called with one line for each step.
    """

    def __init__(
        self,
        sources: dict[str, Source],
        *,
        cache: Cache,
        toolchain: Toolchain,
        limits: StepLimits,
        executor: Executor,
        jobs: int = 1,
        progress: Progress,
    ) -> None:
        self._sources = sources
        self._outputs = {
            name: _Output(path=source.path, digest=source.sha256, files={})
            for name, source in sources.items()
        }
        self._cache = cache
        self.toolchain = toolchain
        self._limits = limits
        self._executor = executor
        self._jobs = jobs
        self._progress = progress
        self._alone = False
        self._more_digests: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self.records: list[StepRecord] = []

    def run(self, steps: Iterable[Step]) -> None:
        """Run steps; those that do not depend on each other run at the same time.

        Args:
            steps: The steps, each after those that it needs.

        Raises:
            PackagerError: A vital step failed.
        """
        waiting = list(steps)
        names = [step.name for step in waiting]
        running: dict[Future[Outcome], Step] = {}
        try:
            while waiting or running:
                waiting = self._start(waiting, running)
                if running:
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        self._settle(running.pop(future), future.result())
                elif waiting:
                    step = waiting.pop(0)  # only steps that measure are left, and no step runs now
                    self._progress(f"{step.name} ...")
                    self._settle(step, carry_out(self._task(step)))
        except BaseException:
            for future in running:
                future.cancel()
            end_running_jobs()
            raise
        self.records.sort(key=lambda r: names.index(r.name) if r.name in names else -1)

    def one_at_a_time(self) -> None:
        """From now on, start no step while another runs."""
        self._alone = True
        self._jobs = 1

    def source_digests(self) -> dict[str, str]:
        """Return the SHA-256 of each file that the user gave, by its role."""
        return {name: source.sha256 for name, source in self._sources.items()} | self._more_digests

    def name_digests(self, digests: dict[str, str]) -> None:
        """Let the provenance name further files, by role: those that the model's file refers to."""
        self._more_digests = digests

    def folder(self, step: str) -> Path:
        """Return the output folder of a step that succeeded."""
        return self._outputs[step].path

    def files_digest(self, step: str, files: tuple[str, ...]) -> str:
        """Return the digest of some files of a step's output."""
        return sha256_hex(to_json(list(self.file_digests(step, files).items())))

    def file_digests(self, step: str, files: tuple[str, ...]) -> dict[str, str]:
        """Return the SHA-256 of some files of a step's output, as its later steps had them."""
        known = self._outputs[step].files
        return {file: known[file] for file in files}

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

    def has(self, step: str) -> bool:
        """Tell whether a step was run and succeeded."""
        return step in self._outputs

    def lost(self, *steps: str) -> str | None:
        """Return why one of some steps has no output; None when all have one."""
        return next((self._reasons[step] for step in steps if step in self._reasons), None)

    def skip(self, step: Step, reason: str) -> None:
        """Skip a step, and with it the steps that depend on it.

        Args:
            step: A step that has not been run.
            reason: Why.
        """
        self._reasons[step.name] = reason
        self._record(step, "skipped", reason=reason)

    def seed(self, step: Step, result: object) -> None:
        """Store a known result of a step, so that the step is not run.

        Args:
            step: A step whose inputs exist.
            result: The result that the step would have.
        """
        with self._cache.workspace(step.name) as workspace:
            output = workspace / "output"
            output.mkdir()
            (output / RESULT_FILE).write_bytes(to_json(result))
            self._cache.keep(self._key(step), output)

    def forget(self, steps: Iterable[Step]) -> None:
        """Remove what the cache has of steps, so that they are run again.

        Args:
            steps: Steps that have not been run; those whose inputs do not exist stay as they are.
        """
        for step in steps:
            if all(name in self._outputs for name in step.inputs.values()):
                self._cache.remove(self._key(step))

    def _start(self, waiting: list[Step], running: dict[Future[Outcome], Step]) -> list[Step]:
        """Start the steps that can start now, and return the others."""
        left: list[Step] = []
        busy = {self._key(step) for step in running.values()}
        for step in waiting:
            blocked = self.lost(*step.inputs.values())
            if blocked is not None:
                self._reasons[step.name] = blocked
                self._record(step, "skipped", reason=blocked)
                continue
            if not all(name in self._outputs for name in step.inputs.values()):
                left.append(step)
                continue
            key = self._key(step)
            found = None if key in busy else self._cache.find(key)
            if found is not None:
                self._take_cached(step, *found)
            elif step.quiet or key in busy or (self._alone and running):
                # Of two steps with one key, the second uses the cache.
                left.append(step)
            else:
                self._progress(f"{step.name} ...")
                running[self._executor.submit(carry_out, self._task(step))] = step
                busy.add(key)
        return left

    def _settle(self, step: Step, outcome: Outcome) -> None:
        if outcome.failure is not None:
            self._fail(step, outcome.failure, outcome.seconds)
            return
        found = self._cache.find(self._key(step))
        if found is None:
            reason = "its output is not in the cache of this machine"
            self._fail(step, Failure(code=StepError.code, message=reason), outcome.seconds)
            return
        self._take(step, *found)
        self._record(step, "done", seconds=outcome.seconds)

    def _take(self, step: Step, folder: Path, entry: Entry) -> None:
        self._outputs[step.name] = _Output(path=folder, digest=entry.digest, files=entry.files)

    def _take_cached(self, step: Step, folder: Path, entry: Entry) -> None:
        if FAILURE_FILE in entry.files:
            self._fail(step, from_json((folder / FAILURE_FILE).read_bytes(), Failure), 0.0)
        else:
            self._take(step, folder, entry)
            self._record(step, "cached")

    def _fail(self, step: Step, failure: Failure, seconds: float) -> None:
        self._record(step, "failed", seconds=seconds, reason=failure.message)
        error = error_of(failure)
        if isinstance(error, CacheError):
            raise error
        if step.vital:
            if isinstance(error, StepError):
                raise StepError(f"{step.name}: {error.message}", remedy=error.remedy)
            raise error
        self._reasons[step.name] = f"{step.name}: {failure.message}"

    def _record(self, step: Step, state: str, *, seconds: float = 0.0, reason: str = "") -> None:
        self.records.append(
            StepRecord(name=step.name, state=state, seconds=round(seconds, 3), reason=reason)
        )
        text = f": {reason}" if reason else f" ({seconds:.1f} s)" if state == "done" else ""
        self._progress(f"{step.name} {state}{text}")

    def _task(self, step: Step) -> Task:
        return Task(
            name=step.name,
            key=self._key(step),
            cache=str(self._cache.root),
            kind=step.kind,
            inputs={role: str(self._outputs[name].path) for role, name in step.inputs.items()},
            options=step.options,
            machine=self.toolchain.machine,
            limits=self._limits,
            share=1 if step.quiet else self._jobs,
        )

    def _key(self, step: Step) -> str:
        inputs = {role: self._outputs[name].digest for role, name in step.inputs.items()}
        known = self.toolchain
        tools = {name: known.tools[name] for name in step.tools if name in known.tools}
        return sha256_hex(
            to_json([step.kind, step.options, inputs, tools, known.code, known.machine])
        )
