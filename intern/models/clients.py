"""HTTP clients for one address, with the proxy and the certificates that the environment names.

The variables are those of curl: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY, in small letters, too, and OpenSSL's
SSL_CERT_FILE and SSL_CERT_DIR.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import AsyncIterable
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import Any
from urllib.request import getproxies

import httpx
from anyio import CancelScope

from intern.core.errors import ConfigError

HOST = re.compile(rb"[A-Za-z0-9._:-]+")
"""The bytes that a host may have."""


def open_client(url: str, **options: Any) -> httpx.AsyncClient:
    """Return a client for the host of an address. Raises ConfigError that names a variable of the environment."""
    url = url.strip()
    proxy = find_proxy(url)
    # Loading the certificates takes 50 ms of CPU; without TLS, nothing is trusted. A proxy may speak TLS.
    speaks_tls = url.lower().startswith("https:") or proxy is not None
    verify = _load_certificates() if speaks_tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.AsyncClient(proxy=proxy, verify=verify, trust_env=False, **options)


def read_length(headers: httpx.Headers) -> int:
    """Return the length that a response declares; 0 without one."""
    declared = headers.get("Content-Length", "")
    return int(declared) if declared.isascii() and declared.isdigit() and len(declared) < 20 else 0


async def read_most(chunks: AsyncIterable[bytes], most: int) -> bytes:
    """Read a body, up to little more than `most` bytes."""
    read = bytearray()
    with CancelScope() as enough:
        async for chunk in chunks:
            if len(read) > most:
                # Not `break`: that would leave inner generators open, to be found by the collector.
                enough.cancel()
            else:
                read += chunk
    return bytes(read)


def find_proxy(url: str) -> httpx.Proxy | None:
    """Return the proxy for an address. Raises ConfigError."""
    scheme, host = httpx.URL(url).scheme, httpx.URL(url).host.rstrip(".")
    named = getproxies()
    variable = scheme if named.get(scheme) else "all"
    address = named.get(variable, "")
    if not address or _is_exempt(host, named.get("no", "")):
        return None
    with suppress(ValueError, httpx.InvalidURL):
        proxy = httpx.Proxy(address if "://" in address else f"http://{address}")
        if HOST.fullmatch(proxy.url.raw_host):
            return proxy
    # Not quoted: it may hold a password.
    wanted = "http://HOST:PORT, https://HOST:PORT or socks5://HOST:PORT"
    raise ConfigError(f"{variable.upper()}_PROXY is no proxy that intern can use: set {wanted}, or unset it")


def _is_exempt(host: str, listed: str) -> bool:
    """Return whether NO_PROXY lists a host: by its name, a domain, an address or a network."""
    for entry in listed.replace(",", " ").split():
        name = entry.lower().removeprefix("*").strip("[]").strip(".")
        if entry == "*" or (name and (host == name or host.endswith(f".{name}"))):
            return True
        try:
            if ip_address(host) in ip_network(name, strict=False):
                return True
        except ValueError:
            continue
    return False


def _load_certificates() -> ssl.SSLContext:
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        variable = "SSL_CERT_FILE" if os.environ.get("SSL_CERT_FILE") else "SSL_CERT_DIR"
        path = os.environ.get(variable, "")
        raise ConfigError(f"{variable} is {path!r}, which holds no certificates: correct or unset it") from error
