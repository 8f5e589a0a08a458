"""What the endpoint costs: requests per second and latency beside the bare runtime in a loop.

ONNX Runtime with one thread on both sides, the same model, raw tensors, clients that are processes
of their own and keep their connection. The bare loop has no clients, no HTTP and no second process:
nothing can be faster. The second peer is what one would write instead: ONNX Runtime in a FastAPI
handler under uvicorn, which takes and gives raw bytes, checks nothing and survives nothing. Further
peers are the model servers of others (`benchmarks.servers.peers`), asked alternately in the same
rounds. The best peer is the one with the best median. A server in Python that receives a request
with one call, checks nothing and understands nothing tells what any endpoint in Python costs.

The "5 ms model" is a chain of convolutions, as many as take 5 ms on this machine. The "wide model"
is two layers of 2,048: it is bound by memory, so that joining requests pays. A run of the digits
model takes so little that nearly all one sees is the protocol.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.harness import Row, against, alone, main, not_measured
from benchmarks.programs import program
from benchmarks.servers.models import deep_model, session_of, wide_model
from benchmarks.servers.peers import PEERS, NotInstalledError, serving
from benchmarks.servers.processes import Crowd, server
from wire.package.manifest import Manifest, manifest_to_bytes
from wire.package.tensors import TensorSpec
from wire.package.variant import Variant, VariantInfo

ROOT: Final = Path(__file__).resolve().parents[1]
AIM: Final = 0.95
AIM_P99: Final = 1.05
"""Of the best peer's."""

FASTAPI: Final = "FastAPI and uvicorn"
BARE: Final = "bare runtime in a loop"
FLOOR: Final = "Python that checks nothing"
HANDED_ON: Final = "the same, with a worker process"
CLIENTS: Final = 4
AIM_ABOVE_US: Final = 200.0
MS_PER_S: Final = 1000.0
US_PER_MS: Final = 1000.0


def measure(quick: bool) -> list[Row]:
    """Measure all models.

    Args:
        quick: Fewer and shorter rounds.

    Returns:
        The rows.
    """
    rounds, round_s = (4, 0.8) if quick else (9, 1.5)
    digits = (ROOT / "examples" / "digits" / "digits.onnx").read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        return [
            *_of_five_ms(Bench(place / "deep", deep_model()), rounds, round_s),
            *_of_wide(Bench(place / "wide", wide_model()), rounds, round_s),
            *_of_digits(Bench(place / "digits", digits), rounds, round_s),
        ]


