"""The whole product on one machine: build, roll out, serve, adapt, halt bad releases, explain.

Run `make demo`, or `python examples/digits/demo.py [--keep]`. It needs no root and no internet but
for Mosquitto, which it takes from the machine or from Debian's packages. It is an acceptance test:
it exits 1 when any of its promises was not kept.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from controller.broker.install import default_cache, locate
from examples.digits.box import Box, BoxError, until
from examples.digits.gated import Booths
from examples.digits.heat import Heat
from examples.digits.spoilt import spoil
from wire.package.manifest import MANIFEST_FILE, manifest_from_bytes

ROOT = Path(__file__).parents[2]
MODEL = "digits"
GOOD, BAD, TUNED = "1.0.0", "1.1.0", "1.2.0"
PROFILES = ("x86-64-vnni", "rpi4", "edge-min")
NATIVE = "rpi4" if platform.machine() == "aarch64" else "x86-64-vnni"
"""Only for a profile of this machine's architecture are latencies known, and heat compares them."""

FLEET = (
    ("cam-berlin", NATIVE, {"site": "berlin"}),
    ("cam-paris", "rpi4", {"site": "paris"}),
    ("kiosk-oslo", "x86-64-vnni", {"site": "oslo"}),
    ("gate-rome", "edge-min", {"site": "rome"}),
)
HEATED, HEATED_SITE = "cam-berlin", "site=berlin"

EMULATION_S = "15"
"""Shows that a variant for another processor answers right; more samples show no more."""

MIN_VARIANTS, MIN_RUNTIMES = 3, 2
MAX_SHARE = 0.1
"""Of the files of a release that differs in its head: what the deltas to them may take."""

STEPS = 9

Moment = Callable[[str], None]
"""Called at named moments; the acceptance tests use it to kill a process there."""


