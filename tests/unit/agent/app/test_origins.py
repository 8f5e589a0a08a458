"""Which origins a configuration may allow."""

from __future__ import annotations

import pytest

from agent.app.origins import origins_fault


@pytest.mark.parametrize(
    "origin",
    [
        "https://panel.example",
        "http://localhost:3000",
        "http://[::1]:8080",
        "https://xn--bcher-kva.example",
        "capacitor://localhost",
        "http://192.168.1.7",
    ],
)
def test_an_origin_as_browsers_send_it_may_be_named(origin: str) -> None:
    assert origins_fault([origin], needs_token=True) == ""


@pytest.mark.parametrize(
    ("origins", "fault"),
    [
        (["https://panel.example/"], "write an origin as https://panel.example"),
        (["https://panel.example/app"], "no path"),
        (["https://Panel.example"], "in lower case"),
        (["https://bücher.example"], "write an origin as"),
        (["panel.example"], "write an origin as"),
        (["https://*.example"], "write an origin as"),
        ([""], "write an origin as"),
        (["https://a.example\r\nX: y"], "write an origin as"),
        (["https://panel.example:443"], "leave out the usual port :443"),
        (["http://panel.example:80"], "leave out the usual port :80"),
        (["null"], "serve the page by HTTP"),
        (["*", "https://panel.example"], 'has "*" beside other origins'),
    ],
)
def test_what_no_browser_sends_is_refused_in_one_line(origins: list[str], fault: str) -> None:
    found = origins_fault(origins, needs_token=False)
    assert fault in found
    assert "\n" not in found


def test_all_origins_are_allowed_only_where_no_token_is_needed() -> None:
    assert origins_fault(["*"], needs_token=False) == ""
    assert "although clients need a token" in origins_fault(["*"], needs_token=True)