class Bench:
    """A model in a package, and how it is asked.

    Args:
        folder: For its files.
        model: The ONNX file's content; one float input and one float output with a batch.
    """

    def __init__(self, folder: Path, model: bytes) -> None:
        self._folder = folder
        directory = folder / "variants" / "fp32"
        directory.mkdir(parents=True)
        self._file = directory / "model.onnx"
        self._file.write_bytes(model)
        self._session = session_of(model)
        specs = [
            (TensorSpec(name=t.name, datatype="FP32", shape=(-1, *t.shape[1:])),)
            for t in (*self._session.get_inputs(), *self._session.get_outputs())
        ]
        info = VariantInfo(
            runtime="onnxruntime",
            precision="fp32",
            model_file="model.onnx",
            inputs=specs[0],
            outputs=specs[1],
            size_bytes=len(model),
        )
        variant = Variant(name="fp32", directory="variants/fp32", info=info)
        manifest = Manifest(name="bench", version="1", variants=(variant,))
        (folder / "manifest.json").write_bytes(manifest_to_bytes(manifest))
        self._input = specs[0][0]
        self._shape = (1, *self._input.shape[1:])

    def bare(self, duration_s: float) -> list[float]:
        """Run the model in a loop in this process; return the seconds that each run took."""
        feeds = {self._input.name: self._sample(0)}
        end_s, taken = time.perf_counter() + duration_s, []
        while (start_s := time.perf_counter()) < end_s:
            self._session.run(None, feeds)
            taken.append(time.perf_counter() - start_s)
        return taken

    @contextlib.contextmanager
    def ours(
        self, clients: int, *, kind: str = "raw", most: int = 8, workers: int = 1
    ) -> Iterator[Crowd]:
        """Serve the model at our endpoint."""
        command = [sys.executable, "-P", program("our_endpoint"), str(self._folder)]
        command += [str(most), str(workers)]
        with server(command) as port, Crowd(port, self._requests(kind, clients)) as crowd:
            yield crowd

    @contextlib.contextmanager
    def fastapi(self, clients: int) -> Iterator[Crowd]:
        """Serve the model in a FastAPI handler."""
        command = [sys.executable, "-P", program("fastapi_endpoint"), str(self._file)]
        with server(command) as port, Crowd(port, self._requests("bytes", clients)) as crowd:
            yield crowd

    @contextlib.contextmanager
    def floor(self, how: str) -> Iterator[Crowd]:
        """Serve the model in Python with no more than what must be done, for one client."""
        command = [sys.executable, "-P", program("floor_endpoint"), str(self._file), how]
        with server(command) as port, Crowd(port, self._requests("raw", 1)) as crowd:
            yield crowd

    @contextlib.contextmanager
    def peers(self, clients: int) -> Iterator[tuple[dict[str, Crowd], dict[str, str]]]:
        """Serve the model with every peer; yield those that serve, and why others do not."""
        with contextlib.ExitStack() as stack:
            crowds = {FASTAPI: stack.enter_context(self.fastapi(clients))}
            faults: dict[str, str] = {}
            for peer in PEERS:
                files = self._requests(peer.kind, clients)
                try:
                    port = stack.enter_context(serving(peer, self._file, files[0].read_bytes()))
                    crowds[peer.name] = stack.enter_context(Crowd(port, files))
                except (NotInstalledError, RuntimeError) as exc:
                    faults[peer.name] = str(exc)
            yield crowds, faults

    def _sample(self, seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.random.default_rng(seed).random(self._shape, np.float32)

    def _requests(self, kind: str, clients: int) -> list[Path]:
        """Write what each of the clients sends; no two send the same."""
        files = []
        for number in range(clients):
            file = self._folder / f"{kind}-{number}"
            file.write_bytes(_request(self._input.name, self._sample(number), kind))
            files.append(file)
        return files


def _of_five_ms(bench: Bench, rounds: int, round_s: float) -> list[Row]:
    with bench.ours(CLIENTS) as ours, bench.peers(CLIENTS) as (peers, faults):
        taken = _in_turn(
            {"ours": ours.ask, BARE: bench.bare} | {name: c.ask for name, c in peers.items()},
            rounds,
            round_s,
        )
    several = _with_workers(bench, rounds, round_s)
    with bench.ours(1) as one:
        single = [(_ms(one.ask(round_s)), _ms(bench.bare(round_s))) for _ in range(rounds)]
    rates = {name: [len(t) / round_s for t in times] for name, times in taken.items()}
    p50s = {name: [_ms(t) for t in times] for name, times in taken.items()}
    p99s = {name: [_ms(t, 99) for t in times] for name, times in taken.items()}
    best = min(peers, key=lambda name: statistics.median(p99s[name]))
    name, rate = f"5 ms model, {CLIENTS} clients", "requests/s"
    throughput = f"{name}: throughput"
    return [
        against(throughput, rates["ours"], rates[BARE], unit=rate, peer=BARE, at_least=AIM),
        *(against(throughput, rates["ours"], rates[peer], unit=rate, peer=peer) for peer in peers),
        *(
            against(f"{name}: p50", p50s["ours"], p50s[peer], unit="ms", peer=peer)
            for peer in peers
        ),
        *(
            against(
                f"{name}: p99", p99s["ours"], p99s[peer],
                unit="ms", peer=peer, at_most=AIM_P99 if peer == best else None,
            )
            for peer in peers
        ),
        *(not_measured(name, why, peer=peer) for peer, why in faults.items()),
        several,
        against(
            "5 ms model, 1 client: p50", [ours for ours, _ in single],
            [bare for _, bare in single],
            unit="ms", peer=BARE,
        ),
    ]  # fmt: skip


def _with_workers(bench: Bench, rounds: int, round_s: float) -> Row:
    """Measure what as many workers as processors buy."""
    count = os.cpu_count() or 1
    with bench.ours(CLIENTS) as one, bench.ours(CLIENTS, workers=count) as several:
        taken = _in_turn({"one": one.ask, "several": several.ask}, rounds, round_s)
    rates = {name: [len(t) / round_s for t in times] for name, times in taken.items()}
    name = f"5 ms model, {CLIENTS} clients: throughput, {count} workers"
    return against(name, rates["several"], rates["one"], unit="requests/s", peer="one worker")


def _in_turn(
    asked: Mapping[str, Callable[[float], list[float]]], rounds: int, round_s: float
) -> dict[str, list[list[float]]]:
    """Ask one after the other in each round, and begin each round with another one."""
    taken: dict[str, list[list[float]]] = {name: [] for name in asked}
    order = list(asked)
    for _ in range(rounds):
        for name in order:
            taken[name].append(asked[name](round_s))
        order.append(order.pop(0))
    return taken


def _of_wide(bench: Bench, rounds: int, round_s: float) -> list[Row]:
    """Measure what joining requests buys where it pays."""
    joined: list[float] = []
    apart: list[float] = []
    with bench.ours(CLIENTS) as ours, bench.ours(CLIENTS, most=1) as single:
        for _ in range(rounds):
            joined.append(len(ours.ask(round_s)) / round_s)
            apart.append(len(single.ask(round_s)) / round_s)
    name = f"wide model, {CLIENTS} clients: throughput, joined"
    return [against(name, joined, apart, unit="requests/s", peer="one by one")]


def _of_digits(bench: Bench, rounds: int, round_s: float) -> list[Row]:
    with (
        bench.ours(1) as raw,
        bench.ours(1, kind="json") as in_json,
        bench.floor("one") as floor,
        bench.floor("two") as handed_on,
        bench.peers(1) as (peers, faults),
    ):
        least = {FLOOR: floor.ask, HANDED_ON: handed_on.ask}
        taken = _in_turn(
            {"ours": raw.ask, BARE: bench.bare, "json": in_json.ask}
            | least
            | {name: crowd.ask for name, crowd in peers.items()},
            rounds,
            round_s,
        )
    p50s = {name: [_ms(t) * US_PER_MS for t in times] for name, times in taken.items()}
    costs = {
        name: [with_all - bare for with_all, bare in zip(p50s[name], p50s[BARE], strict=True)]
        for name in ("ours", *least, *peers)
    }
    name = "digits model, 1 client"
    cost = f"{name}: p50 above the bare runtime"
    return [
        alone(cost, costs["ours"], unit="us", at_most=AIM_ABOVE_US),
        *(
            against(cost, costs["ours"], costs[peer], unit="us", peer=peer)
            for peer in (*least, *peers)
        ),
        *(not_measured(name, why, peer=peer) for peer, why in faults.items()),
        against(f"{name}: p50, values as JSON", p50s["json"], p50s["ours"], unit="us", peer="raw"),
        alone(f"{name}: bare runtime", p50s[BARE], unit="us"),
    ]


def _ms(taken: list[float], percent: int = 50) -> float:
    return statistics.quantiles(taken, n=100)[percent - 1] * MS_PER_S


def _request(name: str, sample: np.ndarray[Any, np.dtype[np.float32]], kind: str) -> bytes:
    """Return a whole HTTP request.

    Args:
        name: The input.
        sample: The tensor.
        kind: Our protocol with the tensor `raw`, in `json` or in `base64`, or only the tensor: its
            `bytes`, or in Base64 as LitServe is asked, `lit`.
    """
    tensor: dict[str, Any] = {"name": name, "datatype": "FP32", "shape": list(sample.shape)}
    document: dict[str, Any] = {"inputs": [tensor]}
    path, further, raw = "/v2/models/bench/infer", "", b""
    if kind == "json":
        tensor["data"] = [round(float(value), 6) for value in sample.ravel()]
        body = json.dumps(document).encode()
    elif kind == "base64":
        tensor |= {"datatype": "BYTES", "shape": [1], "data": [_base64(sample)]}
        body = json.dumps(document).encode()
    elif kind == "lit":
        path, body = "/predict", json.dumps({"data": _base64(sample)}).encode()
    elif kind == "raw":
        raw = sample.tobytes()
        tensor["parameters"] = {"binary_data_size": len(raw)}
        document["parameters"] = {"binary_data_output": True}
        body = json.dumps(document).encode()
        further = f"Inference-Header-Content-Length: {len(body)}\r\n"
    else:
        path, body = "/infer", sample.tobytes()
    if kind in {"json", "base64", "lit"}:
        further = "Content-Type: application/json\r\n"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{further}"
    return f"{head}Content-Length: {len(body) + len(raw)}\r\n\r\n".encode() + body + raw


def _base64(sample: np.ndarray[Any, np.dtype[np.float32]]) -> str:
    return base64.b64encode(sample.tobytes()).decode()


if __name__ == "__main__":
    sys.exit(main("Serving: the endpoint beside the bare runtime, one thread", measure))