class Demo:
    """The nine steps.

    Args:
        box: An empty box.
        cache: Where builds keep what they made.
        moment: Called at named moments.
    """

    def __init__(self, box: Box, *, cache: Path, moment: Moment = lambda _name: None) -> None:
        self.box = box
        self.cache = cache
        self.moment = moment
        self.good = box.root / f"{MODEL}-{GOOD}"
        self.bad = box.root / f"{MODEL}-{BAD}"
        self.tuned = box.root / f"{MODEL}-{TUNED}"

    def run(self) -> None:
        """Do all steps.

        Raises:
            BoxError: A promise was not kept.
        """
        steps = (
            ("One model, three kinds of device, one signed package", self.build),
            ("A broker, a controller, four devices", self.enrol),
            ("A staged rollout: one device, then half, then all", self.roll_out),
            ("Heat: the device changes its variant, its client notices nothing", self.heat),
            ("A bad release stops itself", self.roll_out_bad),
            ("A release with a new head travels as deltas", self.roll_out_tuned),
            ("A release that is worse in the field is stopped by a gate", self.roll_out_gated),
            ("What the fleet can tell", self.explain),
        )
        for number, (title, step) in enumerate(steps, start=1):
            start = time.monotonic()
            print(f"\n[{number}/{STEPS}] {title}\n{'-' * (len(title) + 6)}", flush=True)
            step()
            print(f"      ({time.monotonic() - start:.0f} s)")

    def build(self) -> None:
        """Step 1: build, gate, sign."""
        self.box.initialize()
        data = self.box.root / "data"
        run_data_script(data)
        status = self.box.show(
            "build", ROOT / "examples" / "digits" / "digits.onnx",
            *(word for profile in PROFILES for word in ("--profile", profile)),
            "--calibration", data / "calibration.npz", "--evaluation", data / "evaluation.npz",
            "--metric", "top1", "--min-retention", "0.99", "--name", MODEL, "--version", GOOD,
            "--emulation-s", EMULATION_S,
            "--key", self.box.release_key, "--cache", self.cache,
            "-o", self.good,
        )  # fmt: skip
        require(status == 0, f"the build ended with status {status}")
        manifest = manifest_from_bytes((self.good / MANIFEST_FILE).read_bytes())
        runtimes = {variant.info.runtime for variant in manifest.variants}
        require(len(manifest.variants) >= MIN_VARIANTS, "fewer than three variants were kept")
        require(len(runtimes) >= MIN_RUNTIMES, "fewer than two runtimes were kept")
        self.box.fleet("package", "verify", self.good, "--trust", self.box.home / "trust.json")
        print(f"\npackage {MODEL} {GOOD}: {len(manifest.variants)} variants, signature verified")

    def enrol(self) -> None:
        """Step 2: start everything; devices enrol by token."""
        if locate(default_cache()) is None:
            print("Mosquitto is not on this machine; getting it from Debian's packages ...")
        self.box.start("broker")
        self.box.start("controller")
        self.box.until_connected()
        token = self.box.fleet_json("token", "create", "--uses", str(len(FLEET)))["token"]
        for name, profile, labels in FLEET:
            path = ROOT / "packager" / "profiles" / f"{profile}.toml"
            self.box.add_device(name, path, token, labels)
            self.box.start(name)
        until("four devices online", lambda: self._online() == len(FLEET), 30)
        self.box.show("device", "list")

    def roll_out(self) -> None:
        """Step 3: publish and roll out in stages."""
        self.box.show("release", "publish", self.good)
        status = self.box.show(*rollout(GOOD), "--watch")
        self.moment("rolled-out")
        if status != 0:
            # A watch ends when the controller is killed under it; the rollout does not.
            until("the rollout to go on", lambda: self._newest_rollout() == "succeeded", 60)
        until("every device on the release", lambda: self._on_release(GOOD) == len(FLEET), 60)
        self.box.show("device", "list")

    def heat(self) -> None:
        """Step 4: heat one device under load, cool it again."""
        heat = Heat(self.box, HEATED, MODEL)
        heat.set_policy(HEATED_SITE)
        heat.run(*evaluation(self.box.root / "data"), lambda: self.moment("heating"))

    def roll_out_bad(self) -> None:
        """Step 5: a release whose weights are wrong installs nowhere."""
        spoil(self.good, self.bad, BAD)
        self.box.fleet("package", "sign", self.bad, "--key", self.box.release_key)
        self.box.show("release", "publish", self.bad)
        status = self.box.show(*rollout(BAD), "--watch")
        self.moment("bad-rollout")
        if status != 1:
            until("the halt", lambda: self._newest_rollout() == "halted", 90)
        newest = self.box.api(f"/v1/rollouts/{self._rollouts()[-1]['id']}")
        failed = [d for d in newest["deployments"] if d["state"] == "failed"]
        require(newest["state"] == "halted", f"the rollout is {newest['state']}, not halted")
        require(len(failed) == 1, f"{len(failed)} devices failed, not the first alone")
        require(failed[0]["error_code"] == "agent.golden", f"failed with {failed[0]}")
        until("all on the first release", lambda: self._on_release(GOOD) == len(FLEET), 30)
        print(f"\n{failed[0]['device']} refused it: {failed[0]['detail']}")
        print(f"all {len(FLEET)} devices run {MODEL}:{GOOD}; nothing else was touched")

    def roll_out_tuned(self) -> None:
        """Step 6: the head is trained further; devices fetch what differs and nothing else."""
        model, data = self.box.root / "tuned.onnx", self.box.root / "data"
        train_further(data / "calibration.npz", model)
        # For one profile, which is quick: what is built for it runs on the other devices, too.
        status = self.box.show(
            "build", model, "--profile", PROFILES[-1],
            "--calibration", data / "calibration.npz", "--evaluation", data / "evaluation.npz",
            "--metric", "top1", "--min-retention", "0.99", "--name", MODEL, "--version", TUNED,
            "--key", self.box.release_key, "--cache", self.cache, "-o", self.tuned,
        )  # fmt: skip
        require(status == 0, f"the build ended with status {status}")
        self.box.show("release", "publish", self.tuned)
        status = self.box.show(*rollout(TUNED), "--watch")
        self.moment("tuned-rollout")
        if status != 0:
            until("the rollout to go on", lambda: self._newest_rollout() == "succeeded", 60)
        until("every device on the release", lambda: self._on_release(TUNED) == len(FLEET), 60)
        self.box.show("release", "show", f"{MODEL}:{TUNED}")
        deltas = self.box.fleet_json("release", "show", f"{MODEL}:{TUNED}")["deltas"]
        # From another release, whose variants were calibrated anew, the change is not small.
        small = [delta for delta in deltas if delta["base_release"] == f"{MODEL}:{GOOD}"]
        sent_bytes = sum(delta["size_bytes"] for delta in small)
        made_bytes = sum(delta["full_bytes"] for delta in small)
        until("the events", lambda: all(self._sources(name) for name, _, _ in FLEET), 30)
        print()
        by_delta = 0
        for name, _, _ in FLEET:
            shares = sorted(self._sources(name).items(), key=lambda each: -each[1])
            text = ", ".join(f"{size_bytes} bytes by {source}" for source, size_bytes in shares)
            print(f"{name:<12}{text}")
            whole = sum(size_bytes for source, size_bytes in shares if source in {"http", "mqtt"})
            made = dict(shares).get("delta", 0)
            by_delta += made > whole
        # The first device may be quicker than the process that makes the deltas, and by what this
        # machine measured a build may keep a variant that the release before did not have.
        require(2 * by_delta >= len(FLEET), "most devices did not fetch deltas")
        require(made_bytes > 0, "there are no deltas from the release before")
        share = sent_bytes / made_bytes
        print(f"\ndeltas from {GOOD}: {sent_bytes} bytes made files of {made_bytes}, {share:.2%}")
        require(share <= MAX_SHARE, "the deltas are not small")

    def roll_out_gated(self) -> None:
        """Step 7: a release passes its build and its golden test, and fails in the field."""
        profile = ROOT / "packager" / "profiles" / f"{PROFILES[-1]}.toml"
        booths = Booths(self.box, ROOT / "examples" / "digits", profile=profile, good=TUNED)
        booths.publish(self.box.root / "data", self.cache)
        booths.enrol()
        booths.roll_out(*evaluation(self.box.root / "data"))

    def explain(self) -> None:
        """Step 8: latency by variant, and the reasons."""
        query = (
            "telemetry", "query", "inference_latency_ms",
            "--stat", "count,p50,p95", "--by", "variant",
        )  # fmt: skip
        until("telemetry", lambda: len(self.box.fleet_json(*query)["rows"]) > 1, 30)
        require(self.box.show(*query) == 0, "the telemetry query failed")
        why = ("why", HEATED, "--kind", "switch")
        until("the switches", lambda: len(self.box.fleet_json(*why)) > 1, 30)
        require(self.box.show(*why) == 0, "the reasons could not be had")

    def _sources(self, device: str) -> dict[str, int]:
        """Return how the bytes of the third release came to a device; empty until it has told."""
        events = self.box.fleet_json("why", device, "--kind", "install")
        told = [
            event["data"] for event in events if event["data"].get("release") == f"{MODEL}:{TUNED}"
        ]
        return dict(told[-1]["bytes_by_source"]) if told else {}

    def _online(self) -> int:
        return sum(device["online"] for device in self.box.api("/v1/devices"))

    def _on_release(self, version: str) -> int:
        wanted = f"{MODEL}:{version}"
        devices = self.box.api("/v1/devices")
        return sum(d["release"] == wanted == d["desired_release"] for d in devices)

    def _rollouts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.box.api("/v1/rollouts")
        return sorted(found, key=lambda rollout: float(rollout["created_at_s"]))

    def _newest_rollout(self) -> str:
        return str(self._rollouts()[-1]["state"])


