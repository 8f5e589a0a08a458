"""The wheel holds what it should, and the agent runs from base dependencies alone."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from wire.version import VERSION

ROOT = Path(__file__).parents[2]
OURS = {"wire", "runtime_adapters", "telemetry", "agent", "packager", "controller"}
HEAVY = (
    "numpy", "onnxruntime", "openvino", "onnx", "nncf", "sqlalchemy", "fastapi", "pydantic",
    "typer", "rich", "runtime_adapters.protocol", "runtime_adapters.registry", "packager",
    "controller", "grpc", "google.protobuf",
)  # fmt: skip


@pytest.fixture(scope="session")
def device(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean environment with our wheel and the base dependencies, and nothing else.

    The dependencies are copied from this environment, so that no index is asked.
    """
    home = tmp_path_factory.mktemp("device")
    venv.create(home, with_pip=False, symlinks=True)
    (site,) = (home / "lib").glob("python*/site-packages")
    for name in base_distributions():
        distribution = importlib.metadata.distribution(name)
        for file in distribution.files or []:
            source = Path(str(distribution.locate_file(file)))
            if ".." not in file.parts and source.is_file():
                target = site / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return home


def base_distributions() -> set[str]:
    """Return the closure of the dependencies without extras."""
    found: set[str] = set()
    todo = [r for r in importlib.metadata.requires("edgefleet") or [] if "extra ==" not in r]
    while todo:
        name = re.split(r"[^A-Za-z0-9._-]", todo.pop(), maxsplit=1)[0]
        if name.lower() in found:
            continue
        found.add(name.lower())
        needs = importlib.metadata.requires(name) or []
        todo.extend(
            need
            for need in needs
            if "extra ==" not in need and 'implementation_name == "PyPy"' not in need
        )
    return found


def run(device: Path, *code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [device / "bin" / "python", "-P", "-W", "error", *code],
        capture_output=True, text=True, check=False, cwd=device, env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip


def test_the_wheel_holds_our_packages_and_their_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names if not name.startswith("edgefleet-")}
    assert tops == OURS
    assert any(re.fullmatch(r"packager/profiles/.+\.toml", name) for name in names)
    data = {
        "packager/tools/environments/onnx2tf.lock",
        "packager/runtimes/tvm/runner.c",
        "packager/runtimes/tvm/driver.c",
        "packager/report/templates/report.html.j2",
        "agent/replay/shipped_traces/hot-afternoon.jsonl",
        "agent/grpc_endpoint/protocol/descriptors.binpb",
        "agent/grpc_endpoint/protocol/grpc_service.proto",  # and its licence with it
    }
    assert data <= set(names)
    assert any(name.startswith("controller/store/migrations/versions/0001") for name in names)


def test_our_names_belong_to_us_alone() -> None:
    # An unrelated wheel that ships a package of one of these names would overwrite ours silently.
    owners = importlib.metadata.packages_distributions()
    for name in OURS:
        assert set(owners.get(name, ["edgefleet"])) == {"edgefleet"}


def test_the_base_dependencies_are_few() -> None:
    assert base_distributions() == {
        "msgspec", "paho-mqtt", "pynacl", "cffi", "pycparser",
        "tuf", "securesystemslib", "urllib3",
    }  # fmt: skip


def test_the_agent_starts_with_base_dependencies_alone(device: Path) -> None:
    done = run(device, "-m", "agent", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "run" in done.stdout


def test_the_supervisor_imports_neither_numpy_nor_a_runtime() -> None:
    # In this environment everything is installed, so whatever is imported is seen.
    code = f"""
import sys
import agent.cli.main, agent.app.daemon, agent.serve.http.endpoint
loaded = sorted(name for name in {HEAVY!r} if name in sys.modules)
print(loaded)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_every_supervisor_module_imports_without_extras(device: Path) -> None:
    code = """
import importlib, pkgutil, sys
import agent, telemetry, wire
for package in (wire, telemetry, agent):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        elsewhere = (
            "agent.grpc_endpoint.messages", "agent.grpc_endpoint.server",
            "agent.grpc_endpoint.service", "agent.measure.child", "agent.serve.worker.",
            "telemetry.server.",
            "wire.delta.encode", "wire.delta.numpy_steps", "wire.delta.pairing",
            "wire.delta.planning", "wire.delta.tensors", "wire.delta.ways",
        )
        if not module.name.startswith(elsewhere) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
print("numpy" in sys.modules)
"""
    done = run(device, "-c", code)
    assert (done.stdout.strip(), done.stderr) == ("False", "")


def test_the_version_that_is_told_is_that_of_the_package() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert declared == VERSION
