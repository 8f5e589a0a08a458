"""Bodies of inference requests that are wrong in one way each, made by a random generator.

The endpoint behind serves `tests.simulators.rig`'s model: input `x`, output `y`, FP32, [-1, 4].

Rules:
- Each function breaks one thing of a good request, and says so by its name.
- What a function makes is always wrong, but for those in `PERHAPS`, which may happen to be right.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

RAW = bytes(16)
NASTY_NAMES = (
    "../../etc/passwd", "..%2f..%2fetc", "/dev/zero", "C:\\nul", "x\x00", "\x00", "X", "x ", "",
    "x" * 100_000, "\u202ex", "${jndi:ldap://x}", "'; drop table x; --", "y", "x/../x", "\ud800",
)  # fmt: skip
NASTY_NUMBERS: tuple[Any, ...] = (
    -1, 0, 2, 5, 2**31, 2**32, 2**63, 2**64, -(2**63), 10**30, 1.5, -0.0, 1e300,
    True, None, "4", [4], {}, "-1",
)  # fmt: skip
Body: TypeAlias = tuple[bytes, int | None]
"""JSON and raw bytes, and the length of the JSON where something follows it."""


def good(rng: random.Random, **changes: Any) -> dict[str, Any]:
    """Return a good request, raw or not, with changes to its tensor."""
    tensor: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
    if rng.random() < 0.5:
        tensor["data"] = [1, 2.5, -3, 4]
    else:
        tensor["parameters"] = {"binary_data_size": 16}
    return {"inputs": [tensor | changes]}


def packed(document: Any) -> Body:
    """Return a request as bytes, with raw ones behind where its tensors say so."""
    head = json.dumps(document).encode()
    sized = '"binary_data_size"' in head.decode()
    return (head + RAW, len(head)) if sized else (head, None)


def raw_size(rng: random.Random) -> Body:
    size = rng.choice([*NASTY_NUMBERS, 15, 17, 8])
    raw = bytes(rng.choice([0, 15, 16, 17, 32]))
    if type(size) is int and size == len(raw) == len(RAW):
        raw += b"x"
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
    head = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": size}}]}).encode()
    return head + raw, len(head)


def raw_and_json(rng: random.Random) -> Body:
    return packed(good(rng, data=[1, 2, 3, 4], parameters={"binary_data_size": 16}))


def shape(rng: random.Random) -> Body:
    shape: Any = [rng.choice(NASTY_NUMBERS), rng.choice(NASTY_NUMBERS)]
    return packed(good(rng, shape=rng.choice([shape, shape[:1], [1, 4, 1], [], [1] * 5000, "1,4"])))


def huge_shape(rng: random.Random) -> Body:
    rows = rng.choice([2**20, 2**30, 2**31 - 1, 2**40])
    if rng.random() < 0.5:
        size = rows * 16
        return packed(good(rng, shape=[rows, 4], parameters={"binary_data_size": size}))
    return packed(good(rng, shape=[rows, 4]))


def datatype(rng: random.Random) -> Body:
    names = ("FP64", "FP16", "INT32", "BYTES", "BOOL", "BF16", "fp32", "float32", "", "F" * 9999)
    return packed(good(rng, datatype=rng.choice([*names, None, 1, ["FP32"]])))


def tensor_name(rng: random.Random) -> Body:
    return packed(good(rng, name=rng.choice([*NASTY_NAMES, None, 1, ["x"]])))


def tensors(rng: random.Random) -> Body:
    one = good(rng)["inputs"][0]
    wrong: list[Any] = [[], [one, one], [one] * 500, None, {}, "x", [None], [[]], one, [one, {}]]
    return packed({"inputs": rng.choice(wrong)})


def request_id(rng: random.Random) -> Body:
    return packed(good(rng) | {"id": rng.choice(["x" * 1025, "\u00e9" * 9999, 1, None, [], {}])})


def values(rng: random.Random) -> Body:
    wrong: list[Any] = [
        [1, 2, 3], [1, 2, 3, 4, 5], [], [[1, 2], [3, 4]], [[1, 2, 3, 4], [1, 2, 3, 4]], [[]],
        [[1, 2, 3], 4], [1, 2, 3, None], [1, 2, 3, "4"], [1, 2, 3, True], [1, 2, 3, {}], None,
        "AAAA", {"0": 1}, 1, [1, 2, 3, 1e39], [1, 2, 3, 10**400], [1, 2, 3, -1e300],
        ["x" * 10_000] * 4, [0] * 20_000,
    ]  # fmt: skip
    return packed(good(rng, parameters={}, data=rng.choice(wrong)))


def literal(rng: random.Random) -> Body:
    """Numbers and texts that are no JSON."""
    wrong = (
        "NaN", "Infinity", "-Infinity", "nan", "1e999", "-1e999", "1" * 5000, "0x1", "01", "+1",
        ".5", "1.", "1_0", "1,", "'1'", "\\u0031", '"\\ud800"', '"\x01"', "//", "/**/1", "1 2",
    )  # fmt: skip
    text = json.dumps(good(rng, parameters={}, data=["?", 2, 3, 4]))
    return text.replace('"?"', rng.choice(wrong)).encode(), None


def nesting(rng: random.Random) -> Body:
    depth = rng.choice([3, 100, 1000, 10_000, 100_000])
    opening, closing = rng.choice([("[", "]"), ('{"a":', "}")])
    deep = opening * depth + "1" + closing * rng.choice([depth, 0, depth + 1])
    text = json.dumps(good(rng, parameters={}, data=["?"]))
    return text.replace('["?"]', deep).encode(), None


def outputs(rng: random.Random) -> Body:
    wrong: list[Any] = [
        [{"name": "z"}], [{"name": "y"}] * 2, [{}], [None], "y", {"name": "y"}, [{"name": 1}],
        [{"name": rng.choice(NASTY_NAMES[:8])}],
        [{"name": "y", "parameters": {"binary_data": rng.choice([1, "true", None, []])}}],
        [{"name": "y", "parameters": {"classification": rng.choice([-1, "x", 1.5, []])}}],
    ]  # fmt: skip
    return packed(good(rng) | {"outputs": rng.choice(wrong)})


def parameters(rng: random.Random) -> Body:
    wrong: list[Any] = [
        {"binary_data_output": rng.choice([1, "true", None, [], 1.0])},
        {"priority": rng.choice([-1, 1.5, "1", True, [], 2**80])},
        {"timeout": rng.choice([-1, 1.5, "1", True, [], 2**80])},
        [], "x", 1,
    ]  # fmt: skip
    return packed(good(rng) | {"parameters": rng.choice(wrong)})


def twice(rng: random.Random) -> Body:
    """Keys that occur twice, where the last one is wrong."""
    text = json.dumps(good(rng, parameters={}, data=[1, 2, 3, 4]))
    key, wrong = rng.choice(
        [("inputs", "[]"), ("inputs", "null"), ("id", "1"), ("parameters", "[]"), ("outputs", "1")]
    )
    return f'{{"{key}": [], {text[1:-1]}, "{key}": {wrong}}}'.encode(), None


def utf_8(rng: random.Random) -> Body:
    text = json.dumps(good(rng, parameters={}, data=[1, 2, 3, 4])).encode()
    wrong = rng.choice([b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\x80"])
    place = rng.choice([b'"x"', b'"FP32"', b'"name"'])
    return text.replace(place, place[:2] + wrong + place[2:]), None


def encoding(rng: random.Random) -> Body:
    """JSON in another encoding than UTF-8, or behind a byte order mark."""
    text = json.dumps(good(rng, parameters={}, data=[1, 2, 3, 4]))
    return text.encode(rng.choice(["utf-16", "utf-32", "utf-16-le", "utf-8-sig"])), None


def cut(rng: random.Random) -> Body:
    text = json.dumps(good(rng, parameters={}, data=[1, 2, 3, 4])).encode()
    return text[: rng.randrange(len(text))], None


def no_request(rng: random.Random) -> Body:
    return packed(_any(rng, 4))


def noise(rng: random.Random) -> Body:
    return bytes(rng.randrange(256) for _ in range(rng.randrange(200))), None


def damaged(rng: random.Random) -> Body:
    """A good request with some bytes changed, which may do no harm."""
    body, length = packed(good(rng))
    content = bytearray(body)
    for _ in range(rng.randrange(1, 4)):
        content[rng.randrange(len(content))] = rng.choice(b'\x00\xff"[]{},:0-9 e')
    return bytes(content), length


def _any(rng: random.Random, depth: int) -> Any:
    """Return any JSON value that is no request."""
    kind = rng.randrange(6 if depth else 4)
    if kind == 4:
        return [_any(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 5:
        keys = rng.sample(["inputs", "outputs", "id", "parameters", "name", "x"], rng.randrange(4))
        return {key: _any(rng, depth - 1) for key in keys}
    return rng.choice([None, True, 0, -1.5, 2**70, "x", "inputs", ""])


WRONG: Mapping[str, Callable[[random.Random], Body]] = {
    make.__name__.replace("_", " "): make
    for make in (
        raw_size, raw_and_json, shape, huge_shape, datatype, tensor_name, tensors, request_id,
        values, literal, nesting, outputs, parameters, twice, utf_8, encoding, cut, no_request,
        noise,
    )
}  # fmt: skip
PERHAPS: Mapping[str, Callable[[random.Random], Body]] = {"damaged": damaged}
