"""The smallest image files that contain their kind and size; only the header is real."""

from __future__ import annotations

import struct


def png(width: int = 20, height: int = 10) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", width, height, 8, 6, 0, 0, 0) + bytes(4)


def jpeg(width: int = 20, height: int = 10) -> bytes:
    app = b"\xff\xe0" + struct.pack(">H", 16) + b"JFIF\x00" + bytes(9)
    frame = b"\xff\xff\xc2" + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)
    return b"\xff\xd8" + app + frame + b"\xff\xda\x00\x02"


def gif(width: int = 20, height: int = 10, *, frame: tuple[int, int] | None = None) -> bytes:
    colours = bytes(3 << 1)
    comment = b"!\xfe\x05hello\x00"
    image = b"," + struct.pack("<HHHHB", 0, 0, *(frame or (width, height)), 0)
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + colours + comment + image + b"\x02\x00;"


def riff(chunks: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WEBP" + chunks


def _chunk(kind: bytes, inside: bytes) -> bytes:
    return kind + struct.pack("<I", len(inside)) + inside + bytes(len(inside) & 1)


def vp8(width: int, height: int) -> bytes:
    return _chunk(b"VP8 ", b"\x30\x01\x00\x9d\x01\x2a" + struct.pack("<HH", width, height) + b"x")


def vp8x(width: int, height: int) -> bytes:
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return _chunk(b"VP8X", bytes(4) + size)


def webp_lossy(width: int, height: int) -> bytes:
    return riff(vp8(width, height))


def webp_lossless(width: int, height: int) -> bytes:
    return riff(_chunk(b"VP8L", b"\x2f" + struct.pack("<I", (height - 1) << 14 | (width - 1)) + b"x"))


def webp_extended(width: int, height: int) -> bytes:
    return riff(vp8x(width, height) + _chunk(b"ICCP", b"abc") + vp8(10, 10))
