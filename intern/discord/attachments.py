"""Images that people attach, fetched from Discord's own hosts and from nowhere else, within limits.

The bytes alone say what an image is; what Discord, a header or a name says of it is not trusted. Works on asyncio and
on trio.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Self

import anyio
import httpx
from msgspec import Struct

from intern.discord.image_header import image_header
from intern.domain import Attachment, Image
from intern.errors import DiscordRefusedError, DiscordUnavailableError

DISCORD_HOSTS = ("https://cdn.discordapp.com", "https://media.discordapp.net")

_PASSING = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
)


class LinkExpiredError(DiscordUnavailableError):
    """Discord does not serve the file under this link (any more). The message may hold a fresh one."""


class UnusableImageError(DiscordRefusedError):
    """No link will make a picture of this: too large, or no image at all. The message says only why."""


class ImageLimits(Struct, frozen=True, kw_only=True):
    """How much one image may cost us, and whoever decodes it."""

    max_bytes: int = 8 * 1024 * 1024
    """Screenshots take one or two; models refuse more than five to twenty."""
    max_side: int = 16_384
    max_pixels: int = 50_000_000
    """A phone's camera makes 12 to 50 million; each takes four bytes wherever it is decoded."""
    seconds: float = 30.0
    """From the first byte sent to the last one read."""


class AttachedImages:
    """Fetches images. Close it with `aclose`, or use it as an async context manager."""

    def __init__(self, limits: ImageLimits | None = None, *, hosts: Sequence[str] = DISCORD_HOSTS) -> None:
        """`hosts` are the only ones that are ever asked, each with its scheme; a test may name its double."""
        self._limits = limits or ImageLimits()
        self._hosts = tuple(f"{host}/" for host in hosts)
        self._client: httpx.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections, also when cancelled."""
        if self._client is not None:
            with anyio.move_on_after(2, shield=True):
                await self._client.aclose()

    async def image(self, attachment: Attachment) -> Image:
        """The picture, ready for a model.

        Raises LinkExpiredError where a fresh link may help, UnusableImageError where nothing will, and
        DiscordUnavailableError where asking later is worthwhile.
        """
        url = self._checked(attachment.url)
        if attachment.size > self._limits.max_bytes:
            raise self._too_large()
        try:
            with anyio.fail_after(self._limits.seconds):
                data = await self._fetched(url)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise DiscordUnavailableError(f"{url.host} sent no image within {self._limits.seconds:g} s") from error
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise DiscordUnavailableError(f"{url.host} cannot be reached: {type(error).__name__}") from error
        return self._judged(data)

    def _checked(self, address: str) -> httpx.URL:
        # Compared as it is written, up to the slash that ends the host: no two parsers can read that differently.
        if not address.startswith(self._hosts):
            raise UnusableImageError("its link does not lead to Discord")
        try:
            return httpx.URL(address)
        except httpx.InvalidURL:
            raise UnusableImageError("its link is no address") from None

    async def _fetched(self, url: httpx.URL) -> bytes:
        # Made when it is first needed, for reading the certificates costs more than the rest of a start.
        self._client = self._client or httpx.AsyncClient(timeout=self._limits.seconds, follow_redirects=False)
        # Nothing that grows while it is read, and `aiter_raw` would not let it.
        request = self._client.build_request("GET", url, headers={"Accept": "image/*", "Accept-Encoding": "identity"})
        response = await self._client.send(request, stream=True, follow_redirects=False)
        async with aclosing(response):
            self._check_status(response)
            if _declared_length(response) > self._limits.max_bytes:
                raise self._too_large()
            read = bytearray()
            with anyio.CancelScope() as enough:
                async for chunk in response.aiter_raw():
                    if len(read) > self._limits.max_bytes:
                        # Not `break`: that would leave httpx's inner generators open, to be found by the collector.
                        enough.cancel()
                    else:
                        read += chunk
        if len(read) > self._limits.max_bytes:
            raise self._too_large()
        return bytes(read)

    def _check_status(self, response: httpx.Response) -> None:
        status, host = response.status_code, response.url.host
        if status == HTTPStatus.OK:
            return
        if status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise DiscordUnavailableError(f"{host} answered {status} for an image")
        # A redirect is one of these: it may lead anywhere, so nobody follows it.
        raise LinkExpiredError(f"{host} does not serve the image under its link: it answered {status}")

    def _judged(self, data: bytes) -> Image:
        header = image_header(data)
        if header is None:
            raise UnusableImageError("it is no PNG, JPEG, GIF or WebP image")
        limits = self._limits
        if max(header.width, header.height) > limits.max_side or header.width * header.height > limits.max_pixels:
            raise UnusableImageError(f"it is too large: {header.width} × {header.height} pixels")
        return Image(media_type=header.media_type, data=data)

    def _too_large(self) -> UnusableImageError:
        return UnusableImageError(f"it is too large: over {self._limits.max_bytes / (1024 * 1024):.3g} MB")


def _declared_length(response: httpx.Response) -> int:
    declared = response.headers.get("Content-Length", "")
    return int(declared) if declared.isascii() and declared.isdigit() and len(declared) < 20 else 0
