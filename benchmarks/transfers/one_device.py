"""One device that has the controller for itself, beside what a user would pick instead."""

from __future__ import annotations

import contextlib
from typing import Final

from benchmarks.harness import Row, against, not_measured
from benchmarks.transfers.figures import MB, Run, costs, incomplete, rate_mb_per_s
from benchmarks.transfers.measuring import run_http, run_once, run_raw
from benchmarks.transfers.peers import mosquitto_clients, nginx, raw_server
from benchmarks.transfers.rig import Rig

LIMIT_S: Final = 30.0
RAW_AIM: Final = 0.5
RAW: Final = "raw TCP: sendfile, then recv and write"
CURL: Final = "curl from nginx"
CLIENTS: Final = "mosquitto_pub -f and mosquitto_sub, one message"


def one_device(rig: Rig, blob: str, *, rounds: int, memory_mb: float, useful: float) -> list[Row]:
    """Measure one device.

    Args:
        rig: In clear text, as the peers are.
        blob: The file.
        rounds: How many.
        memory_mb: Aim for the broker's peak.
        useful: Aim for the share of what was sent that was useful.

    Returns:
        The rows.
    """
    file, size_mb = rig.files[blob], rig.blobs[blob].size_bytes / MB
    name = f"one device, {size_mb:g} MB"
    ours: list[Run] = []
    by_http: list[Run] = []
    peers: dict[str, list[float]] = {RAW: [], CURL: [], CLIENTS: []}
    with contextlib.ExitStack() as stack:
        crowd = stack.enter_context(rig.crowd(rig.devices[:1]))
        port = stack.enter_context(raw_server([file]))[0]
        web = stack.enter_context(nginx(rig.folder / "package", rig.folder / "nginx"))
        clients = stack.enter_context(mosquitto_clients(rig.folder / "mosquitto"))
        run_once(rig, crowd, blob, limit_s=LIMIT_S)  # warm up
        for _ in range(rounds):
            ours.append(run_once(rig, crowd, blob, limit_s=LIMIT_S))
            raw = run_raw(crowd, blob, port, limit_s=LIMIT_S)
            peers[RAW].append(rate_mb_per_s(raw))
            if web is not None:
                by_http.append(run_http(crowd, blob, web.url(file), limit_s=LIMIT_S))
                peers[CURL].append(size_mb / web.fetch_s(file))
            if clients is not None:
                peers[CLIENTS].append(size_mb / clients.send_s(file))
    if (row := incomplete(name, ours, unit="MB/s", aim=f"ratio >= {RAW_AIM:g}")) is not None:
        return [row]
    lacks = {CURL: "nginx or curl: not installed", CLIENTS: "mosquitto-clients: not installed"}
    rates = [rate_mb_per_s(run) for run in ours]
    rows = [
        against(
            name, rates, values, unit="MB/s", peer=peer, at_least=RAW_AIM if peer == RAW else None
        )
        if values
        else not_measured(name, lacks[peer], peer=peer)
        for peer, values in peers.items()
    ]
    rows += _by_http(f"one device by HTTP, {size_mb:g} MB", by_http, peers)
    return rows + costs(name, ours, useful=useful, memory_mb=memory_mb)


def _by_http(name: str, runs: list[Run], peers: dict[str, list[float]]) -> list[Row]:
    """Return the rows of a device that fetches by HTTP from nginx."""
    if not runs:
        return [not_measured(name, "nginx: not installed", peer=RAW)]
    if (row := incomplete(name, runs, unit="MB/s", aim=f"ratio >= {RAW_AIM:g}")) is not None:
        return [row]
    rates = [rate_mb_per_s(run) for run in runs]
    return [
        against(name, rates, peers[RAW], unit="MB/s", peer=RAW, at_least=RAW_AIM),
        against(name, rates, peers[CURL], unit="MB/s", peer=CURL),
    ]


def over_tls(clear: Rig, tls: Rig, blob: str, *, rounds: int) -> list[Row]:
    """Measure one device over TLS, as a broker is by default, beside the same in clear text.

    Args:
        clear: A rig in clear text.
        tls: The same over TLS.
        blob: The file, which both have.
        rounds: How many.

    Returns:
        The rows.
    """
    name = f"one device over TLS, {clear.blobs[blob].size_bytes / MB:g} MB"
    runs: dict[str, list[Run]] = {"tls": [], "clear": []}
    with clear.crowd(clear.devices[:1]) as plain, tls.crowd(tls.devices[:1]) as secret:
        for _ in range(rounds):
            runs["tls"].append(run_once(tls, secret, blob, limit_s=LIMIT_S))
            runs["clear"].append(run_once(clear, plain, blob, limit_s=LIMIT_S))
    if (row := incomplete(name, [*runs["tls"], *runs["clear"]], unit="MB/s")) is not None:
        return [row]
    rates = {kind: [rate_mb_per_s(run) for run in each] for kind, each in runs.items()}
    return [against(name, rates["tls"], rates["clear"], unit="MB/s", peer="in clear text")]
