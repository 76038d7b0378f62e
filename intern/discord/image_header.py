"""What an image file says of itself: its kind, and how large it is once decoded. Pure, bounded, and it never decodes.

Four kinds and no more, those that models take: so nothing else is parsed, and no library for thirty formats is needed.
"""

from __future__ import annotations

from typing import NamedTuple

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_GIFS = (b"GIF87a", b"GIF89a")

# Start of frame: all of 0xC0 to 0xCF but for the tables of Huffman and arithmetic coding, and JPG's own extension.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})  # markers without a length
_SCAN = 0xDA  # the picture itself; what comes before it has told the size

_MOST_PARTS = 10_000  # segments, blocks or chunks before the size is known; real files have some dozens


class ImageHeader(NamedTuple):
    """What the file says of itself."""

    media_type: str
    width: int
    height: int
    """Pixels, and of an animation the largest frame that the header tells of."""


def image_header(data: bytes) -> ImageHeader | None:
    """The header of a PNG, JPEG, GIF or WebP file; None for anything else, and for one that tells no size."""
    if data.startswith(_PNG):
        found = ImageHeader("image/png", *_png(data))
    elif data.startswith(_JPEG):
        found = ImageHeader("image/jpeg", *_jpeg(data))
    elif data.startswith(_GIFS):
        found = ImageHeader("image/gif", *_gif(data))
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        found = ImageHeader("image/webp", *_webp(data))
    else:
        return None
    return found if found.width > 0 and found.height > 0 else None


def _big(data: bytes, start: int, length: int) -> int:
    return int.from_bytes(data[start : start + length], "big") if start + length <= len(data) else 0


def _little(data: bytes, start: int, length: int) -> int:
    return int.from_bytes(data[start : start + length], "little") if start + length <= len(data) else 0


def _png(data: bytes) -> tuple[int, int]:
    return (_big(data, 16, 4), _big(data, 20, 4)) if data[12:16] == b"IHDR" else (0, 0)


def _jpeg(data: bytes) -> tuple[int, int]:
    at = 2
    for _ in range(_MOST_PARTS):
        if data[at : at + 1] != b"\xff":
            break
        marker = _big(data, at + 1, 1)
        at += 1 if marker == 0xFF else 2  # 0xFF once more is only there to fill
        if marker == 0xFF or marker in _ALONE:
            continue
        if marker in _FRAMES:
            return _big(data, at + 5, 2), _big(data, at + 3, 2)
        length = _big(data, at, 2)
        if marker == _SCAN or length < 2:
            break
        at += length
    return 0, 0


def _gif(data: bytes) -> tuple[int, int]:
    """The larger of screen and first frame, for decoders make room for either."""
    screen = _little(data, 6, 2), _little(data, 8, 2)
    flags = _big(data, 10, 1)
    at = 13 + (3 << ((flags & 7) + 1) if flags & 0x80 else 0)
    extension = False
    for _ in range(_MOST_PARTS):
        mark = data[at : at + 1]
        if extension:
            extension = mark not in {b"\x00", b""}
            at += 1 + _big(data, at, 1)
        elif mark == b"!":
            extension = True
            at += 2
        elif mark == b"," and at + 9 <= len(data):
            right = _little(data, at + 1, 2) + _little(data, at + 5, 2)
            bottom = _little(data, at + 3, 2) + _little(data, at + 7, 2)
            return (max(screen[0], right), max(screen[1], bottom)) if all(screen) else (0, 0)
        else:
            break
    return 0, 0


def _webp(data: bytes) -> tuple[int, int]:
    """The largest of canvas and frames: a small canvas may hold a frame that is not."""
    at, widths, heights = 12, [0], [0]
    for _ in range(_MOST_PARTS):
        kind, length, inside = data[at : at + 4], _little(data, at + 4, 4), at + 8
        if kind == b"VP8X":
            widths.append(_little(data, inside + 4, 3) + 1)
            heights.append(_little(data, inside + 7, 3) + 1)
        elif kind == b"ANMF":
            widths.append(_little(data, inside + 6, 3) + 1)
            heights.append(_little(data, inside + 9, 3) + 1)
        elif kind == b"VP8L" and data[inside : inside + 1] == b"\x2f":
            bits = _little(data, inside + 1, 4)
            widths.append((bits & 0x3FFF) + 1)
            heights.append((bits >> 14 & 0x3FFF) + 1)
        elif kind == b"VP8 " and data[inside + 3 : inside + 6] == b"\x9d\x01\x2a":
            widths.append(_little(data, inside + 6, 2) & 0x3FFF)
            heights.append(_little(data, inside + 8, 2) & 0x3FFF)
        elif len(kind) < 4:
            break
        at = inside + length + (length & 1)
    return max(widths), max(heights)
