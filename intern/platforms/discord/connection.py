"""Certificates and the proxy of connections to Discord."""

from __future__ import annotations

import ssl
from functools import cache

from hikari.impl import BasicAuthHeader, ProxySettings

from intern.core import errors
from intern.models.clients import find_proxy


@cache
def load_certificates() -> ssl.SSLContext:
    """Load the certificates once; hikari would for REST and again for each shard: 43 ms of CPU and .8 MB each."""
    return ssl.create_default_context()


def find_proxy_settings(url: str) -> ProxySettings:
    """Return the proxy that the environment names for an address of Discord. Raises ConfigError."""
    proxy = find_proxy(f"http{url.removeprefix('ws')}" if url.startswith("ws") else url)
    if proxy is None:
        return ProxySettings()
    if proxy.url.scheme not in {"http", "https"}:
        lacks = "aiohttp, which speaks with Discord, knows no SOCKS"
        mend = "name a proxy http://HOST:PORT in HTTPS_PROXY, or list discord.com in NO_PROXY"
        raise errors.ConfigError(f"{lacks}: {mend}")
    auth = BasicAuthHeader(username=proxy.auth[0], password=proxy.auth[1]) if proxy.auth else None
    return ProxySettings(url=str(proxy.url), auth=auth)
