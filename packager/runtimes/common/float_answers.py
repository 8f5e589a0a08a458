"""The float model's answers to some samples, which a repair compares with."""

from __future__ import annotations

from pathlib import Path

from packager.runtimes.common.onnx_files import ranks_in, session_of
from packager.samples.store import joined, sample
from packager.tools.quiet import tool
from runtime_adapters.protocol import Tensors
from runtime_adapters.runtimes import ONNXRUNTIME


def float_answers(model: Path, inputs: Tensors, names: list[str]) -> Tensors:
    """Run an ONNX model on samples, one after the other.

    Args:
        model: The file.
        inputs: Samples by input.
        names: Names of the outputs.

    Returns:
        Answers by output, samples along the first axis.

    Raises:
        StepError: ONNX Runtime cannot run the model.
    """
    total = len(next(iter(inputs.values())))
    with tool(ONNXRUNTIME.title):
        session = session_of(model)
        ranks = ranks_in(session)
        rows = [session.run(names, sample(inputs, index, ranks)) for index in range(total)]
    return {name: joined([row[position] for row in rows]) for position, name in enumerate(names)}
