"""Attached images and other files, fetched from Discord's own hosts only, within limits. Works on asyncio and on trio.

An image's kind and decoded size are read from its bytes, without decoding; names and HTTP headers are not trusted.
Only the four kinds that models take are parsed, so no library for thirty formats is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import NamedTuple, Self

import anyio
import httpx
from msgspec import Struct

from intern.core.errors import ChatUnavailableError, LinkExpiredError, UnusableFileError
from intern.core.messages import Attachment, Image
from intern.models.clients import open_client, read_length, read_most
from intern.models.endpoint_failures import is_transient

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_GIFS = (b"GIF87a", b"GIF89a")

# Start of frame: all of 0xC0 to 0xCF but for the tables of Huffman and arithmetic coding, and JPG's own extension.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})  # markers without a length
_SCAN = 0xDA  # the picture itself; an earlier segment gave the size

_MOST_PARTS = 10_000  # segments, blocks or chunks before the size is known; real files have some dozens


class ImageHeader(NamedTuple):
    """The kind and the size of an image, as its file states them."""

    media_type: str
    width: int
    height: int
    """Pixels; for an animation, of the largest frame that the header names."""


def image_header(data: bytes) -> ImageHeader | None:
    """Read the header of a PNG, JPEG, GIF or WebP file; None for anything else, and for one without a size."""
    if data.startswith(_PNG):
        found = ImageHeader("image/png", *_read_png_size(data))
    elif data.startswith(_JPEG):
        found = ImageHeader("image/jpeg", *_read_jpeg_size(data))
    elif data.startswith(_GIFS):
        found = ImageHeader("image/gif", *_read_gif_size(data))
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        found = ImageHeader("image/webp", *_read_webp_size(data))
    else:
        return None
    return found if found.width > 0 and found.height > 0 else None


def _read_big_endian(data: bytes, start: int, length: int) -> int:
    return int.from_bytes(data[start : start + length], "big") if start + length <= len(data) else 0


def _read_little_endian(data: bytes, start: int, length: int) -> int:
    return int.from_bytes(data[start : start + length], "little") if start + length <= len(data) else 0


def _read_png_size(data: bytes) -> tuple[int, int]:
    return (_read_big_endian(data, 16, 4), _read_big_endian(data, 20, 4)) if data[12:16] == b"IHDR" else (0, 0)


def _read_jpeg_size(data: bytes) -> tuple[int, int]:
    at = 2
    for _ in range(_MOST_PARTS):
        if data[at : at + 1] != b"\xff":
            break
        marker = _read_big_endian(data, at + 1, 1)
        at += 1 if marker == 0xFF else 2  # 0xFF once more is only there to fill
        if marker == 0xFF or marker in _ALONE:
            continue
        if marker in _FRAMES:
            return _read_big_endian(data, at + 5, 2), _read_big_endian(data, at + 3, 2)
        length = _read_big_endian(data, at, 2)
        if marker == _SCAN or length < 2:
            break
        at += length
    return 0, 0


def _read_gif_size(data: bytes) -> tuple[int, int]:
    """Return the larger of screen and first frame: decoders make room for either."""
    screen = _read_little_endian(data, 6, 2), _read_little_endian(data, 8, 2)
    flags = _read_big_endian(data, 10, 1)
    at = 13 + (3 << ((flags & 7) + 1) if flags & 0x80 else 0)
    extension = False
    for _ in range(_MOST_PARTS):
        mark = data[at : at + 1]
        if extension:
            extension = mark not in {b"\x00", b""}
            at += 1 + _read_big_endian(data, at, 1)
        elif mark == b"!":
            extension = True
            at += 2
        elif mark == b"," and at + 9 <= len(data):
            right = _read_little_endian(data, at + 1, 2) + _read_little_endian(data, at + 5, 2)
            bottom = _read_little_endian(data, at + 3, 2) + _read_little_endian(data, at + 7, 2)
            return (max(screen[0], right), max(screen[1], bottom)) if all(screen) else (0, 0)
        else:
            break
    return 0, 0


def _read_webp_size(data: bytes) -> tuple[int, int]:
    """Return the largest of canvas and frames: a small canvas may hold a large frame."""
    at, widths, heights = 12, [0], [0]
    for _ in range(_MOST_PARTS):
        kind, length, inside = data[at : at + 4], _read_little_endian(data, at + 4, 4), at + 8
        if kind == b"VP8X":
            widths.append(_read_little_endian(data, inside + 4, 3) + 1)
            heights.append(_read_little_endian(data, inside + 7, 3) + 1)
        elif kind == b"ANMF":
            widths.append(_read_little_endian(data, inside + 6, 3) + 1)
            heights.append(_read_little_endian(data, inside + 9, 3) + 1)
        elif kind == b"VP8L" and data[inside : inside + 1] == b"\x2f":
            bits = _read_little_endian(data, inside + 1, 4)
            widths.append((bits & 0x3FFF) + 1)
            heights.append((bits >> 14 & 0x3FFF) + 1)
        elif kind == b"VP8 " and data[inside + 3 : inside + 6] == b"\x9d\x01\x2a":
            widths.append(_read_little_endian(data, inside + 6, 2) & 0x3FFF)
            heights.append(_read_little_endian(data, inside + 8, 2) & 0x3FFF)
        elif len(kind) < 4:
            break
        at = inside + length + (length & 1)
    return max(widths), max(heights)


DISCORD_HOSTS = ("https://cdn.discordapp.com", "https://media.discordapp.net")


class ImageLimits(Struct, frozen=True, kw_only=True):
    """Limits that bound the cost of fetching and decoding one image."""

    max_bytes: int = 8 * 1024 * 1024
    """Screenshots take one or two; models refuse more than five to twenty."""
    max_side: int = 16_384
    max_pixels: int = 50_000_000
    """A phone's camera makes 12 to 50 million; each takes four bytes wherever it is decoded."""
    seconds: float = 30.0
    """From the first byte sent to the last one read."""


