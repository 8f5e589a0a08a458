"""An agent on a 64-bit Arm board, from its wheel to its answers, emulated: `make board`.

The board is Debian's root file system for arm64 with Python and OpenSSL. The broker and the
controller run on this machine, as an operator starts them, and the board reaches them over TLS.

Invariants; a run that breaks one ends with status 1:
- Our wheel and the locked wheels of its dependencies install on the board with its own pip, from
  files alone, and nothing is missing.
- The agent enrols with a token, makes its key there, and connects with a certificate.
- A package that was built here for a Raspberry Pi 4 is rolled out and succeeds.
- Each runtime of the board answers as the float model does here: with floats the same numbers but
  for rounding, with integers the same digits but for a few.
- When all was stopped, nothing runs or is mounted.

Nothing is said of speed: emulation is some ten times slower than a board.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from examples.digits import data
from examples.digits.box import Box, BoxError, Device, until
from tests.simulators.arm64 import DEVICE_LOCK, WHEELS, default_root, ensure_root, inside, told
from tests.simulators.locked_environment import NoEnvironmentError
from wire.package.manifest import MANIFEST_FILE, manifest_from_bytes

ROOT: Final = Path(__file__).resolve().parents[2]
MODEL: Final = ROOT / "examples" / "digits" / "digits.onnx"
PROFILE: Final = "rpi4"
NAME: Final = "board"
RELEASE: Final = "digits:1.0.0"
RUNTIMES: Final = ("onnxruntime", "tvm", "iree", "litert")
"""Those that the board has; OpenVINO alone would need another hundred megabytes."""

PLACE: Final = "/opt/edgefleet"
WAIT_S: Final = 900.0
"""What takes seconds on a board may take minutes in emulation on a busy machine."""

COLD_C: Final = -40.0
"""Around the simulated board: emulation must not count as heat, which changes the variant."""

SAMPLES: Final = 24
FEW: Final = 1
"""So many digits integers may tell otherwise."""


class Broken(Exception):  # noqa: N818 - what is broken is an invariant
    """An invariant does not hold."""


class Arm64Run:
    """One run.

    Args:
        folder: An empty directory for everything, with a short name.
        prepared: The root file system; it is copied.
        say: Told what goes on.
    """

    def __init__(self, folder: Path, prepared: Path, say: Callable[[str], None]) -> None:
        self.root, self.prepared, self._say = folder / "root", prepared, say
        self.box = Box(folder / "box")
        self.package = self.box.root / "digits-1.0.0"
        self.variants: dict[str, list[str]] = {}
        """Of the package, by the runtimes of the board."""

    def run(self) -> None:
        """Do all steps.

        Raises:
            Broken: An invariant does not hold.
            BoxError: A part does not do what it should.
        """
        for step in (self.install, self.build, self.enrol, self.roll_out, self.ask_all):
            start_s = time.monotonic()
            step()
            self._say(f"    ({time.monotonic() - start_s:.0f} s)")

    def install(self) -> None:
        """Install the wheel of this tree on the board, as its operator does."""
        self._say(f"a copy of {self.prepared}; our wheel is built and installed")
        subprocess.run(["cp", "-a", str(self.prepared), str(self.root)], check=True)
        wheels = self.root / WHEELS
        told(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)], "wheel"
        )
        (wheel,) = wheels.glob("edgefleet-*.whl")
        shutil.copy(DEVICE_LOCK, wheels)
        pip = [f"{PLACE}/bin/pip", "install", "--quiet", "--no-index", "--find-links", f"/{WHEELS}"]
        self.on_board("/usr/bin/python3", "-m", "venv", PLACE)
        self.on_board(*pip, "--require-hashes", "-r", f"/{WHEELS}/{DEVICE_LOCK.name}")
        for extras in ("delta", "onnxruntime", "iree,litert,tvm"):
            self.on_board(*pip, f"edgefleet[{extras}] @ file:///{WHEELS}/{wheel.name}")
            self._say(f"    with [{extras}]: {self._installed_mb()} MB")
        self.on_board(f"{PLACE}/bin/pip", "check")
        machine = self.on_board("/usr/bin/uname", "-m").strip()
        version = self.on_board(f"{PLACE}/bin/fleet-agent", "--version").strip()
        self._say(f"    {machine}: {version}")

    def build(self) -> None:
        """Build the package for the board on this machine."""
        self._say(f"a package for {PROFILE}, built on this machine")
        self.box.initialize()
        samples = self.box.root / "data"
        data.write_samples(samples)
        self.box.fleet(
            "build", MODEL, "--profile", PROFILE, "--calibration", samples / "calibration.npz",
            "--evaluation", samples / "evaluation.npz", "--metric", "top1",
            "--min-retention", "0.99", "--name", "digits", "--version", "1.0.0",
            "--emulation-s", "15", "--keep", "tvm-fp32-aarch64", "--key", self.box.release_key,
            "--cache", self.box.root / "cache", "-o", self.package,
        )  # fmt: skip
        manifest = manifest_from_bytes((self.package / MANIFEST_FILE).read_bytes())
        for variant in manifest.variants:
            if variant.info.runtime in RUNTIMES:
                self.variants.setdefault(variant.info.runtime, []).append(variant.name)
        self._say(f"    {json.dumps(self.variants)}")
        require("tvm" in self.variants, "no variant was compiled for the board")

    def enrol(self) -> None:
        """Start the controller here and the agent on the board."""
        self._say("broker, controller and agent")
        for name in ("broker", "controller"):
            self.box.start(name)
        self.box.until_connected()
        shutil.copy(ROOT / "packager" / "profiles" / f"{PROFILE}.toml", self.box.root)
        token = self.box.fleet_json("token", "create")["token"]
        profile = self.box.root / f"{PROFILE}.toml"
        device = self.box.add_device(NAME, profile, token, {"site": "bench"})
        device.board.ambient_c = COLD_C
        with device.config.open("a", encoding="utf-8") as file:
            file.write(f"[serving]\nstart_timeout_s = {WAIT_S}\ninfer_timeout_s = {WAIT_S}\n")
        # As fleet-agent.service sets it.
        unit = {"PYTHONSAFEPATH": "1", "PYTHONOPTIMIZE": "2", "MALLOC_ARENA_MAX": "1"}
        run = [f"{PLACE}/bin/fleet-agent", "run", "--config", str(device.config)]
        self.box.set_command(NAME, [*inside(self.root, self.box.root, **unit), *run])
        self.box.start(NAME)
        until("the board online", self._is_online, WAIT_S)
        status = json.loads(
            self.on_board(f"{PLACE}/bin/fleet-agent", "status", *self._config, status=1)
        )
        require(status["connected"], f"it is not connected: {status}")
        self._say(f"    the controller knows it so: {json.dumps(self._shown())}")

    def roll_out(self) -> None:
        """Roll the package out."""
        self._say(f"{RELEASE} is rolled out")
        self.box.fleet("release", "publish", self.package)
        order = ("rollout", "create", RELEASE, "--soak", "1s", "--deadline", f"{WAIT_S:.0f}s")
        made = str(self.box.fleet_json(*order)["id"])
        until("the rollout's end", lambda: self._ended(made), WAIT_S)
        rollout = self.box.api(f"/v1/rollouts/{made}")
        require(rollout["state"] == "succeeded", f"the rollout {rollout['state']}: {rollout}")
        self._say(f"    succeeded; {self.box.status(NAME)['variant']} serves")

    def ask_all(self) -> None:
        """Let each variant serve in turn, and compare its answers with the float model's."""
        self._say(f"{SAMPLES} digits, asked of the board's endpoint, and of {MODEL.name} here")
        with np.load(self.box.root / "data" / "evaluation.npz") as arrays:
            images = np.ascontiguousarray(arrays["input"][:SAMPLES], np.float32)
        session = onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
        (right,) = session.run(["logits"], {"input": images})
        for names in self.variants.values():
            for name in names:
                self.on_board(f"{PLACE}/bin/fleet-agent", "pin", name, *self._config)
                until(f"{name} serves", lambda name=name: self._variant() == name, WAIT_S)
                self._compare(name, answers(self.box.devices[NAME], images, name), right)

    def on_board(self, *command: str, status: int = 0) -> str:
        """Run a program on the board and return what it printed.

        Args:
            *command: The program and its arguments.
            status: With which it must end.

        Raises:
            Broken: It ended otherwise.
        """
        done = subprocess.run(
            [*inside(self.root, self.box.root), *command],
            capture_output=True, text=True, check=False, timeout=WAIT_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        fault = f"`{' '.join(command)}` ended with {done.returncode} on the board: {done.stderr}"
        require(done.returncode == status, fault)
        return done.stdout

    def _compare(self, name: str, found: NDArray[np.float32], right: NDArray[np.float32]) -> None:
        error = float(np.abs(found - right).max())
        same = int((found.argmax(axis=1) == right.argmax(axis=1)).sum())
        self._say(f"    {name}: {same} of {SAMPLES} digits the same, worst error {error:.2g}")
        require(same >= SAMPLES - FEW, f"{name} tells other digits than the float model")
        if name.split("-")[1] == "fp32":
            require(np.allclose(found, right, rtol=1e-3, atol=1e-3), f"{name} computes otherwise")

    @property
    def _config(self) -> tuple[str, ...]:
        return ("--config", str(self.box.devices[NAME].config), "--json")

    def _installed_mb(self) -> int:
        """Return what the installation takes, but for pip and what came with it."""
        skipped = ("pip", "setuptools", "pkg_resources")
        words = ["/usr/bin/du", "--summarize", "--block-size=1000000"]
        words += [word for name in skipped for word in ("--exclude", f"{name}*")]
        return int(self.on_board(*words, PLACE).split()[0])

    def _shown(self) -> dict[str, Any]:
        return dict(self.box.fleet_json("device", "show", NAME))

    def _is_online(self) -> bool:
        require(self.box.pid(NAME) is not None, f"the agent has ended: {self.box.log_tail(NAME)}")
        return any(device["online"] for device in self.box.api("/v1/devices"))

    def _ended(self, rollout: str) -> bool:
        return self.box.api(f"/v1/rollouts/{rollout}")["state"] in {"succeeded", "halted", "failed"}

    def _variant(self) -> str | None:
        found: str | None = self.box.status(NAME)["variant"]
        return found


def answers(device: Device, images: NDArray[np.float32], variant: str) -> NDArray[np.float32]:
    """Ask the endpoint of a device about each image; return the logits.

    Raises:
        Broken: It does not answer, or another variant does.
    """
    connection = http.client.HTTPConnection("127.0.0.1", device.port, timeout=WAIT_S)
    found = []
    for image in images:
        values = image.ravel().tolist()
        tensor = {"name": "input", "datatype": "FP32", "shape": [1, *image.shape], "data": values}
        connection.request("POST", "/v2/models/digits/infer", json.dumps({"inputs": [tensor]}))
        response = connection.getresponse()
        body = json.loads(response.read())
        require(response.status == http.client.OK, f"the endpoint answers {body}")
        require(body["parameters"]["variant"] == variant, f"another variant answers: {body}")
        (output,) = body["outputs"]
        found.append(output["data"])
    connection.close()
    return np.asarray(found, np.float32)


def require(holds: bool, what: str) -> None:
    """Insist on an invariant.

    Raises:
        Broken: It does not hold.
    """
    if not holds:
        raise Broken(what)


def run(prepared: Path, say: Callable[[str], None]) -> None:
    """Do a whole run in a folder of its own, and leave nothing.

    Args:
        prepared: The root file system; made if it is not there.
        say: Told what goes on.

    Raises:
        NoEnvironmentError: This machine cannot do it.
        Broken: An invariant does not hold.
        BoxError: A part does not do what it should.
    """
    ensure_root(prepared)
    with tempfile.TemporaryDirectory(prefix="ef-", ignore_cleanup_errors=True) as directory:
        made = Arm64Run(Path(directory), prepared, say)
        try:
            made.run()
        except BaseException:
            say(made.box.log_tail(NAME, 20))
            made.box.stop()
            raise
        left = made.box.stop()
        require(not left, f"still running after the end: {left}")
        mounted = [m for m in Path("/proc/mounts").read_text().splitlines() if directory in m]
        require(not mounted, f"still mounted after the end: {mounted}")


def main() -> int:
    """Run it and tell; return the status."""
    parser = argparse.ArgumentParser(
        description="Install, enrol and ask an agent on an emulated 64-bit Arm board."
    )
    parser.add_argument(
        "--root", type=Path, default=default_root(),
        help="the root file system; made there, from Debian's packages, if it is not",
    )  # fmt: skip
    root: Path = parser.parse_args().root
    # Cleaned up as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(root, tell)
    except NoEnvironmentError as exc:
        tell(f"not possible on this machine: {exc}")
        return 2
    except (Broken, BoxError) as exc:
        tell(f"BROKEN: {exc}")
        return 1
    tell("every invariant held")
    return 0


def tell(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
