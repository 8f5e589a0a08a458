"""Desired states, reports, back-off and what a newer desired state does to an install."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import msgspec
import pytest

from agent.errors import (
    FetchError,
    IllegalTransitionError,
    InterjectedError,
    StoppedError,
    StorageError,
    StorageFullError,
)
from agent.install.desired import read_desired
from agent.install.reports import MAX_DETAIL
from agent.install.states import State
from agent.install.workflow import MAX_ATTEMPTS
from agent.interrupts import SLICE_S, Interrupts
from agent.serve.benches import CRASHES_TO_BENCH
from tests.simulators.device import DEVICE, PowerCut, SimulatedDevice, nothing
from tests.simulators.packages import TRUST, SignedPackage, two_variants
from tests.simulators.patience import finished, until
from wire.policy import PolicySpec

OLD = two_variants("1.0.0", best="old best", small="old small")
NEW = two_variants("2.0.0", best="new best", small="new small")
NEWER = two_variants("3.0.0", best="newer best", small="newer small")
GIVE_WAY_S = SLICE_S / 4
"""What an install sleeps at a time that lets a handover go first."""


@pytest.fixture
def device(tmp_path: Path) -> SimulatedDevice:
    """Return a device on which the old package serves."""
    device = SimulatedDevice(tmp_path)
    device.boot()
    device.install(1, OLD)
    return device


def test_a_whole_install_reports_every_phase(device: SimulatedDevice) -> None:
    device.heard.reports.clear()
    device.install(2, NEW)
    phases = list(dict.fromkeys(r.phase for r in device.heard.reports))
    assert phases == [
        "preflight", "fetching", "verifying", "staging", "probing", "switching", "confirming",
        "idle",
    ]  # fmt: skip
    last = device.heard.reports[-1]
    assert (last.outcome, last.digest, last.active) == ("succeeded", NEW.digest, NEW.digest)
    assert last.variant == "best"
    assert last.done_bytes == last.total_bytes > 0
    assert sum(as_dict(last.bytes_by_source).values()) == last.total_bytes
    assert last.rate_bytes_per_s is msgspec.UNSET, "nothing comes any more"
    assert device.slots.whole() == tuple(sorted((OLD.digest, NEW.digest)))


def as_dict(by_source: dict[str, int] | msgspec.UnsetType) -> dict[str, int]:
    return {} if isinstance(by_source, msgspec.UnsetType) else by_source


def counted(device: SimulatedDevice, metric: str) -> dict[str, float]:
    """Return what was added to a counter, by its only attribute."""
    sums: dict[str, float] = {}
    for name, amount, attributes in device.heard.figures:
        if name == metric:
            (value,) = attributes.values()
            sums[value] = sums.get(value, 0.0) + amount
    return sums


def test_what_came_which_way_is_counted_and_told_at_the_end(device: SimulatedDevice) -> None:
    device.heard.figures.clear()
    device.install(2, NEW)
    kind, _, data = device.heard.events[-1]
    by_source = data["bytes_by_source"]
    assert isinstance(by_source, dict)
    assert kind == "install"
    assert sorted(by_source) == ["local", "mqtt"]
    assert counted(device, "install_bytes_total") == by_source
    assert counted(device, "install_duration_s") == {"succeeded": data["duration_s"]}
    came = data["network_bytes_by_source"]
    assert isinstance(came, dict)
    assert sorted(came) == ["mqtt"]
    # The messages have headers, and bring the index and the manifest, too.
    assert by_source["mqtt"] < came["mqtt"] < by_source["mqtt"] + 8192
    device.install(3, OLD)
    assert device.heard.events[-1][2]["network_bytes_by_source"] == {}


def test_after_a_restart_only_what_comes_then_is_counted(device: SimulatedDevice) -> None:
    def hook(where: str, state: State) -> None:
        if where == "effected" and state is State.FETCHING:
            raise PowerCut

    device.hook = hook
    with pytest.raises(PowerCut):
        device.install(2, NEW)
    before = counted(device, "install_bytes_total")
    device.hook = nothing
    device.reboot()
    last = device.heard.outcomes[-1]
    assert last.outcome == "succeeded"
    assert counted(device, "install_bytes_total") == before, "nothing came a second time"
    assert as_dict(last.bytes_by_source) == {"local": last.total_bytes}
    assert device.heard.events[-1][2]["duration_s"] is None


def test_a_fault_whose_text_is_no_unicode_is_saved_and_reported(device: SimulatedDevice) -> None:
    def hook(where: str, state: State) -> None:
        if where == "effect" and state is State.STAGING:
            raise StorageError("cannot read caf\udce9")

    device.hook = hook
    device.install(2, NEW)
    last = device.heard.outcomes[-1]
    assert (last.phase, last.error_code) == ("staging", "agent.storage")
    assert last.detail == r"cannot read caf\udce9"
    assert device.store.state.report == last


def test_a_long_fault_is_reported_with_its_remedy(device: SimulatedDevice) -> None:
    remedy = "raise storage_bytes in the profile, or remove something"

    def hook(where: str, state: State) -> None:
        if where == "effect" and state is State.STAGING:
            raise StorageError(f"cannot stage: {'a long list of files ' * 50}", remedy=remedy)

    device.hook = hook
    device.install(2, NEW)
    detail = device.heard.outcomes[-1].detail
    assert detail.startswith("cannot stage: a long list")
    assert detail.endswith(f"; {remedy}")
    assert len(detail) == MAX_DETAIL


def test_the_package_before_the_previous_one_is_collected(device: SimulatedDevice) -> None:
    device.install(2, NEW)
    device.install(3, NEWER)
    assert device.slots.whole() == tuple(sorted((NEW.digest, NEWER.digest)))


def test_a_failed_golden_test_of_the_first_choice_fails_the_install(
    device: SimulatedDevice,
) -> None:
    device.bad_golden.add("new best")
    device.install(2, NEW)
    last = device.heard.reports[-1]
    assert (last.outcome, last.phase, last.error_code) == ("failed", "probing", "agent.golden")
    assert last.active == OLD.digest
    assert "\n" not in last.detail
    assert "agreement 0.10" in last.detail
    assert device.served == [b"old best"], "the previous package served without a gap"
    assert not device.slots.has(NEW.digest)


def test_going_back_to_the_previous_package_after_a_failure_is_a_success(
    device: SimulatedDevice,
) -> None:
    device.bad_golden.add("new best")
    device.install(2, NEW)
    before = list(device.serving.calls)
    device.install(3, OLD)
    last = device.heard.reports[-1]
    assert (last.revision, last.outcome, last.active) == (3, "succeeded", OLD.digest)
    assert device.serving.calls == [*before, "probe"], "it was only asked whether it answers"
    kind, reason, _ = device.heard.events[-1]
    assert (kind, reason) == ("restore", "digits:1.0.0 was on this device already; it serves")


def test_a_package_that_the_device_still_has_is_told_as_restored(device: SimulatedDevice) -> None:
    device.install(2, NEW)
    assert device.heard.events[-1][:2] == ("install", "succeeded")
    device.install(3, OLD)
    assert device.heard.reports[-1].active == OLD.digest
    kind, reason, _ = device.heard.events[-1]
    assert (kind, reason) == ("restore", "digits:1.0.0 was on this device already; it serves")
    device.install(4, None)
    reason = device.heard.events[-1][1]
    assert reason == "no release is desired; nothing was installed"


def test_a_variant_that_is_not_the_first_choice_is_dropped(device: SimulatedDevice) -> None:
    device.bad_golden.add("new small")
    device.install(2, NEW)
    assert device.heard.reports[-1].outcome == "succeeded"
    assert [c.name for c in device.adaptation.candidates()] == ["best"]
    assert "golden test" in device.store.state.dropped[NEW.digest]["small"]
    device.reboot()
    assert [c.name for c in device.adaptation.candidates()] == ["best"]


def test_what_a_variant_takes_here_counts_in_place_of_what_it_declares(
    device: SimulatedDevice,
) -> None:
    declared = {c.name: c.latency_p50_ms for c in device.adaptation.candidates()}
    device.takes_ms |= {"new best": 12.5, "old best": 99.0}
    device.install(2, NEW)
    measured = declared | {"best": 12.5}
    assert {c.name: c.latency_p50_ms for c in device.adaptation.candidates()} == measured
    device.reboot()
    assert {c.name: c.latency_p50_ms for c in device.adaptation.candidates()} == measured
    device.install(3, OLD)
    assert {c.name: c.latency_p50_ms for c in device.adaptation.candidates()} == (
        declared | {"best": 99.0}
    )


def test_what_packages_took_that_are_gone_is_forgotten(device: SimulatedDevice) -> None:
    for revision, made in enumerate((NEW, OLD, NEW, OLD), start=2):
        device.install(revision, made)
        record = device.store.state
        assert set(record.latencies_ms) == set(record.dropped) <= {NEW.digest, OLD.digest}
        assert set(record.agreements) == set(record.dropped)
        assert record.agreements[made.digest] == {"best": 1.0, "small": 1.0}


def test_no_release_leaves_what_runs(device: SimulatedDevice) -> None:
    device.install(2, None)
    last = device.heard.reports[-1]
    assert (last.outcome, last.digest, last.active) == ("succeeded", None, OLD.digest)


def test_the_same_desired_state_again_repeats_the_report_and_does_nothing(
    device: SimulatedDevice,
) -> None:
    device.install(2, NEW)
    report, calls = device.heard.reports[-1], list(device.serving.calls)
    device.install(2, NEW)
    assert device.heard.reports[-1] == report
    assert device.serving.calls == calls


def test_accepting_while_installing_is_a_bug(device: SimulatedDevice) -> None:
    device.store.update(state=State.FETCHING)
    with pytest.raises(IllegalTransitionError):
        device.accept(2, NEW)


@pytest.mark.parametrize("phase", ["preflight", "fetching", "verifying", "staging", "probing"])
def test_a_newer_desired_state_ends_an_install(device: SimulatedDevice, phase: str) -> None:
    def newer(where: str, at: State) -> None:
        if where == "effect" and at.value == phase:
            device.hook = nothing
            device.interrupts.supersede()

    device.hook = newer
    device.heard.reports.clear()
    device.install(2, NEW)
    assert device.store.state.state is State.IDLE
    assert not device.heard.outcomes, "an abandoned install has no outcome"
    assert device.heard.reports[-1].phase == "reverting"
    assert device.adaptation.active() == (OLD.digest, "best")
    device.interrupts.clear_superseded()
    device.install(3, NEWER)
    assert device.adaptation.active() == (NEWER.digest, "best")


def test_a_package_that_has_switched_is_confirmed_before_a_newer_one(
    device: SimulatedDevice,
) -> None:
    device.hook = lambda where, at: (
        device.interrupts.supersede() if (where, at) == ("effect", State.CONFIRMING) else None
    )
    device.install(2, NEW)
    assert device.heard.outcomes[-1].outcome == "succeeded"


def test_a_stop_leaves_the_install_where_it_is(device: SimulatedDevice) -> None:
    device.hook = lambda where, at: (
        device.interrupts.stop() if (where, at) == ("effect", State.FETCHING) else None
    )
    with pytest.raises(StoppedError):
        device.install(2, NEW)
    assert device.store.state.state is State.FETCHING
    assert device.adaptation.active() == (OLD.digest, "best")
    device.hook = nothing
    device.reboot()
    assert device.adaptation.active() == (NEW.digest, "best")


def test_waits_grow_and_are_bounded(device: SimulatedDevice) -> None:
    begun: list[float] = []

    def hook(where: str, at: State) -> None:
        if where == "effect" and at is State.FETCHING:
            begun.append(device.clock.monotonic_s())
            raise FetchError("not now")

    device.hook = hook
    device.install(2, NEW)
    waits = [later - earlier for earlier, later in itertools.pairwise(begun)]
    assert len(waits) == 4
    assert all(1.0 <= wait <= 60.0 for wait in waits)
    assert waits[-1] > waits[0]


def test_attempts_without_a_connection_do_not_count(device: SimulatedDevice) -> None:
    faults = [1] * 20
    # Gone when the fault is looked at, gone for a second more, and back.
    device.heard.road = itertools.cycle([False, False, True])

    def hook(where: str, at: State) -> None:
        if where == "effect" and at is State.FETCHING and faults:
            faults.pop()
            raise FetchError("no road")

    device.hook = hook
    device.install(2, NEW)
    assert not faults
    assert device.heard.outcomes[-1].outcome == "succeeded"


def goes_first(interrupts: Interrupts) -> bool:
    """Tell whether an install would have to let a handover go first."""
    try:
        interrupts.check(abandon=True)
    except InterjectedError:
        return True
    return False


def test_an_attempt_whose_wait_a_handover_cuts_short_does_not_count(
    device: SimulatedDevice,
) -> None:
    begun = itertools.count(1)
    handed_over: list[int] = []
    threads: list[threading.Thread] = []

    def hook(where: str, state: State) -> None:
        if where != "effect" or state is not State.FETCHING:
            return
        number = next(begun)
        if number > 2 * MAX_ATTEMPTS:
            return
        gave_way = device.clock.slept_s.count(GIVE_WAY_S)

        def work() -> None:
            handed_over.append(number)
            until(lambda: device.clock.slept_s.count(GIVE_WAY_S) > gave_way, "the install")

        thread = threading.Thread(target=device.interrupts.interject, args=(work, lambda: None))
        threads.append(thread)
        thread.start()
        until(lambda: goes_first(device.interrupts), "the handover")
        raise FetchError("slow link")

    device.hook = hook
    device.install(2, NEW)
    for thread in threads:
        finished(thread)
    assert device.heard.outcomes[-1].outcome == "succeeded"
    assert handed_over == list(range(1, 2 * MAX_ATTEMPTS + 1))


def test_progress_resets_the_count_of_attempts(device: SimulatedDevice) -> None:
    """A power cut after every chunk: each start gets further, so the install ends well."""
    big = two_variants("2.0.0", best="b" * 150_000, small="s" * 3_000)
    device.server.add(*big.blobs)

    def hook(where: str, at: State) -> None:
        if where == "publish" and at is State.FETCHING and len(device.server.sent) > sent[0] + 4:
            sent[0] = len(device.server.sent)
            raise PowerCut

    sent = [len(device.server.sent)]
    device.hook = hook
    try:
        device.install(2, big)
    except PowerCut:
        device.reboot()
    assert device.boots > 6
    assert device.adaptation.active() == (big.digest, "best")
    counts = {item: device.server.sent.count(item) for item in device.server.sent}
    assert max(counts.values()) <= 2


def test_full_storage_while_saving_fails_the_install_and_still_reverts(
    device: SimulatedDevice,
) -> None:
    def hook(where: str, at: State) -> None:
        if where == "save" and at in {State.CONFIRMING, State.REVERTING}:
            raise StorageFullError("cannot write state.json: no space left on device")

    device.hook = hook
    device.install(2, NEW)
    last = device.heard.outcomes[-1]
    assert (last.outcome, last.error_code) == ("failed", "agent.storage.full")
    assert device.adaptation.active() == (OLD.digest, "best")
    assert device.slot.current() == OLD.digest


def test_a_package_that_is_benched_while_it_is_confirmed_is_reverted(
    device: SimulatedDevice,
) -> None:
    def hook(where: str, at: State) -> None:
        if (where, at) == ("effect", State.CONFIRMING):
            for _ in range(CRASHES_TO_BENCH):
                device.benches.crashed(NEW.digest, "best", "crashed 3 times in 60 s")

    device.hook = hook
    device.install(2, NEW)
    last = device.heard.outcomes[-1]
    assert (last.phase, last.error_code) == ("confirming", "agent.confirm")
    assert "crashed 3 times" in last.detail
    assert device.adaptation.active() == (OLD.digest, "best")


def test_a_package_that_fails_its_probe_at_the_end_is_reverted(device: SimulatedDevice) -> None:
    def hook(where: str, at: State) -> None:
        if (where, at) == ("effect", State.CONFIRMING):
            device.bad_golden.add("new best")

    device.hook = hook
    began_s = device.clock.monotonic_s()
    device.install(2, NEW)
    assert device.clock.monotonic_s() - began_s >= device.confirm_s
    assert device.heard.outcomes[-1].error_code == "agent.confirm"
    assert device.adaptation.active() == (OLD.digest, "best")


def test_the_first_package_of_a_device_that_fails_leaves_nothing(tmp_path: Path) -> None:
    device = SimulatedDevice(tmp_path)
    device.boot()
    device.bad_golden.add("new best")
    device.install(1, NEW)
    last = device.heard.outcomes[-1]
    assert (last.outcome, last.active) == ("failed", None)
    assert device.slot.current() is None
    assert device.serving.running == 0


def test_a_crashing_probe_is_tried_again(device: SimulatedDevice) -> None:
    device.serving.crashes = 1
    device.install(2, NEW)
    assert device.heard.outcomes[-1].outcome == "succeeded"


def test_the_outcome_is_an_event(device: SimulatedDevice) -> None:
    device.install(2, NEW)
    installs = [data for kind, _, data in device.heard.events if kind == "install"]
    assert installs[-1]["outcome"] == "succeeded"
    assert installs[-1]["release"] == "digits:2.0.0"


OTHER_POLICY = PolicySpec(kind="adaptive")


def test_another_policy_for_the_same_release_installs_nothing(device: SimulatedDevice) -> None:
    order(device, 2, NEW)
    calls, events = list(device.serving.calls), len(device.heard.events)
    order(device, 3, NEW, policy=OTHER_POLICY)
    last = device.heard.reports[-1]
    assert (last.revision, last.outcome, last.active) == (3, "succeeded", NEW.digest)
    assert (device.serving.calls, len(device.heard.events)) == (calls, events)
    assert device.store.state.revision == 3
    (kept,) = read_desired(device.files.state.desired, TRUST, DEVICE).models
    assert kept.policy == OTHER_POLICY, "it is what holds after a restart"


def test_another_policy_is_no_reason_to_try_again_what_failed(device: SimulatedDevice) -> None:
    device.bad_golden.add("new best")
    order(device, 2, NEW)
    calls = list(device.serving.calls)
    order(device, 3, NEW, policy=OTHER_POLICY)
    last = device.heard.reports[-1]
    assert (last.revision, last.outcome, last.error_code) == (3, "failed", "agent.golden")
    assert last.active == OLD.digest
    assert device.serving.calls == calls
    device.bad_golden.clear()
    order(device, 4, NEW, rollout="r2", policy=OTHER_POLICY)
    assert device.adaptation.active() == (NEW.digest, "best"), "another rollout is another order"


@pytest.mark.parametrize("where", ["save", "saved"])
def test_a_power_cut_while_another_policy_is_accepted_does_no_harm(
    device: SimulatedDevice, where: str
) -> None:
    order(device, 2, NEW)

    def cut(at: str, _state: State) -> None:
        if at == where:
            raise PowerCut

    device.hook = cut
    with pytest.raises(PowerCut):
        order(device, 3, NEW, policy=OTHER_POLICY)
    device.hook = nothing
    device.reboot()
    calls = list(device.serving.calls)
    order(device, 3, NEW, policy=OTHER_POLICY)
    last = device.heard.reports[-1]
    assert (last.revision, last.outcome, last.active) == (3, "succeeded", NEW.digest)
    assert device.serving.calls == calls


def order(
    device: SimulatedDevice,
    revision: int,
    release: SignedPackage,
    *,
    rollout: str = "r1",
    policy: PolicySpec | None = None,
) -> None:
    """Offer a package as a rollout does, and go on until idle."""
    device.server.add(*release.blobs)
    device.accept(revision, release, rollout=rollout, policy=policy)
    device.machine.run()


def test_an_outcome_that_was_not_saved_is_found_again(device: SimulatedDevice) -> None:
    """A power cut between a revision and its outcome: the one before must not pass for it."""
    device.bad_golden.add("new best")
    device.install(2, NEW)
    saves = iter((False, True))

    def cut(where: str, _state: State) -> None:
        if where == "save" and next(saves):
            raise PowerCut

    device.hook = cut
    with pytest.raises(PowerCut):
        device.accept(3, OLD)
    device.hook = nothing
    device.reboot()
    device.accept(3, OLD)
    last = device.heard.reports[-1]
    assert (last.revision, last.outcome, last.active) == (3, "succeeded", OLD.digest)
