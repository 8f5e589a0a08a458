"""What a desired state asks of the models that a device has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.install.orders import Orders, Present, orders
from agent.install.records import ModelRecord
from agent.install.states import State
from wire.desired import ONE_RELEASE, DesiredModels, ModelState
from wire.installs import ReleaseRef


def state(name: str, revision: int = 2, *, ordered: bool = True) -> ModelState:
    ref = ReleaseRef(
        name=name, version="1", digest="a" * 64, envelope_sha256="b" * 64, envelope_size_bytes=9
    )
    return ModelState(name=name, revision=revision, release=ref if ordered else None)


def desired(*states: ModelState, keeps_others: bool = False) -> DesiredModels:
    return DesiredModels(
        device="d", revision=9, issued_at_s=0.0, models=states, keeps_others=keeps_others
    )


def present(revision: int = 2, *, at: State = State.IDLE, is_leaving: bool = False) -> Present:
    return Present(ModelRecord(revision=revision, state=at), is_leaving)


NOTHING = Orders((), ())
HERE = {"digits": present(), "speech": present()}


def test_a_model_is_told_what_is_new_for_it_alone() -> None:
    newer = state("digits", 9)
    assert orders(desired(newer, state("speech")), HERE, is_again=False) == Orders((newer,), ())
    assert orders(desired(state("digits"), state("speech")), HERE, is_again=False) == NOTHING


def test_what_comes_again_asks_every_model_for_its_report() -> None:
    both = (state("digits"), state("speech"))
    assert orders(desired(*both), HERE, is_again=True) == Orders(both, ())


def test_a_model_that_is_not_named_goes_unless_others_stay() -> None:
    assert orders(desired(state("speech")), HERE, is_again=False) == Orders((), ("digits",))
    assert orders(desired(state("speech"), keeps_others=True), HERE, is_again=False) == NOTHING
    assert orders(desired(keeps_others=True), HERE, is_again=True) == NOTHING


def test_where_nothing_is_ordered_only_an_install_under_way_ends() -> None:
    off = state("digits", 9, ordered=False)
    assert orders(desired(off, state("speech")), HERE, is_again=False) == NOTHING
    at_work = HERE | {"digits": present(at=State.FETCHING)}
    assert orders(desired(off, state("speech")), at_work, is_again=False) == Orders((off,), ())
    assert orders(desired(off), {}, is_again=False) == NOTHING, "it never was here"


def test_a_model_that_leaves_and_is_named_again_is_told_so() -> None:
    leaving = HERE | {"digits": present(is_leaving=True)}
    for again in (state("digits"), state("digits", ordered=False)):
        assert orders(desired(again, state("speech")), leaving, is_again=False) == Orders(
            (again,), ()
        )


def test_form_1_without_a_release_tells_every_model_that_nothing_is_ordered() -> None:
    one = DesiredModels(
        schema_version=ONE_RELEASE, device="d", revision=9, issued_at_s=0.0, keeps_others=True
    )
    told = orders(one, HERE, is_again=False)
    assert [(s.name, s.revision, s.release) for s in told.installs] == [
        ("digits", 9, None),
        ("speech", 9, None),
    ]
    assert told.removals == ()


names = st.sampled_from(["a", "b", "c"])


@given(
    st.dictionaries(names, st.tuples(st.integers(1, 4), st.booleans())),
    st.dictionaries(
        names,
        st.builds(present, st.integers(1, 4), at=st.sampled_from(State), is_leaving=st.booleans()),
    ),
    st.booleans(),
    st.booleans(),
)
def test_no_model_is_both_kept_and_removed_and_no_order_is_lost(
    wanted: dict[str, tuple[int, bool]], here: dict[str, Present], keeps: bool, is_again: bool
) -> None:
    states = [
        state(name, revision, ordered=ordered) for name, (revision, ordered) in wanted.items()
    ]
    told = orders(desired(*states, keeps_others=keeps), here, is_again=is_again)
    installed = {each.name for each in told.installs}
    assert installed <= wanted.keys()
    assert not installed & set(told.removals)
    assert set(told.removals) == (set() if keeps else here.keys() - wanted.keys())
    for each in states:
        if each.release is not None and each.name not in installed:
            assert here[each.name].record.revision == each.revision
            assert not here[each.name].is_leaving
