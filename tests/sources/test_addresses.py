"""A refused address is never dialled, in any spelling, after any redirect, and with any result of a name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import httpcore
import pytest
from anyio import fail_after
from hypothesis import given, strategies as st

from intern.core.errors import PageRefusedError, PageUnavailableError, WebError
from intern.sources.addresses import DialPolicy, GuardedBackend, is_public
from intern.sources.fetching import PageFetcher
from intern.sources.options import WebOptions

ADVERSARIAL = Path(__file__).parents[2].parent / "shared" / "eval" / "adversarial.jsonl"
PUBLIC = "93.184.215.14"


class Line(httpcore.AsyncNetworkStream):
    """A connection that answers each request with the next of the given answers."""

    def __init__(self, answers: list[bytes], dialled: Recording) -> None:
        self._answers = answers
        self._dialled = dialled

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        return self._answers.pop(0) if self._answers else b""

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        self._dialled.sent.append(buffer)

    async def aclose(self) -> None:
        pass

    async def start_tls(
        self,
        ssl_context: object,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        self._dialled.names.append(server_hostname)
        return self

    def get_extra_info(self, info: str) -> object:
        return None


class Recording(httpcore.AsyncNetworkBackend):
    """Connects to nothing, and records the requested addresses."""

    def __init__(self, *answers: bytes, broken: Iterable[str] = ()) -> None:
        self.addresses: list[str] = []
        self.names: list[str | None] = []
        self.sent: list[bytes] = []
        self._answers = (
            list(answers) or [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"] * 2
        )
        self._broken = set(broken)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self.addresses.append(host)
        if host in self._broken:
            raise httpcore.ConnectError("nobody there")
        return Line([self._answers.pop(0)] if self._answers else [], self)


class Names:
    """A resolver that knows a few names, may change its mind, and takes all others for one public address."""

    def __init__(self, known: Mapping[str, Sequence[Sequence[str]]] | None = None) -> None:
        self._known = {name: list(answers) for name, answers in (known or {}).items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        answers = self._known.get(host)
        if answers is None:
            return [PUBLIC]
        return answers.pop(0) if len(answers) > 1 else answers[0]


async def dialled(url: str, recording: Recording, names: Names | None = None) -> WebError | None:
    """Return the result of fetching; all connections go to the recording."""
    policy = DialPolicy()
    backend = GuardedBackend(policy, resolve=names or Names(), dial=recording)
    with fail_after(10):
        async with PageFetcher(WebOptions(pause_seconds=0), policy=policy, backend=backend) as fetcher:
            try:
                await fetcher.fetch(url)
            except WebError as error:
                return error
    return None


def rows(category: str, subcategory: str = "") -> list[str]:
    if not ADVERSARIAL.exists():
        return []
    found = [json.loads(line) for line in ADVERSARIAL.read_text(encoding="utf-8").split("\n") if line]
    return [row["text"] for row in found if row["category"] == category and subcategory in row["subcategory"]]


def answer(status: str, *headers: str, body: str = "") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


NO_RULES = answer("404 Not Found")

SPELLINGS = [
    "http://127.0.0.1/",
    "http://127.1/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7f.0.0.1/",
    "http://0177.0.0.1/",
    "http://017700000001/",
    "http://127.0.0.1./",
    "http://localhost./",
    "http://LOCALHOST/",
    "http://sub.localhost/",
    "http://[::1]/",
    "http://[::]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[::127.0.0.1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[64:ff9b:1::1]/",
    "http://[2002:7f00:1::]/",
    "http://[fe80::1%25eth0]/",
    "http://[fc00::1]/",
    "http://[ff02::1]/",
    "http://[2001:db8::1]/",
    "http://0.0.0.0/",
    "http://10.0.0.1/",
    "http://100.64.0.1/",
    "http://169.254.169.254/latest/",
    "http://168.63.129.16/",
    "http://172.16.0.1/",
    "http://192.0.0.192/",
    "http://192.168.1.1/",
    "http://198.18.0.1/",
    "http://224.0.0.1/",
    "http://255.255.255.255/",
    "http://①②⑦.⓪.⓪.①/",
    "http://127。0。0。1/",
    "http://user@docs.example.org/",
    "http://docs.example.org@127.0.0.1/",
    "http://@docs.example.org/",
    "http://docs.example.org\\@127.0.0.1/",
    "http://docs.example.org:22/",
    "http://docs.example.org:6379/",
    "http://docs.example.org:0/",
    "http://intranet/",
    "http://metadata.google.internal/",
    "http://printer.local/",
    "http://docs.example.org.:80/",
    "http://docs..example.org/",
    "http://-docs.example.org/",
    "http://docs.example.org%2f.evil.example/",
    "http:///docs.example.org/",
    "http:docs.example.org",
    "//docs.example.org/",
    "ftp://docs.example.org/",
    "file:///etc/passwd",
    "data:text/html,x",
    "http://docs.example.org/\x00",
    "http://docs.example.org/a b",
    "http://docs.example.org/\r\nHost: x",
    "",
]


@pytest.mark.parametrize("url", SPELLINGS)
async def test_a_refused_address_is_neither_looked_up_nor_dialled(url: str) -> None:
    recording, names = Recording(), Names()
    assert isinstance(await dialled(url, recording, names), PageRefusedError)
    assert (recording.addresses, names.asked) == ([], [])


@pytest.mark.skipif(not ADVERSARIAL.exists(), reason="the evaluation data is not here")
async def test_of_all_collected_tricks_none_makes_a_connection_to_what_is_not_public() -> None:
    tried = [*rows("ssrf_url"), *rows("path_traversal"), *rows("markup_or_exfil")]
    assert len(tried) > 100
    refused = 0
    for url in tried:
        recording = Recording()
        refused += isinstance(await dialled(url, recording), PageRefusedError)
        assert all(is_public(ip_address(address)) for address in recording.addresses), url
    # All but links to public pages, which are the operator's to list.
    for url in [*rows("ssrf_url", "README"), *rows("ssrf_url", "SSRF")]:
        recording = Recording()
        error = await dialled(url, recording)
        assert isinstance(error, PageRefusedError) or url == "https://www.googleapis.com/auth/monitoring", url
        assert isinstance(error, PageRefusedError) == (not recording.addresses), url
    assert refused > 100


@pytest.mark.rest
@pytest.mark.skipif(not ADVERSARIAL.exists(), reason="the evaluation data is not here")
async def test_all_collected_tricks_as_redirects_lead_nowhere_that_is_not_public() -> None:
    for url in rows("ssrf_url"):
        if not url.isascii() or "\r" in url or "\n" in url:
            continue
        moved = answer("302 Found", f"Location: {url}")
        recording = Recording(NO_RULES, moved, NO_RULES, NO_RULES)
        await dialled("http://docs.example.org/", recording)
        assert recording.addresses, url
        assert all(address == PUBLIC for address in recording.addresses), url


@pytest.mark.skipif(not ADVERSARIAL.exists(), reason="the evaluation data is not here")
async def test_ordinary_links_are_dialled() -> None:
    links = rows("benign_control")
    assert len(links) > 30
    for url in links:
        recording = Recording()
        await dialled(url, recording)
        assert set(recording.addresses) == {PUBLIC}, url


@pytest.mark.parametrize(
    "leads_to",
    [["127.0.0.1"], [PUBLIC, "10.0.0.1"], ["::1"], ["::ffff:10.0.0.1"], ["fe80::1%eth0"], ["169.254.169.254"], ["x"]],
)
async def test_a_name_that_leads_to_anything_private_is_not_dialled(leads_to: list[str]) -> None:
    recording = Recording()
    error = await dialled("https://docs.example.org/", recording, Names({"docs.example.org": [leads_to]}))
    assert isinstance(error, PageRefusedError)
    assert recording.addresses == []


async def test_a_name_that_leads_elsewhere_a_moment_later_changes_nothing() -> None:
    recording = Recording(NO_RULES, answer("200 OK", "Content-Type: text/plain", body="hi"))
    names = Names({"docs.example.org": [[PUBLIC], ["127.0.0.1"]]})
    error = await dialled("http://docs.example.org/a", recording, names)
    # Each connection is to an address that was judged for it: the second lookup is refused, not dialled.
    assert isinstance(error, PageRefusedError)
    assert recording.addresses == [PUBLIC]
    assert names.asked == ["docs.example.org"] * 2


async def test_the_checked_address_is_dialled_and_the_host_s_name_is_told() -> None:
    recording = Recording(NO_RULES, answer("200 OK", "Content-Type: text/plain", body="hi"))
    assert await dialled("https://docs.example.org/a?b=c#d", recording) is None
    assert recording.addresses == [PUBLIC, PUBLIC]
    assert recording.names == ["docs.example.org"] * 2
    sent = b"".join(recording.sent).decode()
    assert sent.count("Host: docs.example.org\r\n") == 2
    assert "GET /robots.txt HTTP/1.1" in sent
    assert "GET /a?b=c HTTP/1.1" in sent


async def test_the_next_of_a_host_s_addresses_is_tried_where_one_does_not_answer() -> None:
    names = Names({"docs.example.org": [["2606:2800:21f::1", PUBLIC]]})
    recording = Recording(NO_RULES, answer("200 OK", body="hi"), broken=["2606:2800:21f::1"])
    assert await dialled("http://docs.example.org/", recording, names) is None
    assert recording.addresses == ["2606:2800:21f::1", PUBLIC] * 2


async def test_a_name_that_leads_nowhere_is_worth_another_try() -> None:
    error = await dialled("http://docs.example.org/", Recording(), Names({"docs.example.org": [[]]}))
    assert isinstance(error, PageUnavailableError)


def test_an_international_name_is_read_once() -> None:
    assert DialPolicy().parse_url("https://bücher.example.org/ä").raw_host == b"xn--bcher-kva.example.org"


@given(st.ip_addresses(v=4))
def test_what_python_calls_private_is_never_public(address: IPv4Address) -> None:
    if not address.is_global or address.is_multicast:
        assert not is_public(address)


@given(st.ip_addresses(v=4))
def test_no_ipv6_spelling_of_an_ipv4_address_is_public(address: IPv4Address) -> None:
    number = int(address)
    for prefix in (0, 0xFFFF << 32, int(IPv6Address("64:ff9b::"))):
        assert not is_public(IPv6Address(prefix | number))
    assert not is_public(IPv6Address(int(IPv6Address("2002::")) | number << 80))


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    for base in (None, DialPolicy().parse_url("https://docs.example.org/a/")):
        try:
            url = DialPolicy().parse_url(text, base=base)
        except PageRefusedError:
            continue
        assert url.scheme in {"http", "https"}
        assert not url.userinfo