class AttachmentFetcher:
    """Fetches attached files; leaving its block closes the connections, also when cancelled."""

    def __init__(self, limits: ImageLimits | None = None, *, hosts: Sequence[str] = DISCORD_HOSTS) -> None:
        """Send requests only to `hosts`, each with its scheme; a test may name its double."""
        self._limits = limits or ImageLimits()
        self._hosts = tuple(f"{host}/" for host in hosts)
        self._client: httpx.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            with anyio.move_on_after(2, shield=True):
                await self._client.aclose()

    async def fetch_image(self, attachment: Attachment) -> Image:
        """Fetch the picture for a model.

        Raises LinkExpiredError where a fresh link may help, UnusableFileError where nothing will, and
        ChatUnavailableError where asking later is worthwhile.
        """
        return self._check_image(await self.fetch(attachment, self._limits.max_bytes))

    async def fetch(self, attachment: Attachment, most: int) -> bytes:
        """Fetch a file of at most `most` bytes. Raises as `fetch_image` does."""
        url = self._check_link(attachment.url)
        if attachment.size > most:
            raise _too_large(most)
        try:
            with anyio.fail_after(self._limits.seconds):
                return await self._download(url, most)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise ChatUnavailableError(f"{url.host} sent no file within {self._limits.seconds:g} s") from error
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise ChatUnavailableError(f"{url.host} cannot be reached: {type(error).__name__}") from error

    def _check_link(self, address: str) -> httpx.URL:
        # Compared as it is written, up to the slash that ends the host: no two parsers can read that differently.
        if not address.startswith(self._hosts):
            raise UnusableFileError("its link does not lead to Discord")
        try:
            return httpx.URL(address)
        except httpx.InvalidURL:
            raise UnusableFileError("its link is no address") from None

    async def _download(self, url: httpx.URL, most: int) -> bytes:
        # Made at its first use, since reading the certificates costs more than the rest of a start.
        self._client = self._client or open_client(str(url), timeout=self._limits.seconds, follow_redirects=False)
        # No encoding that grows while it is read; `aiter_raw` would not unpack it either.
        request = self._client.build_request("GET", url, headers={"Accept": "*/*", "Accept-Encoding": "identity"})
        response = await self._client.send(request, stream=True, follow_redirects=False)
        async with aclosing(response):
            self._check_status(response)
            if read_length(response.headers) > most:
                raise _too_large(most)
            read = await read_most(response.aiter_raw(), most)
        if len(read) > most:
            raise _too_large(most)
        return read

    def _check_status(self, response: httpx.Response) -> None:
        status, host = response.status_code, response.url.host
        if status == HTTPStatus.OK:
            return
        if is_transient(status):
            raise ChatUnavailableError(f"{host} answered {status} for a file")
        # A redirect is one of these: it may lead anywhere, so it is not followed.
        raise LinkExpiredError(f"{host} does not serve the file under its link: it answered {status}")

    def _check_image(self, data: bytes) -> Image:
        header = image_header(data)
        if header is None:
            raise UnusableFileError("it is no PNG, JPEG, GIF or WebP image")
        limits = self._limits
        if max(header.width, header.height) > limits.max_side or header.width * header.height > limits.max_pixels:
            raise UnusableFileError(f"it is too large: {header.width} × {header.height} pixels")
        return Image(media_type=header.media_type, data=data)


def _too_large(most: int) -> UnusableFileError:
    return UnusableFileError(f"it is too large: over {most / (1024 * 1024):.3g} MB")
