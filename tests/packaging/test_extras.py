"""Each extra alone, in an environment of its own: its commands work, others name what is missing.

An environment has what the extra's metadata brings and nothing else, so what an extra forgets to
bring is missing there, as it would be for who installs it.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from controller.metadata.checks import check
from controller.metadata.edit import put, renewed, with_keys
from controller.metadata.signing import signed
from packager.package.signers import generate_pem, open_signer
from tests.simulators.installed_extras import NotInstalledError, declared_extras, install
from tests.simulators.packages import TRUST
from tests.simulators.patience import PATIENCE_S
from tests.simulators.repository import Repository
from wire.codec import to_json
from wire.metadata import MetadataFiles
from wire.trust.roles import ROOT, TARGETS

Environment = Callable[..., Path]
ALL = ("onnxruntime", "openvino", "litert", "tvm", "iree")
BUILD = ("--float-only", "--min-runs", "1", "--min-duration-s", "0", "--metric", "cosine")
ESTIMATOR = """\
import numpy
from sklearn.linear_model import LogisticRegression

def made():
    values = numpy.random.default_rng(0).standard_normal((40, 4))
    return LogisticRegression().fit(values, values[:, 0] > 0)
"""
MODULE = """\
import torch

def made():
    return torch.nn.Linear(4, 2), torch.zeros(1, 4)
"""
EVERY_MODULE = """\
import importlib, pkgutil
import controller, telemetry
modules = [
    module.name
    for package in (controller, telemetry)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if "migrations" not in module.name and not module.name.endswith("__main__")
    # Imported on first use: it needs the extra `plots`.
    and module.name != "controller.cli.picture"
]
for name in modules:
    importlib.import_module(name)
print("controller.api.app" in modules)
"""


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return what makes an environment with some extras, each once."""
    made: dict[tuple[str, ...], Path] = {}

    def make(*extras: str) -> Path:
        if extras not in made:
            folder = tmp_path_factory.mktemp("-".join(("with", *extras)))
            try:
                made[extras] = install(wheel, folder, *extras)
            except NotInstalledError as exc:
                pytest.skip(str(exc))
        return made[extras]

    return make


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small model, samples, a profile of all runtimes, and a trust root."""
    folder = tmp_path_factory.mktemp("work")
    random = np.random.default_rng(0)
    weights = random.standard_normal((4, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(folder / "small.onnx"))
    np.savez(folder / "samples.npz", x=random.standard_normal((40, 4)).astype(np.float32))
    for name, runtimes in (("box", ALL), ("plain", ALL[:1])):
        (folder / f"{name}.toml").write_text(
            f'name = "{name}"\narchitecture = "{os.uname().machine}"\ncpu_count = 1\n'
            "memory_bytes = 2147483648\nstorage_bytes = 1073741824\n"
            'isa_features = ["avx2", "fma", "sse4_2"]\n'
            f"runtimes = {json.dumps(runtimes)}\n"
        )
    (folder / "trust.json").write_bytes(to_json(TRUST))
    (folder / "estimator.py").write_text(ESTIMATOR)
    (folder / "module.py").write_text(MODULE)
    return folder


def run(work: Path, program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # What this user has installed for himself must not be found, nor what he has cached.
    env = {"PATH": "/usr/bin:/bin", "HOME": str(work), "PYTHONNOUSERSITE": "1"}
    return subprocess.run(
        [program, *arguments],
        capture_output=True, text=True, check=False, cwd=work, timeout=2 * PATIENCE_S,
        env=env | {"PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip


def refused(done: subprocess.CompletedProcess[str], extra: str) -> bool:
    """Tell whether a command names, in one line, an extra that would bring what it needs."""
    one_line = done.stderr.count("\n") == 1 and done.stderr.startswith("fleet: ")
    return done.returncode == 2 and one_line and f"'edgefleet[{extra}]'" in done.stderr


def plan(work: Path, programs: Path, *arguments: str) -> set[str]:
    """Return the runtimes of the candidates that `fleet build --dry-run` plans."""
    done = run(
        work, programs / "fleet", "build", *arguments, "-p", "box.toml",
        "--evaluation", "samples.npz", *BUILD, "--dry-run", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {candidate["info"]["runtime"] for candidate in json.loads(done.stdout)["candidates"]}


def test_every_extra_has_a_test(wheel: Path) -> None:
    text = Path(__file__).read_text()
    assert [extra for extra in declared_extras(wheel) if f'"{extra}"' not in text] == []


@pytest.mark.thorough
def test_keys_that_lie_elsewhere_name_the_extra_that_they_need(
    environment: Environment, work: Path
) -> None:
    programs = environment("controller")
    for where, extra in (
        ("hsm:2", "hsm"),
        ("awskms:key", "awskms"),
        ("gcpkms:key", "gcpkms"),
        ("azurekms:vault/key", "azurekms"),
        ("hv:key", "vault"),
    ):
        assert refused(run(work, programs / "fleet", "key", "show", where), extra), where
    # With it, a token is looked for; the services would be asked over the network.
    done = run(work, environment("controller", "hsm") / "fleet", "key", "show", "hsm:2")
    assert (done.returncode, "PYKCS11LIB" in done.stderr) == (2, True)


def test_metadata_of_other_keys_than_ed25519_needs_an_extra_on_the_device(
    environment: Environment, work: Path
) -> None:
    fleet = Repository()
    key = generate_pem(work / "p256.pem", "ecdsa", "")
    signer = open_signer(str(work / "p256.pem"), str)
    root = with_keys(fleet.authored, TARGETS, fleet.now_s, add=[key])
    fleet.change(ROOT, root)
    targets = renewed(fleet.authored, TARGETS, fleet.now_s)
    after = signed(put(fleet.authored, TARGETS, targets), [signer])
    check(after)
    fleet.authored = after
    fleet.renew()
    script = work / "believe.py"
    script.write_text(BELIEVE)
    fleet.write_root(work / "root.json")
    (work / "metadata.json").write_bytes(to_json(MetadataFiles(files=fleet.files())))
    for extras, said in (((), "False"), (("ecdsa",), "True")):
        folder = work / f"trust-{said}"
        done = run(
            work, environment(*extras) / "python", str(script), str(work), str(folder),
            fleet.authored.fleet,
        )  # fmt: skip
        assert done.stdout.strip() == said, done.stderr


BELIEVE = """
import sys
from pathlib import Path

