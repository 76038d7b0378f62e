from __future__ import annotations

import base64
import struct

import pytest
from hypothesis import given, strategies as st

from intern.platforms.discord.attachments import ImageHeader, image_header
from tests.timing import cpu_seconds
from tests.worlds import pictures


@pytest.mark.parametrize(
    ("data", "header"),
    [
        (pictures.png(1280, 720), ImageHeader("image/png", 1280, 720)),
        (pictures.jpeg(4032, 3024), ImageHeader("image/jpeg", 4032, 3024)),
        (pictures.gif(320, 200), ImageHeader("image/gif", 320, 200)),
        (pictures.webp_lossy(640, 480), ImageHeader("image/webp", 640, 480)),
        (pictures.webp_lossless(800, 600), ImageHeader("image/webp", 800, 600)),
        (pictures.webp_extended(1024, 768), ImageHeader("image/webp", 1024, 768)),
    ],
)
def test_the_four_kinds_tell_their_size(data: bytes, header: ImageHeader) -> None:
    assert image_header(data) == header


# Made by real encoders; one pixel each.
REAL = {
    "image/png": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
    "image/gif": "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7",
    "image/webp": "UklGRiQAAABXRUJQVlA4IBgAAAAwAQCdASoBAAEAAwA0JaQAA3AA/vuUAAA=",
}


@pytest.mark.parametrize("media_type", REAL)
def test_what_encoders_write_is_read(media_type: str) -> None:
    assert image_header(base64.b64decode(REAL[media_type])) == ImageHeader(media_type, 1, 1)


def test_a_small_gif_screen_does_not_hide_a_large_frame() -> None:
    found = image_header(pictures.gif(1, 1, frame=(60_000, 50_000)))
    assert found == ImageHeader("image/gif", 60_000, 50_000)


def test_a_small_webp_canvas_does_not_hide_a_large_frame() -> None:
    data = pictures.riff(pictures.vp8x(1, 1) + pictures.vp8(16_000, 12_000))
    assert image_header(data) == ImageHeader("image/webp", 16_000, 12_000)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<svg xmlns='http://www.w3.org/2000/svg' width='60000' height='60000'/>",
        b"%PDF-1.7",
        b"BM" + bytes(60),
        b"\x89PNG\r\n\x1a\n",
        pictures.png(0, 5),
        pictures.png(5, 5)[:20],
        pictures.gif(0, 0),
        b"GIF89a\x05",
        b"RIFF\xff\xff\xff\xffWEBP",
        b"RIFF\x00\x00\x00\x00WAVE",
        b"\xff\xd8\xff",
        b"\xff\xd8\xff\xda\x00\x02",
        b"\xff\xd8\xff\xe0\x00\x00",
    ],
)
def test_what_is_no_image_or_tells_no_size_has_no_header(data: bytes) -> None:
    assert image_header(data) is None


HEADS = st.sampled_from(
    [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a" + bytes(7), b"GIF87a", b"RIFF\x00\x00\x00\x00WEBP"]
)


@given(HEADS, st.binary(max_size=400))
def test_no_bytes_break_it_and_a_header_has_a_size(head: bytes, rest: bytes) -> None:
    found = image_header(head + rest)
    assert found is None or (found.width > 0 and found.height > 0)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8\xff" + b"\xff" * 8_000_000,
        b"\xff\xd8" + b"\xff\xe0\x00\x02" * 2_000_000,
        b"GIF89a" + struct.pack("<HH", 9, 9) + b"\x00\x00\x00" + b"!\xf9" + b"\x01a" * 4_000_000,
        b"RIFF\x00\x00\x00\x00WEBP" + b"ANMF\x00\x00\x00\x00" * 1_000_000,
    ],
    ids=["fill bytes", "segments", "blocks", "chunks"],
)
def test_a_file_made_to_keep_us_busy_does_not(data: bytes) -> None:
    assert cpu_seconds(lambda: image_header(data)) < 0.2
