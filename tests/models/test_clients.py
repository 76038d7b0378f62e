"""The proxy and the certificates that the environment names, as curl reads its variables."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from intern.core.errors import ConfigError
from intern.models.clients import find_proxy, open_client

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize(
    ("listed", "exempt", "others"),
    [
        ("*", ["https://api.test", "http://[::1]:9"], []),
        ("api.test", ["https://api.test", "https://eu.api.test:8443"], ["https://notapi.test", "https://test"]),
        ("api.test.", ["https://api.test", "https://api.test./v1"], ["https://other.test."]),
        (".api.test", ["https://api.test", "https://eu.api.test"], ["https://myapi.test"]),
        ("*.api.test", ["https://eu.api.test"], ["https://other.test"]),
        ("other.test, api.test", ["https://api.test"], ["https://third.test"]),
        ("other.test api.test", ["https://api.test"], ["https://third.test"]),
        ("[::1]", ["http://[::1]:8080/v1"], ["http://[::2]/v1"]),
        ("::1", ["http://[::1]:8080/v1"], ["http://[::2]/v1"]),
        ("fe80::/10", ["http://[fe80::1]/v1"], ["http://[fd00::1]/v1"]),
        ("192.168.0.0/16,10.0.0.7", ["http://192.168.3.4", "http://10.0.0.7"], ["http://10.0.0.8", "http://a.test"]),
        ("300.1.2.3/99,,%", [], ["http://a.test"]),
    ],
)
def test_no_proxy_is_read_in_all_forms_that_curl_knows(
    monkeypatch: pytest.MonkeyPatch, listed: str, exempt: list[str], others: list[str]
) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://proxy.test:3128")
    monkeypatch.setenv("NO_PROXY", listed)

    assert [find_proxy(url) for url in exempt] == [None] * len(exempt)
    assert all(find_proxy(url) is not None for url in others)


def test_the_proxy_of_a_scheme_comes_before_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://all.test:1080")
    monkeypatch.setenv("HTTPS_PROXY", "secure.test:3128")

    secure, plain = find_proxy("https://api.test"), find_proxy("http://api.test")
    assert secure is not None
    assert plain is not None
    assert (str(secure.url), str(plain.url)) == ("http://secure.test:3128", "socks5://all.test:1080")


# Finding A12.
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ALL_PROXY", "socks4://127.0.0.1:1"),
        ("HTTPS_PROXY", "http://user:pass word@[bad"),
        ("SSL_CERT_FILE", "/nowhere/ca.pem"),
        ("SSL_CERT_FILE", str(Path(__file__))),
    ],
)
def test_a_variable_that_cannot_be_used_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(ConfigError, match=rf"^{variable}.*(?:unset it)$") as wrong:
        open_client("https://api.test/v1")
    assert "pass word" not in str(wrong.value)


# Finding A12.
@pytest.mark.parametrize(
    ("variable", "value"), [("ALL_PROXY", "socks5://127.0.0.1:1"), ("NO_PROXY", "[::1],fe80::/10")]
)
async def test_what_httpx_alone_cannot_read_makes_a_client(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv(variable, value)
    async with open_client("http://model.test/v1") as client:
        with pytest.raises((httpx.ConnectError, httpx.ProxyError)):
            await client.get("http://model.test/v1")
