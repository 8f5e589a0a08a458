"""Runs requests together, or the samples of one request one by one. Runs in the worker process.

The worker tests whether it may join requests: now and then it runs a group both ways. Some models
answer a sample differently in a batch with others, for example if their quantization adapts to the
whole batch. A client must not get an answer that depends on another client's request, so the worker
then joins no more requests. Many models are no faster on a CPU with eight samples at once; joining
would then only make the first request wait for the last.

Rules:
- Only requests whose shapes are equal, except for the batch, are joined; each gets its own rows.
- Requests run one by one until a group whose requests differ has been tried: equal requests prove
  nothing.
- If a joined run fails, its requests run one by one. If all of them then succeed, the next answer
  gives the reason of the failure, which nothing else would report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import msgspec
import numpy as np

from runtime_adapters.batches import is_batch, no_answer, sample_by_sample
from runtime_adapters.errors import InferenceError
from runtime_adapters.protocol import Session, Tensor, Tensors
from wire.clock import Clock
from wire.package.tensors import TensorSpec

PAYS: Final = 0.9
"""Longest joined run, as a share of the time of separate runs: a smaller gain would not be worth
waiting for the rest of the group."""

GROUPS_BETWEEN_TRIALS: Final = 256
"""A trial takes about the time of one more group: in all, trials take half a percent."""

Request: TypeAlias = tuple[int, Tensors]
"""A request's place among those that came together, and its inputs."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run for one request."""

    place: int
    result: Tensors | Exception
    compute_s: float
    samples: int
    joined: int = 1


