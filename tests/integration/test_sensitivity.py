"""Repair of int8 on a model that plain int8 breaks, and on those that it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packager.runtimes.common.onnx_files import session_of
from packager.runtimes.onnxruntime.models import quantize_static
from packager.runtimes.onnxruntime.qdq import prepare
from packager.runtimes.onnxruntime.sensitivity import FoundRepair, Goal, Quality, groups_of, repair
from runtime_adapters.protocol import Tensor, Tensors
from tests.models import DIGITS, SATURATES, cifar_images, digits_data, hard_digits, trained
from wire.clock import SystemClock

OPTIONS: dict[str, Any] = {"activations": "uint8", "reduce_range": SATURATES, "samples": 64}
CLOCK = SystemClock()


class Case:
    """A model with its calibration, tuning and gate samples, which are disjoint."""

    def __init__(self, folder: Path) -> None:
        data = digits_data(folder)
        images, labels = data["evaluation"]["input"], data["evaluation"]["label"]
        half = len(labels) // 2
        self.calibration: Tensors = {"input": data["calibration"]["input"]}
        self.tuning: Tensors = {"input": images[:half]}
        self.labels: Tensor = labels[:half]
        self.gate = (images[half:], labels[half:])
        self.plain = DIGITS
        self.hard = folder / "hard.onnx"
        self.hard.write_bytes(hard_digits())

    def quality(self, answers: Tensors, indices: list[int]) -> float:
        scores = next(iter(answers.values()))
        return float(np.mean(scores.argmax(1) == self.labels[indices]))

    def accuracy(self, path: Path) -> float:
        images, labels = self.gate
        scores = session_of(path).run(None, {"input": images})[0]
        return float(np.mean(scores.argmax(1) == labels))

    def repaired(
        self, model: Path, goal: Goal, target: Path, *, quality: Quality | None = None
    ) -> FoundRepair:
        return repair(
            model, self.calibration, self.tuning, quality or self.quality, OPTIONS, goal, target,
            clock=CLOCK,
        )  # fmt: skip


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("sensitivity"))


def test_the_repair_gets_back_what_plain_int8_loses(case: Case, tmp_path: Path) -> None:
    ideal = case.accuracy(case.hard)
    assert ideal == case.accuracy(case.plain)
    quantize_static(case.hard, case.calibration, OPTIONS, tmp_path / "plain.onnx")
    assert case.accuracy(tmp_path / "plain.onnx") < 0.5 * ideal

    found = case.repaired(case.hard, Goal(retention=0.99), tmp_path / "repaired.onnx")
    assert found.reached
    assert case.accuracy(tmp_path / "repaired.onnx") >= 0.99 * ideal
    convolutions = [n.name for n in prepare(case.hard).graph.node if n.op_type == "Conv"]
    assert set(convolutions[1:3]) == set(found.excluded) & set(convolutions)
    assert found.before < 0.5 < found.after
    assert found.groups == 2
    assert found.trials <= len(found.ranking) + 5
    assert [blame.noise for blame in found.ranking] == sorted(
        (blame.noise for blame in found.ranking), reverse=True
    )
    sizes = [p.stat().st_size for p in (tmp_path / "repaired.onnx", case.hard)]
    assert sizes[0] < 0.6 * sizes[1]

    again = OPTIONS | {"exclude": list(found.excluded)}
    quantize_static(case.hard, case.calibration, again, tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "repaired.onnx").read_bytes()


def test_where_plain_int8_suffices_nothing_is_tried(case: Case, tmp_path: Path) -> None:
    found = case.repaired(case.plain, Goal(retention=0.95), tmp_path / "m.onnx")
    assert (found.reached, found.excluded, found.trials) == (True, (), 1)
    quantize_static(case.plain, case.calibration, OPTIONS, tmp_path / "plain.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == (tmp_path / "plain.onnx").read_bytes()


def test_a_spent_budget_ends_the_search_with_the_best_so_far(case: Case, tmp_path: Path) -> None:
    few = case.repaired(case.hard, Goal(retention=0.99, max_trials=4), tmp_path / "few.onnx")
    assert few.trials == 4
    assert not few.reached
    assert few.after == few.before
    late = case.repaired(case.hard, Goal(retention=0.99, max_seconds=0.0), tmp_path / "late.onnx")
    assert (late.trials, late.excluded) == (1, ())
    assert session_of(tmp_path / "late.onnx").get_inputs()[0].name == "input"


def test_a_goal_out_of_reach_leaves_no_more_than_half_in_float(case: Case, tmp_path: Path) -> None:
    asked: list[int] = []

    def never(answers: Tensors, indices: list[int]) -> float:
        asked.append(len(indices))
        return 1.0 if len(asked) == 1 else 0.5 * case.quality(answers, indices)

    found = case.repaired(case.hard, Goal(retention=1.0), tmp_path / "m.onnx", quality=never)
    assert not found.reached
    assert found.groups <= len(found.ranking) // 2
    assert found.after > found.before


def test_a_convolution_and_its_activation_are_one_group(case: Case) -> None:
    model = prepare(case.plain)
    kinds = {node.name: node.op_type for node in model.graph.node}
    groups = [tuple(kinds[name] for name in group.nodes) for group in groups_of(model)]
    assert groups.count(("Conv", "Relu")) == 4
    assert groups.count(("Conv",)) == 3
    assert groups.count(("Add", "Relu")) == 3
    names = [name for group in groups_of(model) for name in group.nodes]
    assert len(set(names)) == len(names)


def test_a_residual_network_is_repaired_to_a_smaller_error(tmp_path: Path) -> None:
    source, x = trained("cifar10/cifar_resnet20.onnx"), cifar_images("calib512", 192).x
    session = session_of(source)
    ideal = np.concatenate([session.run(None, {"input": row[None]})[0] for row in x[64:]])

    def closeness(answers: Tensors, indices: list[int]) -> float:
        error = next(iter(answers.values())) - ideal[indices]
        return 1.0 - float(np.sum(error**2) / np.sum(ideal[indices] ** 2))

    found = repair(
        source, {"input": x[:64]}, {"input": x[64:]}, closeness,
        OPTIONS, Goal(retention=0.9992, margin=0.0, ranking_samples=16), tmp_path / "m.onnx",
        clock=CLOCK,
    )  # fmt: skip
    assert found.before < 0.9992 <= found.after
    assert found.reached
    assert 0 < found.groups < len(found.ranking) / 2
    assert found.reference == pytest.approx(1.0)