from agent.trust.keeper import MetadataTrust
from telemetry.device.recorder import Recorder
from wire.clock import SystemClock
from wire.metadata import metadata_from

work, folder, fleet = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
clock = SystemClock()
trust = MetadataTrust(work / "root.json", fleet, folder, Recorder(clock), clock)
print(trust.receive(metadata_from((work / "metadata.json").read_bytes())))
"""


def test_without_extras_there_is_an_agent_and_fleet_names_the_extras(
    environment: Environment, work: Path
) -> None:
    programs = environment()
    assert run(work, programs / "fleet-agent", "profile", "detect").returncode == 0
    done = run(work, programs / "fleet", "build", "small.onnx")
    assert refused(done, "controller")
    assert refused(done, "packager")
    none = run(work, programs / "python", "-m", "wire.delta", "old", "delta", "new")
    assert none.stderr == "wire.delta: Zstandard is missing; install edgefleet[delta]\n"


def test_delta_brings_what_deltas_are_read_with(environment: Environment, work: Path) -> None:
    (work / "delta").write_bytes(b"no delta")
    python = environment("delta") / "python"
    done = run(work, python, "-m", "wire.delta", "box.toml", "delta", "new")
    assert done.returncode == 1, "the delta is at fault, and not what is installed"


@pytest.mark.few(3)
@pytest.mark.parametrize("runtime", ALL)
def test_a_runtime_is_found_and_loads(environment: Environment, work: Path, runtime: str) -> None:
    programs = environment(runtime)
    code = f"from runtime_adapters.registry import get; print(get({runtime!r}).name)"
    done = run(work, programs / "python", "-c", code)
    assert (done.stdout.strip(), done.returncode) == (runtime, 0), done.stderr
    found = run(work, programs / "fleet-agent", "profile", "detect")
    assert f'"{runtime}"' in found.stdout


def test_grpc_brings_what_its_process_imports(environment: Environment, work: Path) -> None:
    code = "import agent.grpc_endpoint.server, agent.grpc_endpoint.messages as m; m.Messages()"
    done = run(work, environment("grpc") / "python", "-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    lacking = run(work, environment() / "python", "-c", code)
    assert "No module named 'grpc'" in lacking.stderr


def test_otlp_sends_and_is_asked_for_where_it_is_wanted(
    environment: Environment, work: Path
) -> None:
    code = (
        "from controller.export_settings import OtlpConfig as C; "
        "from controller.exporting.collector import Collector as O; "
        "O(C(endpoint='http://127.0.0.1:1', timeout_s=0.1), {}).close()"
    )
    done = run(work, environment("controller", "otlp") / "python", "-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    lacking = run(work, environment("controller") / "python", "-c", code)
    assert "pip install 'edgefleet[otlp]'" in lacking.stderr


def test_a_log_in_nats_works_and_is_asked_for_where_it_is_wanted(
    environment: Environment, work: Path
) -> None:
    code = (
        "from controller.telemetry_settings import LogConfig as C; "
        "from controller.jetstream import TelemetryLog as L; "
        "log = L(C(servers=('nats://127.0.0.1:1',))); log.start(len); log.stop(9)"
    )
    done = run(work, environment("controller", "nats") / "python", "-c", code)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    lacking = run(work, environment("controller") / "python", "-c", code)
    assert "pip install 'edgefleet[nats]'" in lacking.stderr


def test_parquet_is_asked_for_where_it_is_wanted(environment: Environment, work: Path) -> None:
    export = ("telemetry", "export", "lake", "--url", "http://127.0.0.1:1")
    token = ("--token-file", "box.toml")
    lacking = run(work, environment("controller") / "fleet", *export, *token)
    assert refused(lacking, "parquet")
    found = run(work, environment("controller", "parquet") / "fleet", *export, *token)
    assert (found.returncode, "is not installed" in found.stderr) == (2, False)


def test_numba_compiles_what_is_declared(environment: Environment, work: Path) -> None:
    python = environment("numba") / "python"
    done = run(work, python, "-c", "import runtime_adapters.processing.numba_kernels")
    assert (done.returncode, done.stderr) == (0, "")


def test_controller_runs_a_fleet_and_names_what_builds(
    environment: Environment, work: Path
) -> None:
    programs = environment("controller")
    imported = run(work, programs / "python", "-c", EVERY_MODULE)
    assert (imported.stdout, imported.returncode) == ("True\n", 0), imported.stderr
    fleet = programs / "fleet"
    made = run(work, fleet, "init", "./home", "--broker-name", "broker.example")
    assert made.returncode == 0, made.stderr
    for words in (
        ("token", "create", "--help"),
        ("policy", "set", "--help"),
        ("profile", "show", "rpi4"),
        ("key", "generate", "new.key"),
    ):
        done = run(work, fleet, *words)
        assert done.returncode == 0, done.stderr
    built = run(work, fleet, "build", "small.onnx", "-p", "box.toml", "--evaluation", "samples.npz")
    assert refused(built, "packager")
    pushed = run(work, fleet, "package", "push", "package", "oci://registry.example/a:1")
    # TUF's client brings what speaks to registries, so only the package is missing.
    assert "neither the directory of a package nor a release" in pushed.stderr


def test_files_of_telemetry_name_the_extra_that_they_need(
    environment: Environment, work: Path
) -> None:
    (work / "api.token").write_text("token")
    where = ("--url", "http://127.0.0.1:1", "--token-file", "api.token")
    for form, extra in (("parquet", "parquet"), ("png", "plots")):
        asked = ("telemetry", "query", "x_ms", "--format", form, "-o", "x", *where)
        assert refused(run(work, environment("controller") / "fleet", *asked), extra)
        done = run(work, environment("controller", "parquet", "plots") / "fleet", *asked)
        assert "no controller answers" in done.stderr


def test_oci_brings_packages_from_registries(environment: Environment, work: Path) -> None:
    fleet = environment("oci") / "fleet"
    reference = "oci://127.0.0.1:1/team/model:1"
    options = ("--trust", "trust.json", "--registry-clear-text", "-o", "pulled")
    done = run(work, fleet, "package", "pull", reference, *options)
    assert done.returncode == 2
    assert "127.0.0.1:1" in done.stderr
    assert "is not installed" not in done.stderr
    assert refused(run(work, fleet, "init", "./other", "--broker-name", "b.example"), "controller")


def test_packager_builds_shows_and_signs_a_package(environment: Environment, work: Path) -> None:
    fleet = environment("packager") / "fleet"
    report = ("--report", "report.html", "--report", "report.json")
    built = run(
        work, fleet, "build", "small.onnx", "-p", "plain.toml", "--evaluation", "samples.npz",
        *BUILD, "--name", "small", "--version", "1", "-o", "small-1", *report,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    assert "<svg" in (work / "report.html").read_text()
    assert plan(work, fleet.parent, "small.onnx") == {"onnxruntime", "openvino"}
    for words in (
        ("key", "generate", "release.key"),
        ("package", "sign", "small-1", "--key", "release.key"),
        ("package", "show", "small-1"),
        ("package", "export", "small-1", "--to", "small-1.tar"),
        ("profile", "list"),
        ("tool", "list"),
    ):
        done = run(work, fleet, *words)
        assert done.returncode == 0, done.stderr
    assert refused(run(work, fleet, "init", "./third", "--broker-name", "b.example"), "controller")
    pushed = run(work, fleet, "package", "push", "small-1", "oci://127.0.0.1:1/b:1")
    assert (pushed.returncode, "is not installed" in pushed.stderr) == (2, False)


@pytest.mark.parametrize(("extra", "runtime"), [("packager-tvm", "tvm"), ("packager-iree", "iree")])
def test_a_compiler_is_found(
    environment: Environment, work: Path, extra: str, runtime: str
) -> None:
    assert runtime in plan(work, environment(extra), "small.onnx")
    assert runtime not in plan(work, environment("packager"), "small.onnx")


def test_litert_lacks_nothing_but_its_converter(environment: Environment, work: Path) -> None:
    done = run(
        work, environment("packager-litert") / "fleet", "build", "small.onnx", "-p", "box.toml",
        "--evaluation", "samples.npz", *BUILD, "--dry-run", "--json",
    )  # fmt: skip
    reasons = {
        found["reason"]
        for found in json.loads(done.stdout)["impossible"]
        if found["candidate"] == "litert-fp32"
    }
    assert reasons == {"onnx2tf is not installed here; fleet tool install onnx2tf"}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("extra", "function"),
    [("packager-sklearn", "estimator:made"), ("packager-torch", "module:made")],
)
def test_a_function_becomes_a_model(
    environment: Environment, work: Path, extra: str, function: str
) -> None:
    assert "onnxruntime" in plan(work, environment(extra), function)


def test_optuna_is_asked_for_where_it_is_wanted(environment: Environment, work: Path) -> None:
    search = ("small.onnx", "--search", "tpe")
    assert "onnxruntime" in plan(work, environment("packager-search"), *search)
    lacking = run(
        work, environment("packager") / "fleet", "build", *search, "-p", "box.toml",
        "--evaluation", "samples.npz",
    )  # fmt: skip
    assert refused(lacking, "packager-search")


def test_dask_is_asked_for_where_it_is_wanted(environment: Environment, work: Path) -> None:
    cluster = ("build", "small.onnx", "-p", "box.toml", "--evaluation", "samples.npz", "--executor")
    found = run(work, environment("packager-dask") / "fleet", *cluster, "dask://127.0.0.1:1")
    assert found.returncode == 2
    assert "no Dask scheduler answers" in found.stderr
    lacking = run(work, environment("packager") / "fleet", *cluster, "dask://127.0.0.1:1")
    assert refused(lacking, "packager-dask")