class Joiner:
    """Runs the requests of one session. Not for several threads.

    Args:
        session: Runs the model.
        inputs: The declared inputs.
        outputs: The declared outputs.
        clock: For measured times.
    """

    def __init__(
        self,
        session: Session,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        clock: Clock,
    ) -> None:
        self._session = session
        self._clock = clock
        self._batched = [spec.name for spec in inputs if is_batch(spec)]
        self._answers = all(is_batch(spec) for spec in outputs)
        self._may_join = self._answers and 0 < len(inputs) == len(self._batched)
        self._nothing = {spec.name: no_answer(spec) for spec in outputs if spec.datatype != "BYTES"}
        self._pays: dict[int, bool] = {}
        """Whether joining pays, by the bit length of the number of samples; only what was tried."""

        self._until_trial = 0
        self._fault = ""

    def take_fault(self) -> str:
        """Return why valid requests could not run together; empty if there is nothing new."""
        fault, self._fault = self._fault, ""
        return fault

    def run(
        self, requests: Sequence[Request], *, most_rows: int, stream: bool
    ) -> Iterator[list[Done]]:
        """Run requests, together where that is allowed and pays.

        Args:
            requests: Each with its place.
            most_rows: Samples that may be joined.
            stream: Whether to run the samples of each request one at a time.

        Yields:
            The results of each run of the model.
        """
        if stream or most_rows == 1 or len(requests) == 1 or not self._may_join:
            yield from (
                [self._by_itself(place, inputs, stream=stream)] for place, inputs in requests
            )
            return
        for group in self._groups(requests, most_rows):
            yield from self._group(group)

    def _groups(self, requests: Iterable[Request], most_rows: int) -> list[list[Request]]:
        """Group requests that can be joined, in the order of the first request of each group."""
        groups: list[list[Request]] = []
        open_groups: dict[tuple[object, ...], tuple[list[Request], int]] = {}
        for place, inputs in requests:
            sizes = {len(tensor) for tensor in inputs.values()}
            rows = max(sizes)
            shapes = tuple(inputs[name].shape[1:] for name in self._batched)
            # The session refuses a request whose batches have unequal sizes.
            key = (shapes, place if len(sizes) > 1 else None)
            group, before = open_groups.get(key, ([], most_rows))
            if before + rows > most_rows:
                group, before = [], 0
                groups.append(group)
            group.append((place, inputs))
            open_groups[key] = (group, before + rows)
        return groups

    def _group(self, group: list[Request]) -> Iterator[list[Done]]:
        rows = sum(_rows(inputs) for _, inputs in group)
        pays = self._pays.get(rows.bit_length())
        self._until_trial -= 1
        tries = self._may_join and len(group) > 1 and (pays is None or self._until_trial <= 0)
        if tries and _differ(group):
            yield from self._trial(group, rows)
        elif self._may_join and len(group) > 1 and pays:
            done = self._together(group)
            if isinstance(done, Exception):
                fault, done = done, [self._by_itself(place, inputs) for place, inputs in group]
                self._keep_apart(rows, done, fault)
            yield done
        else:
            yield from ([self._by_itself(place, inputs)] for place, inputs in group)

    def _trial(self, group: list[Request], rows: int) -> Iterator[list[Done]]:
        """Run a group both ways, and remember whether the results agree and which way is faster."""
        self._until_trial = GROUPS_BETWEEN_TRIALS
        apart: list[Done] = []
        for place, inputs in group:
            apart.append(self._by_itself(place, inputs))
            yield apart[-1:]
        together = self._together(group)
        if isinstance(together, Exception) or _failed(apart):
            self._keep_apart(rows, apart, together)
            return
        self._may_join = all(map(_agree, apart, together))
        took_s = sum(done.compute_s for done in apart)
        self._pays[rows.bit_length()] = sum(d.compute_s for d in together) <= PAYS * took_s

    def _keep_apart(self, rows: int, apart: Sequence[Done], together: object) -> None:
        self._pays[rows.bit_length()] = False
        if isinstance(together, Exception) and not _failed(apart):
            self._fault = str(together) or type(together).__name__

    def _by_itself(self, place: int, inputs: Tensors, *, stream: bool = False) -> Done:
        start_s = self._clock.monotonic_s()
        result: Tensors | Exception
        try:
            if stream and self._batched and self._answers:
                result = sample_by_sample(self._session.infer, inputs, self._batched, self._nothing)
            else:
                result = self._session.infer(inputs)
        except Exception as exc:  # noqa: BLE001 - a request must never end the worker
            result = exc
        return Done(
            place=place,
            result=result,
            compute_s=self._clock.monotonic_s() - start_s,
            samples=self._samples(inputs),
        )

    def _samples(self, inputs: Tensors) -> int:
        """Return how many samples a request holds; an input without batches holds one."""
        shapes = [inputs[name].shape for name in self._batched if name in inputs]
        return max((shape[0] for shape in shapes if shape), default=1)

    def _together(self, group: list[Request]) -> list[Done] | Exception:
        """Run a group at once, or return why that is not possible."""
        start_s = self._clock.monotonic_s()
        sizes = [_rows(inputs) for _, inputs in group]
        try:
            outputs = self._session.infer(
                {
                    name: np.concatenate([inputs[name] for _, inputs in group])
                    for name in self._batched
                }
            )
        except Exception as exc:  # noqa: BLE001 - a request must never end the worker
            return exc
        for name, tensor in outputs.items():
            if tensor.shape[:1] != (sum(sizes),):
                return InferenceError(
                    f"output {name!r} of {sum(sizes)} samples has shape {tensor.shape}"
                )
        share_s = (self._clock.monotonic_s() - start_s) / sum(sizes)
        ends = np.cumsum(sizes).tolist()
        return [
            Done(
                place=place,
                result={name: tensor[end - size : end] for name, tensor in outputs.items()},
                compute_s=share_s * size,
                samples=size,
                joined=len(group),
            )
            for (place, _), size, end in zip(group, sizes, ends, strict=True)
        ]


def _rows(inputs: Tensors) -> int:
    return len(next(iter(inputs.values())))


def _failed(done: Iterable[Done]) -> bool:
    return any(isinstance(one.result, Exception) for one in done)


def _differ(group: Sequence[Request]) -> bool:
    """Tell whether the requests of a group differ: equal requests prove nothing."""
    (_, first), *others = group
    return any(
        not np.array_equal(tensor, inputs[name])
        for _, inputs in others
        for name, tensor in first.items()
    )


def _agree(apart: Done, together: Done) -> bool:
    if isinstance(apart.result, Exception) or isinstance(together.result, Exception):
        return False
    other = together.result
    return all(_close(tensor, other[name]) for name, tensor in apart.result.items())


def _close(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors differ by no more than another order of additions explains."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.kind != "f":
        return np.array_equal(one, other)
    tolerance = float(np.sqrt(np.finfo(one.dtype).eps))
    finite = np.abs(one[np.isfinite(one)])
    scale = float(finite.max()) if finite.size else 0.0
    return np.allclose(one, other, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
