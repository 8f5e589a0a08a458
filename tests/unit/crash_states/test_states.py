"""Which states a crash may leave: what is promised of every program, and some cases by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.crash_states.states import (
    BLOCK_BYTES,
    ROOT,
    CrashState,
    Disk,
    Names,
    Operation,
    Resize,
    Said,
    Sync,
    Tree,
    Write,
    crash_states,
)

NAMES = ("a", "b", "c")
FOLDER, FILE = 1, 2


def contents(states: list[CrashState], said: tuple[str, ...] | None = None) -> list[Tree]:
    return [state.tree for state in states if said is None or state.said == said]


@st.composite
def programs(draw: st.DrawFn) -> tuple[Disk, tuple[Operation, ...]]:
    """Return a disk with a folder, and what a program does to both."""
    before = Disk()
    before.folders[FOLDER] = {}
    before.folders[ROOT]["d"] = FOLDER
    disk = before.copy()
    operations: list[Operation] = []
    for number in range(draw(st.integers(0, 10))):
        folder, name = draw(st.sampled_from([ROOT, FOLDER])), draw(st.sampled_from(NAMES))
        inode = disk.folders[folder].get(name)
        what = draw(
            st.sampled_from(["write", "write", "resize", "rename", "unlink", "sync", "say"])
        )
        if what == "sync":
            target = draw(st.sampled_from([None, ROOT, FOLDER, *disk.files]))
            operations.append(Sync(target, len(operations), f"sync {target}"))
        elif what == "say":
            operations.append(Said(str(number)))
        elif inode is None:
            inode = FILE + number
            before.files[inode] = disk.files[inode] = b""
            operations.append(Names(((folder, name, inode),), f"make {name}", is_new_file=True))
        elif what == "write":
            operations.append(Write(inode, draw(st.integers(0, 4)), bytes([number]) * 2, "write"))
        elif what == "resize":
            operations.append(Resize(inode, draw(st.integers(0, 4)), "resize"))
        elif what == "rename":
            to = (draw(st.sampled_from([ROOT, FOLDER])), draw(st.sampled_from(NAMES)))
            if to != (folder, name):
                operations.append(Names(((folder, name, None), (*to, inode)), "rename"))
        else:
            operations.append(Names(((folder, name, None),), "unlink"))
        if operations and isinstance(operations[-1], Names | Write | Resize):
            disk.apply(operations[-1])
    return before, tuple(operations)


def finally_on(before: Disk, operations: tuple[Operation, ...]) -> Tree:
    disk = before.copy()
    for operation in operations:
        if isinstance(operation, Names | Write | Resize):
            disk.apply(operation)
    return disk.tree()


@given(programs())
def test_the_end_is_a_state_and_so_is_the_beginning(
    program: tuple[Disk, tuple[Operation, ...]],
) -> None:
    before, operations = program
    trees = contents(crash_states(before, operations))
    assert finally_on(before, operations) in trees
    assert before.tree() in trees


@given(programs())
def test_every_earlier_moment_is_a_state(program: tuple[Disk, tuple[Operation, ...]]) -> None:
    before, operations = program
    trees = contents(crash_states(before, operations))
    for end in range(len(operations)):
        assert finally_on(before, operations[:end]) in trees


@given(programs())
def test_after_a_sync_of_everything_nothing_is_lost(
    program: tuple[Disk, tuple[Operation, ...]],
) -> None:
    before, operations = program
    done = (*operations, Sync(None, len(operations), "sync"), Said("done"))
    told = tuple(each.text for each in done if isinstance(each, Said))
    assert contents(crash_states(before, done), told) == [finally_on(before, operations)]


@given(programs())
def test_the_stricter_model_has_all_whole_states_of_the_other(
    program: tuple[Disk, tuple[Operation, ...]],
) -> None:
    before, operations = program
    few = operations[:6]  # of so few, all subsets are taken
    usual = {
        frozenset(state.tree.items())
        for state in crash_states(before, few)
        if not any(each.endswith(")") for each in state.lost)  # torn, or zeros
    }
    strict = crash_states(before, few, is_strict=True)
    assert usual <= {frozenset(tree.items()) for tree in contents(strict)}


@given(programs())
def test_a_state_comes_once_and_nothing_is_in_two_places(
    program: tuple[Disk, tuple[Operation, ...]],
) -> None:
    before, operations = program
    states = crash_states(before, operations, is_strict=True)
    assert len({frozenset(state.tree.items()) for state in states}) == len(states)
    for state in states:
        assert sum(path.endswith("d") for path in state.tree) == 1


def file_disk(content: bytes) -> Disk:
    disk = Disk()
    disk.files[FILE] = content
    disk.folders[ROOT]["a"] = FILE
    return disk


def test_a_write_may_be_missing_torn_or_zeros() -> None:
    data = b"n" * (3 * BLOCK_BYTES)
    states = crash_states(file_disk(b"old"), (Write(FILE, 0, data, "write"),))
    assert {state.tree["a"] for state in states} == {
        b"old", data, data[:BLOCK_BYTES], bytes(len(data)),
    }  # fmt: skip


def test_a_sync_that_began_before_a_write_does_not_cover_it() -> None:
    operations = (Write(FILE, 0, b"1", "write"), Write(FILE, 1, b"2", "write"),
                  Sync(FILE, 1, "fsync"), Said("done"))  # fmt: skip
    found = {state.tree["a"] for state in crash_states(file_disk(b""), operations) if state.said}
    assert found == {b"1", b"12", b"1\0"}


def test_the_name_of_a_new_file_is_durable_with_it_but_in_the_stricter_model() -> None:
    disk = Disk()
    disk.files[FILE] = b""
    operations = (Names(((ROOT, "a", FILE),), "make a", is_new_file=True),
                  Sync(FILE, 1, "fsync"), Said("done"))  # fmt: skip
    assert contents(crash_states(disk, operations), ("done",)) == [{"a": b""}]
    strict = contents(crash_states(disk, operations, is_strict=True), ("done",))
    assert {} in strict
    assert {"a": b""} in strict


def test_a_rename_is_durable_with_the_folder_where_it_ends() -> None:
    disk = file_disk(b"x")
    disk.folders[FOLDER] = {}
    disk.folders[ROOT]["d"] = FOLDER
    rename = Names(((ROOT, "a", None), (FOLDER, "a", FILE)), "rename a to d/a")
    for folder, is_durable in ((ROOT, False), (FOLDER, True)):
        operations = (rename, Sync(folder, 1, "fsync"), Said("done"))
        trees = contents(crash_states(disk, operations), ("done",))
        assert ({"a": b"x", "d": None} not in trees) is is_durable
        assert all(("a" in tree) != ("d/a" in tree) for tree in trees)


def test_a_state_says_what_is_lost() -> None:
    states = crash_states(file_disk(b""), (Write(FILE, 0, b"12", "write 2 bytes to a"),))
    assert {str(state) for state in states} == {
        "after 1 operations without: write 2 bytes to a",
        "after 1 operations without: nothing",
        "after 1 operations without: write 2 bytes to a (torn)",
        "after 1 operations without: write 2 bytes to a (zeros)",
    }
