"""Root does in a directory of somebody else what that owner may do, and no more."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.broker.accounts import ACCOUNTS_FILE, read_accounts
from controller.broker.directory_owner import owner_of
from controller.broker.errors import BrokerDirectoryError

NOBODY = 65534
ROOT = Path(__file__).parents[4]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives up rights")


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a folder that everybody reaches."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture
def theirs(place: Path) -> Path:
    """Return the directory of somebody else."""
    made = place / "broker"
    made.mkdir()
    os.chown(made, NOBODY, NOBODY)
    return made


@pytest.fixture
def secret(place: Path) -> Path:
    """Return a file of root with accounts."""
    made = place / "secret.json"
    made.write_text('{"clients": [], "roles": []}')
    made.chmod(0o600)
    return made


def test_what_root_writes_there_is_the_owners(theirs: Path) -> None:
    before = (os.geteuid(), os.getegid(), os.getgroups())
    with owner_of(theirs):
        (theirs / "file").write_text("")
    assert ((theirs / "file").stat().st_uid, (theirs / "file").stat().st_gid) == (NOBODY, NOBODY)
    assert (os.geteuid(), os.getegid(), os.getgroups()) == before


def test_links_lead_to_nothing_that_the_owner_may_not_reach(theirs: Path, secret: Path) -> None:
    (theirs / ACCOUNTS_FILE).symlink_to(secret)
    with owner_of(theirs), pytest.raises(BrokerDirectoryError, match="permission denied"):
        read_accounts(theirs / ACCOUNTS_FILE)


def test_a_link_in_the_place_of_the_directory_is_its_owners(place: Path) -> None:
    roots = place / "roots"
    roots.mkdir(mode=0o755)
    link = place / "link"
    link.symlink_to(roots)
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    with owner_of(link), pytest.raises(PermissionError):
        (link / "mosquitto.conf").write_text("user root")
    assert list(roots.iterdir()) == []


def test_in_roots_own_directory_root_stays_root(tmp_path: Path) -> None:
    with owner_of(tmp_path):
        assert os.geteuid() == 0
    with owner_of(tmp_path / "not there"):
        assert os.geteuid() == 0


def test_rights_come_back_after_a_fault(theirs: Path) -> None:
    with pytest.raises(ValueError, match="fault"), owner_of(theirs):
        raise ValueError("fault")
    assert os.geteuid() == 0


def test_a_root_that_may_not_change_users_is_told_what_to_do(theirs: Path) -> None:
    """As in a container: the program gives up those rights for itself before it tries."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("needs setpriv of util-linux")
    program = (
        "import sys; from pathlib import Path\n"
        "from controller.broker.directory_owner import owner_of\n"
        "from controller.broker.errors import BrokerDirectoryError\n"
        "try:\n"
        "    with owner_of(Path(sys.argv[1])): print('went on')\n"
        "except BrokerDirectoryError as exc: print(exc.message, exc.remedy)\n"
    )
    done = subprocess.run(
        [setpriv, "--bounding-set", "-setuid,-setgid", "--inh-caps", "-all",
         sys.executable, "-P", "-c", program, str(theirs)],
        capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert "cannot act as the owner of" in done.stdout, done.stderr
    assert "run as its owner" in done.stdout
