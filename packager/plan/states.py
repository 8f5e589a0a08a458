"""Declared states: which output of a model is fed back as which input at the next step.

Rules:
- A pair has one type and one shape, apart from sizes that only a request gives.
- At least one input is no state: it brings the steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from packager.errors import BuildError
from packager.plan.texts import text_inputs
from wire.package.tensors import TensorSpec

_REMEDY = "write --state INPUT=OUTPUT, such as --state h=hn"


def read_states(texts: Iterable[str]) -> dict[str, str]:
    """Return the pairs that were asked for.

    Args:
        texts: Each `INPUT=OUTPUT`.

    Returns:
        Input to output, in the given order.

    Raises:
        BuildError: A text is no pair, or names an input or output twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, separator, output = text.partition("=")
        if not (name and separator and output):
            raise BuildError(f"state {text[:80]!r} is no pair", remedy=_REMEDY)
        if name in found or output in found.values():
            raise BuildError(f"state {text[:80]!r} names an input or an output for the second time")
        found[name] = output
    return found


def check_states(
    states: Mapping[str, str],
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> None:
    """Refuse pairs that the model cannot feed back.

    Args:
        states: Input to output.
        inputs: The model's inputs.
        outputs: The model's outputs.

    Raises:
        BuildError: A name is unknown, a type or shape differs, every input is a state, or one
            takes texts.
    """
    texts = text_inputs(inputs)
    if states and texts:
        raise BuildError(
            f"input {texts[0]!r} takes texts, and a model with states has inputs of numbers alone",
            remedy="turn texts into numbers before the model, or build it without --state",
        )
    takes, gives = ({spec.name: spec for spec in specs} for specs in (inputs, outputs))
    for name, output in states.items():
        for what, asked, known in (("input", name, takes), ("output", output, gives)):
            if asked not in known:
                raise BuildError(
                    f"state {name}={output}: the model has no {what} {asked[:80]!r}",
                    remedy=f"its {what}s are {', '.join(known)[:200]}",
                )
        before, after = takes[name], gives[output]
        same = len(before.shape) == len(after.shape) and all(
            -1 in {one, other} or one == other
            for one, other in zip(before.shape, after.shape, strict=True)
        )
        if before.datatype != after.datatype or not same:
            raise BuildError(
                f"state {name}={output}: the input is {before.datatype} {list(before.shape)}, but "
                f"the output is {after.datatype} {list(after.shape)}",
                remedy="name an output of the input's type and shape",
            )
    if states and len(states) == len(takes):
        raise BuildError(
            "every input of the model is a state, so nothing brings the steps of a sequence",
            remedy="leave out one --state",
        )