def rollout(version: str, *, deadline: str = "60s", soak: str = "1s") -> tuple[str, ...]:
    """Return the command that rolls a version out in three stages.

    Args:
        version: Of the model.
        deadline: How long a device may take before the rollout counts it as failed.
        soak: How long a stage waits when its devices have the release.
    """
    return (
        "rollout", "create", f"{MODEL}:{version}", "--stage", "1", "--stage", "50%",
        "--stage", "100%", "--soak", soak, "--deadline", deadline,
    )  # fmt: skip


def train_further(samples: Path, output: Path) -> None:
    """Write the model with a head that was trained further."""
    from examples.digits import tune

    tune.tune_head(ROOT / "examples" / "digits" / "digits.onnx", samples, output)


def run_data_script(directory: Path) -> None:
    """Write the calibration and evaluation data."""
    from examples.digits import data

    data.write_samples(directory)


def evaluation(directory: Path) -> tuple[Any, Any]:
    """Return the evaluation images and labels."""
    with np.load(directory / "evaluation.npz", allow_pickle=False) as arrays:
        return arrays["input"], arrays["label"]


def require(kept: object, promise: str) -> None:
    """Insist on a promise.

    Args:
        kept: Whether it was kept.
        promise: What to say when it was not.

    Raises:
        BoxError: It was not kept.
    """
    if not kept:
        raise BoxError(promise)


def shut_down(box: Box) -> None:
    """Step 9: end everything and look whether anything is left.

    Raises:
        BoxError: A process did not end by itself.
    """
    title = "The end"
    print(f"\n[{STEPS}/{STEPS}] {title}\n{'-' * (len(title) + 6)}")
    left = box.stop()
    require(not left, f"still running after the stop: {', '.join(left)}")
    print("every process has ended")


NEXT = """
What next:
  .venv/bin/fleet init ./my-fleet            keys, database and broker settings of your own
  .venv/bin/fleet build --help               your model, your data, your boards
  .venv/bin/fleet-agent run --help           the daemon on a device
  make test                                  every test
"""


def main(argv: list[str] | None = None) -> int:
    """Run the demo.

    Args:
        argv: The command line, or None for this process's own.

    Returns:
        0 when every promise was kept, 1 when not.
    """
    parser = argparse.ArgumentParser(description="the whole product on one machine")
    parser.add_argument("--keep", action="store_true", help="keep the working directory")
    arguments = parser.parse_args(argv)
    start = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="edgefleet-demo-"))
    print(f"edgefleet demo, below {root}")
    box = Box(root)
    try:
        Demo(box, cache=root / "cache").run()
        shut_down(box)
    except (BoxError, OSError, KeyboardInterrupt) as exc:
        box.stop()
        print(
            f"\ndemo failed: {str(exc) or 'interrupted'}; the logs are below {box.logs}",
            file=sys.stderr,
        )
        for log in sorted(box.logs.glob("*.log")):
            print(f"--- {log.name}\n{box.log_tail(log.stem)}", file=sys.stderr)
        return 1
    print(f"\ndemo passed in {time.monotonic() - start:.0f} s")
    print(NEXT, end="")
    if arguments.keep:
        print(f"\nkept: {root}")
    else:
        shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
