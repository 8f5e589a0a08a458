"""Which interface the default route goes by, whatever the kernel's files hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.install.budget.routes import default_interface, routes_of_ipv4, routes_of_ipv6

HEAD = b"Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT   \n"
ETH0 = b"eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0      \n"
LAN = b"eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0      \n"
WWAN0 = b"wwan0\t00000000\t00000000\t0001\t0\t0\t700\t00000000\t0\t0\t0\n"
REJECTS = b"*\t00000000\t00000000\t0201\t0\t0\t0\t00000000\t0\t0\t0\n"
DOWN = b"eth1\t00000000\t00000000\t0002\t0\t0\t0\t00000000\t0\t0\t0\n"
HALF = b"tun0\t00000000\t00000000\t0001\t0\t0\t0\t00000080\t0\t0\t0\n"
"""Half of the addresses, as some tunnels take them."""

NONE6 = b"0" * 32
HOST6 = b"0" * 31 + b"1"
WLAN6 = b" ".join([NONE6, b"00", NONE6, b"00", HOST6, b"00000064", *[b"00000001"] * 3, b"wlan0"])
LO6 = b" ".join(
    [NONE6, b"00", NONE6, b"00", NONE6, b"ffffffff", b"00000001", b"00000000", b"00200200", b"lo"]
)


def found(root: Path, ipv4: bytes | None, ipv6: bytes | None = None) -> str | None:
    (root / "net").mkdir(exist_ok=True)
    for name, content in (("route", ipv4), ("ipv6_route", ipv6)):
        if content is not None:
            (root / "net" / name).write_bytes(content)
    return default_interface(root)


@pytest.mark.parametrize(
    ("ipv4", "ipv6", "interface"),
    [
        (HEAD + ETH0 + LAN, LO6, "eth0"),
        (HEAD + WWAN0 + ETH0, LO6, "eth0"),
        (HEAD + WWAN0 + REJECTS + DOWN + HALF, LO6, "wwan0"),
        (HEAD + LAN, LO6, None),
        (HEAD, LO6 + b"\n" + WLAN6 + b"\n", "wlan0"),
        (HEAD + ETH0, WLAN6, "eth0"),  # equal metrics
        (HEAD + WWAN0, WLAN6, "wlan0"),
        (None, None, None),
        (b"", b"", None),
    ],
)
def test_the_default_route_with_the_lowest_metric_counts(
    tmp_path: Path, ipv4: bytes | None, ipv6: bytes | None, interface: str | None
) -> None:
    assert found(tmp_path, ipv4, ipv6) == interface


@pytest.mark.parametrize(
    "line",
    [
        b"eth9\t00000000\n",
        b"eth9\t00000000\t0\t0003\t0\t0\t-1\t00000000\t0\t0\t0\n",
        b"eth9\t00000000\t0\t0003\t0\t0\t99999999999999999999\t00000000\t0\t0\t0\n",
        b"eth9\t00000000\t0\t0x03\t0\t0\t0\t00000000\t0\t0\t0\n",
        b"eth9\t000000000000\t0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n",
        "eth9\t00000000\t0\t0003\t0\t0\t\u0661\t00000000\t0\t0\t0\n".encode(),
        b"\x00\xff\xfe\n",
    ],
)
def test_a_line_that_is_none_is_left_out(tmp_path: Path, line: bytes) -> None:
    assert found(tmp_path, HEAD + line + ETH0) == "eth0"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"wwan[0]*?", "wwan[0]*?"),
        (b"\xff\xa0\x1c", "\\xff\\xa0\x1c"),
        ("dör".encode(), "dör"),
        (b"x" * 5000, "x" * 64),
    ],
)
def test_an_interface_may_have_any_name(tmp_path: Path, name: bytes, shown: str) -> None:
    line = name + b"\t00000000\t0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
    assert found(tmp_path, HEAD + line) == shown


def test_of_a_very_long_table_the_beginning_is_read(tmp_path: Path) -> None:
    assert found(tmp_path, HEAD + ETH0 + LAN * 100_000) == "eth0"


def test_what_is_no_file_is_no_route(tmp_path: Path) -> None:
    (tmp_path / "net/route").mkdir(parents=True)
    assert default_interface(tmp_path) is None


@given(
    st.binary(max_size=200) | st.lists(st.sampled_from([HEAD, ETH0, LO6, b"0", b" "])).map(b"".join)
)
@example(WLAN6[:-1])
def test_no_bytes_are_too_strange(text: bytes) -> None:
    for route in (*routes_of_ipv4(text), *routes_of_ipv6(text)):
        assert route.interface
        assert 0 <= route.metric < 2**34
