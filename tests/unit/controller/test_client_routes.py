"""Whatever the API can be asked, the Python client has a method for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from controller import client
from controller.domain.roles import RIGHTS

STREAMED = {
    "GET /v1/blobs/{}",
    "HEAD /v1/blobs/{}",
    "PUT /v1/blobs/{}",
    "GET /v1/telemetry/export/measurements",
    "GET /v1/telemetry/export/events",
}
"""Files and rows without end: `ApiClient` has methods of its own for them."""

ORDERS = {f"POST /v1/rollouts/{{}}/{name}" for name in ("pause", "resume", "approve", "abort",
                                                        "rollback", "retry")}  # fmt: skip
"""One method asks for each of them by its name."""


def plain(path: str) -> str:
    """Return a path without the names of its parameters, and without its query."""
    return re.sub(r"{[^}]*}", "{}", path.partition("?")[0]).replace("{}{}", "{}")


def text_of(node: ast.expr, local: dict[str, ast.expr]) -> str:
    """Return a path that is written in place, or in the line before."""
    if isinstance(node, ast.Name):
        return text_of(local[node.id], local) if node.id in local else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
        )
    return str(node.value) if isinstance(node, ast.Constant) else ""


def asked(source: str) -> Iterator[str]:
    """Yield the routes that a module of the client asks for."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        local: dict[str, ast.expr] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                pairs = [(node.targets[0], node.value)]
                if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(node.targets[0].elts, node.value.elts, strict=True))
                local |= {name.id: value for name, value in pairs if isinstance(name, ast.Name)}
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            texts = [text_of(argument, local) for argument in node.args]
            path = next((text for text in texts if text.startswith("/v1/")), "")
            if path and name in {"get", "get_page", "Listing"}:
                yield f"GET {plain(path)}"
            elif path and name == "send":
                yield f"{texts[0]} {plain(path)}"


def test_each_route_of_the_api_has_a_method() -> None:
    folder = Path(client.__file__).parent
    found = {route for file in folder.glob("*.py") for route in asked(file.read_text())}
    routes = {plain(route) for route in RIGHTS if " /v1/" in route}
    assert found - routes == {"POST /v1/rollouts/{}/{}"}
    assert routes - found - STREAMED == ORDERS
