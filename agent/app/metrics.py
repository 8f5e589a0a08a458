"""What the agent tells Prometheus beside its requests: readiness, device, memory, version.

Rules:
- A reading that the device does not have is left out.
- Units are Prometheus' base units: seconds, bytes, celsius, watts, ratios of 1.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from agent.serve.advice import Advice
from agent.serve.http.exposition import Family, Sample, reading
from agent.serve.http.metrics import Metrics
from agent.serve.http.request_metrics import NONE
from agent.serve.router import Router
from agent.serve.routes import Share
from agent.serve.served import ModelsPort, Served, ServedModels, is_ready
from wire.health import HealthSnapshot
from wire.version import VERSION

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

DEVICE: Final[Mapping[str, tuple[str, str]]] = {
    "temperature_c": ("temperature_celsius", "The hottest zone of the processor."),
    "headroom": ("heat_ratio", "Heat: 0 is nominal, 1 is severe throttling."),
    "throttled": ("throttled", "Whether the device is slowed down for heat or power."),
    "fan_ratio": ("fan_ratio", "State of the fastest fan, of its greatest."),
    "cpu_frequency_ratio": ("cpu_frequency_ratio", "Frequency now, of the greatest."),
    "cpu_frequency_limit_ratio": (
        "cpu_frequency_limit_ratio",
        "Frequency that the kernel allows, of the greatest.",
    ),
    "cpu_busy_ratio": ("cpu_busy_ratio", "Share of the last second in which cores were busy."),
    "cpu_stall_ratio": ("cpu_pressure_ratio", "Share of 10 s in which a task waited for a core."),
    "load_ratio": ("load_ratio", "One-minute load average per core."),
    "battery_ratio": ("battery_ratio", "Charge of the battery."),
    "battery_discharging": ("battery_discharging", "Whether the battery is being discharged."),
    "battery_energy_j": ("battery_energy_joules", "Energy that is left in the battery."),
    "memory_available_bytes": ("memory_available_bytes", "Memory that programs could take."),
    "memory_total_bytes": ("memory_size_bytes", "Memory of the device."),
    "memory_stall_ratio": (
        "memory_pressure_ratio",
        "Share of 10 s in which a task waited for memory.",
    ),
    "memory_full_stall_ratio": (
        "memory_full_pressure_ratio",
        "Share of 10 s in which all tasks waited for memory.",
    ),
    "gpu_frequency_ratio": ("gpu_frequency_ratio", "Frequency now, of the greatest."),
    "gpu_busy_ratio": ("gpu_busy_ratio", "How busy the graphics unit is."),
}
"""Names and texts of the readings, by the fields of a snapshot."""


def make_metrics(
    models: ServedModels,
    *,
    health: Callable[[], HealthSnapshot],
    advice: Callable[[], Advice],
    deferred: Callable[[], int],
    device: str,
) -> Metrics:
    """Make the metrics, which count the requests of all models from now on.

    Args:
        models: Answer the requests.
        health: Returns the newest readings of the device.
        advice: Returns what applications should do now.
        deferred: Returns how many deferrable requests wait.
        device: Identifier of this device.

    Returns:
        The metrics.
    """

    def readings() -> Iterator[Family]:
        yield from serving(models)
        yield reading("edgefleet_deferred_requests", "Deferrable requests that wait.", deferred())
        yield from of_device(health())
        yield reading(
            "edgefleet_advised_sampling_ratio",
            "Share of their usual requests that applications should send.",
            advice().told_ratio,
        )
        yield from of_agent(device)

    metrics = Metrics(readings)
    models.listen(metrics.requests.count)
    return metrics


def serving(models: ModelsPort) -> Iterator[Family]:
    """Yield what is known of the variants that serve.

    Args:
        models: Answer the requests.
    """
    found = [(m.name, m.router) for m in models.all() if isinstance(m.router, Router)]
    by_model = [(router, {"model": name}) for name, router in found]
    shares = [share for _, router in found for share in router.routes.shares]
    about = "Whether every model that has been put into service would be answered now."
    yield reading("edgefleet_ready", about, is_ready(models))
    yield _gauges(
        "variant_ready",
        "The variant that serves, and whether it would answer now.",
        (each for model in models.all() if (each := _readiness(model)) is not None),
    )
    yield _gauges(
        "requests_in_flight",
        "Requests that have no answer yet.",
        ((router.in_flight, labels) for router, labels in by_model),
    )
    yield _gauges(
        "requests_waiting",
        "Those of them that wait for their turn.",
        ((router.waiting, labels) for router, labels in by_model),
    )
    yield _gauges(
        "worker_resident_memory_bytes",
        "Memory of the workers of a version.",
        ((share.memory_bytes, _version(share)) for share in shares),
    )
    yield _gauges(
        "workers",
        "In how many workers a version runs.",
        ((share.workers, _version(share)) for share in shares),
    )
    switches = sum((router.switches for _, router in found), Counter[str]())
    samples = tuple(Sample(count, {"model": name}) for name, count in switches.items())
    about = "How often another worker took the requests."
    yield Family("edgefleet_switches", "counter", about, samples)


def _version(share: Share) -> dict[str, str]:
    return {"model": share.target.model.name, "version": share.target.model.version}


def _readiness(model: Served) -> tuple[bool, Mapping[str, str]] | None:
    """Return whether a model would answer now, with its labels; None if it was never in service."""
    active, loading = model.router.active, model.loading
    if active is not None:
        name, version, variant = active.model.name, active.model.version, active.variant.name
    elif loading is not None and loading.is_loaded:  # such as one that a client has unloaded
        name, version, variant = model.name, loading.version, NONE
    else:
        return None
    return model.router.is_ready, {"model": name, "version": version, "variant": variant}


def of_device(health: HealthSnapshot) -> Iterator[Family]:
    """Yield what the sensors say.

    Args:
        health: The newest readings.
    """
    for field, (name, about) in DEVICE.items():
        yield reading(f"edgefleet_{name}", about, getattr(health, field))
    power_w = None if health.power_mw is None else health.power_mw / 1000
    yield reading("edgefleet_battery_power_watts", "Draw from the battery.", power_w)


def of_agent(device: str) -> Iterator[Family]:
    """Yield the version and the memory of the supervisor.

    Args:
        device: Identifier of this device.
    """
    about = {"version": VERSION, "device": device}
    yield Family("edgefleet_build", "info", "Version of the agent.", (Sample(1, about),))
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    yield reading("process_resident_memory_bytes", "Memory of the supervisor.", pages * PAGE_BYTES)


def _gauges(name: str, about: str, values: Iterable[tuple[float, Mapping[str, str]]]) -> Family:
    samples = tuple(Sample(int(value), labels) for value, labels in values)
    return Family(f"edgefleet_{name}", "gauge", about, samples)
