"""The address of a device that others are sent to: the one form that is taken, and where it is."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.peer_urls import MAX_URL_CHARS, PRIVATE, why_refused

USUAL = tuple(map(ipaddress.ip_network, PRIVATE))
ANYWHERE = tuple(map(ipaddress.ip_network, ("0.0.0.0/0", "::/0")))

NO_ADDRESS = (
    "",
    "192.168.1.20:8471",
    "https://192.168.1.20:8471",
    "HTTP://192.168.1.20:8471",
    "http://192.168.1.20",
    "http://192.168.1.20:",
    "http://192.168.1.20:0",
    "http://192.168.1.20:08471",
    "http://192.168.1.20:65536",
    "http://192.168.1.20:99999999999",
    "http://192.168.1.20:8471/",
    "http://192.168.1.20:8471/blobs",
    "http://192.168.1.20:8471?a=b",
    "http://192.168.1.20:8471#a",
    "http://192.168.1.20:8471\n",
    " http://192.168.1.20:8471",
    "http://user@192.168.1.20:8471",
    "http://user:secret@192.168.1.20:8471",
    "http://192.168.1.20:8471@evil.example:80",
    "http://localhost:8471",
    "http://camera.local:8471",
    "http://192.168.1.20.evil.example:80",
    "http://0300.0250.1.20:8471",
    "http://192.168.001.020:8471",
    "http://0xc0a80114:8471",
    "http://3232235796:8471",
    "http://192.168.276:8471",
    "http://192.168.1.256:8471",
    "http://192.168.1.20.1:8471",
    "http://192.168.1.\N{ARABIC-INDIC DIGIT TWO}0:8471",
    "http://192.168.1.20:\N{ARABIC-INDIC DIGIT EIGHT}471",
    "http://[192.168.1.20]:8471",
    "http://fd00::1:8471",
    "http://[fd00::1:8471",
    "http://[fd00::1]",
    "http://[fd00:::1]:8471",
    "http://[fe80::1%eth0]:8471",
    "http://[fe80::1%25eth0]:8471",
    "http://[fd00::1%1]:8471",
    "http://[::ffff:192.168.1.20]:8471",
    "http://[" + "0" * 1000 + "::1]:8471",
    "http://" + "1" * 250_000,
)
NOT_ONE_DEVICE = (
    "http://0.0.0.0:8471",
    "http://255.255.255.255:8471",
    "http://224.0.0.1:8471",
    "http://239.255.255.250:1900",
    "http://[::]:8471",
    "http://[ff02::1]:8471",
)
FOREIGN = (
    "http://8.8.8.8:80",
    "http://127.0.0.1:8471",
    "http://172.32.0.1:8471",
    "http://100.64.0.1:8471",
    "http://192.169.0.1:8471",
    "http://[::1]:8471",
    "http://[2001:db8::1]:8471",
    "http://[2606:4700::1111]:443",
    "http://[::c0a8:114]:8471",
    "http://[2002:c0a8:114::]:8471",
    "http://[64:ff9b::c0a8:114]:8471",
)


@pytest.mark.parametrize(
    "url",
    [
        "http://192.168.1.20:8471",
        "http://10.0.0.1:1",
        "http://172.31.255.254:65535",
        "http://169.254.7.9:80",
        "http://[fd00::1]:8471",
        "http://[FD12:3456:789a:1::20]:8471",
        "http://[fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535",
    ],
)
def test_an_address_of_a_private_network_is_taken(url: str) -> None:
    assert why_refused(url, USUAL) == ""
    assert len(url) <= MAX_URL_CHARS


@pytest.mark.parametrize("url", NO_ADDRESS, ids=range(len(NO_ADDRESS)))
def test_what_is_no_address_and_port_is_refused_wherever_it_leads(url: str) -> None:
    fault = why_refused(url, ANYWHERE)
    assert fault.startswith("is not http://ADDRESS:PORT")
    assert "secret" not in fault


@pytest.mark.parametrize("url", NOT_ONE_DEVICE)
def test_what_is_no_single_device_is_refused_also_where_all_networks_are_allowed(url: str) -> None:
    assert "one device" in why_refused(url, ANYWHERE)


def test_an_ipv4_address_within_an_ipv6_address_is_refused() -> None:
    assert "in the form of IPv6" in why_refused("http://[::ffff:c0a8:114]:8471", ANYWHERE)


def test_an_address_that_needs_an_interface_is_refused() -> None:
    assert "interface" in why_refused("http://[fe80::1]:8471", ANYWHERE)


@pytest.mark.parametrize("url", FOREIGN)
def test_foreign_hosts_are_refused_unless_the_operator_allows_them(url: str) -> None:
    assert "peers.networks" in why_refused(url, USUAL)
    assert why_refused(url, ANYWHERE) == ""


def test_the_networks_are_those_of_the_operator() -> None:
    site = (ipaddress.ip_network("192.168.7.0/24"),)
    assert why_refused("http://192.168.7.1:80", site) == ""
    assert "192.168.8.1" in why_refused("http://192.168.8.1:80", site)
    assert why_refused("http://[fd00::1]:80", site)


@given(st.ip_addresses(), st.integers(1, 65535))
def test_what_is_taken_lies_in_the_networks(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int
) -> None:
    host = f"[{address}]" if address.version == 6 else str(address)
    is_inside = any(address in network for network in USUAL)
    assert (why_refused(f"http://{host}:{port}", USUAL) == "") is is_inside


@given(st.text(max_size=80))
def test_no_other_text_is_taken(text: str) -> None:
    assert why_refused(text, ANYWHERE) or text.startswith("http://")
    assert why_refused(f"http://{text}", ANYWHERE) or set(text) <= set("0123456789abcdefABCDEF.:[]")
