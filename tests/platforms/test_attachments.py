"""Fetching images over real sockets, from a host that may do anything."""

from __future__ import annotations

import gzip
from collections.abc import Generator

import pytest
from anyio import create_task_group, fail_after, to_thread

from intern.core.errors import ChatError, ChatRefusedError, ChatUnavailableError, LinkExpiredError, UnusableFileError
from intern.core.messages import Attachment
from intern.platforms.discord.attachments import AttachmentFetcher, ImageLimits
from tests.worlds import pictures
from tests.worlds.cdn import CdnDouble, Served, cdn_double

# A limit that no busy machine reaches: tests of time have one of their own.
SMALL = ImageLimits(max_bytes=100_000, max_side=8000, max_pixels=20_000_000, seconds=60)


@pytest.fixture
def cdn() -> Generator[CdnDouble]:
    with cdn_double() as double:
        yield double


def fetching(cdn: CdnDouble, limits: ImageLimits = SMALL) -> AttachmentFetcher:
    return AttachmentFetcher(limits, hosts=[cdn.host])


async def failure(cdn: CdnDouble, attachment: Attachment, limits: ImageLimits = SMALL) -> ChatError:
    with fail_after(60), pytest.raises(ChatError) as raised:
        async with fetching(cdn, limits) as images:
            await images.fetch_image(attachment)
    assert "secret" not in str(raised.value)
    return raised.value


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (pictures.png(), "image/png"),
        (pictures.jpeg(), "image/jpeg"),
        (pictures.gif(), "image/gif"),
        (pictures.webp_lossy(20, 10), "image/webp"),
    ],
)
async def test_an_image_comes_as_it_is_and_as_what_its_bytes_say(cdn: CdnDouble, data: bytes, media_type: str) -> None:
    attachment = cdn.attachment("a.png", Served(body=data, headers={"Content-Type": "text/html"}))
    async with fetching(cdn) as images:
        image = await images.fetch_image(attachment)
    assert (image.media_type, image.data) == (media_type, data)
    assert cdn.headers[0]["Accept-Encoding"] == "identity"


async def test_one_client_serves_many_images(cdn: CdnDouble) -> None:
    async with fetching(cdn) as images:
        for name in "abc":
            await images.fetch_image(cdn.attachment(name, pictures.png()))
    assert cdn.asked == ["/a", "/b", "/c"]


@pytest.mark.rest
@pytest.mark.parametrize("status", [401, 403, 404, 410, 415, 206, 204])
async def test_a_link_that_leads_to_nothing_wants_a_fresh_one(cdn: CdnDouble, status: int) -> None:
    body = b"" if status == 204 else b"This content is no longer available."
    error = await failure(cdn, cdn.attachment("gone.png", Served(body=body, status=status)))
    assert isinstance(error, LinkExpiredError)
    assert str(status) in str(error)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 521])
async def test_a_host_in_trouble_is_worth_asking_later(cdn: CdnDouble, status: int) -> None:
    error = await failure(cdn, cdn.attachment("a.png", Served(body=b"busy", status=status)))
    assert isinstance(error, ChatUnavailableError)
    assert not isinstance(error, LinkExpiredError)


@pytest.mark.rest
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_never_followed(cdn: CdnDouble, status: int) -> None:
    cdn.files["/private"] = Served(body=pictures.png())
    away = Served(status=status, headers={"Location": f"{cdn.host}/private"})
    assert isinstance(await failure(cdn, cdn.attachment("a.png", away)), LinkExpiredError)
    metadata = Served(status=status, headers={"Location": "http://169.254.169.254/latest/meta-data/"})
    assert isinstance(await failure(cdn, cdn.attachment("b.png", metadata)), LinkExpiredError)
    assert cdn.asked == ["/a.png", "/b.png"]


async def test_a_body_without_an_end_is_left_at_the_limit(cdn: CdnDouble) -> None:
    error = await failure(cdn, cdn.attachment("endless.png", Served(endless=True)))
    assert isinstance(error, UnusableFileError)
    assert "too large" in str(error)
    # Bytes in the sockets' buffers were sent too, though they are not read.
    assert cdn.sent < 30_000_000


async def test_a_body_that_is_said_to_be_too_large_is_not_read(cdn: CdnDouble) -> None:
    error = await failure(cdn, cdn.attachment("large.png", Served(body=pictures.png() + bytes(200_000))))
    assert isinstance(error, UnusableFileError)


async def test_a_file_that_discord_says_is_too_large_is_not_asked_for(cdn: CdnDouble) -> None:
    error = await failure(cdn, cdn.attachment("large.png", pictures.png(), size=100_001))
    assert isinstance(error, UnusableFileError)
    assert cdn.asked == []


@pytest.mark.parametrize(
    "body",
    [
        b"<html><script>alert(1)</script></html>",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"",
        b"PK\x03\x04" + bytes(100),
    ],
    ids=["page", "svg", "empty", "zip"],
)
async def test_a_lying_content_type_helps_nobody(cdn: CdnDouble, body: bytes) -> None:
    error = await failure(cdn, cdn.attachment("a.png", Served(body=body, headers={"Content-Type": "image/png"})))
    assert isinstance(error, ChatRefusedError)
    assert "no PNG" in str(error)


@pytest.mark.rest
@pytest.mark.parametrize(
    "data",
    [
        pictures.png(60_000, 60_000),
        pictures.png(2**31 - 1, 1),
        pictures.jpeg(65_535, 65_535),
        pictures.gif(1, 1, frame=(60_000, 60_000)),
        pictures.webp_extended(16_000_000, 16_000_000),
        pictures.png(5000, 5000),
    ],
)
async def test_an_image_that_would_be_huge_once_decoded_is_left_alone(cdn: CdnDouble, data: bytes) -> None:
    error = await failure(cdn, cdn.attachment("bomb.png", data))
    assert isinstance(error, UnusableFileError)
    assert "pixels" in str(error)


@pytest.mark.rest
async def test_a_compressed_bomb_is_not_unpacked(cdn: CdnDouble) -> None:
    bomb = gzip.compress(pictures.png() + bytes(50_000_000))
    assert len(bomb) < SMALL.max_bytes
    error = await failure(cdn, cdn.attachment("a.png", Served(body=bomb, headers={"Content-Encoding": "gzip"})))
    assert "no PNG" in str(error)


async def test_a_host_that_stalls_is_left_after_the_time(cdn: CdnDouble) -> None:
    limits = ImageLimits(seconds=0.2)
    error = await failure(cdn, cdn.attachment("a.png", Served(stalls=True)), limits)
    assert isinstance(error, ChatUnavailableError)
    assert "0.2 s" in str(error)


@pytest.mark.rest
async def test_a_body_that_trickles_for_ever_is_left_after_the_time(cdn: CdnDouble) -> None:
    limits = ImageLimits(max_bytes=1 << 40, seconds=0.2)
    error = await failure(cdn, cdn.attachment("a.png", Served(endless=True)), limits)
    assert "0.2 s" in str(error)


async def test_a_connection_that_breaks_is_worth_another_try(cdn: CdnDouble) -> None:
    error = await failure(cdn, cdn.attachment("a.png", Served(body=pictures.png() * 100, breaks=True)))
    assert isinstance(error, ChatUnavailableError)
    assert not isinstance(error, LinkExpiredError)


async def test_cancelling_leaves_at_once(cdn: CdnDouble) -> None:
    async with fetching(cdn) as images, create_task_group() as tg:
        tg.start_soon(images.fetch_image, cdn.attachment("a.png", Served(stalls=True)))
        assert await to_thread.run_sync(cdn.was_asked.wait, 50)
        tg.cancel_scope.cancel()


TRICKS = [
    "http://cdn.discordapp.com/a.png",
    "https://cdn.discordapp.com.evil.example/a.png",
    "https://evil.example/cdn.discordapp.com/a.png",
    "https://cdn.discordapp.com@evil.example/a.png",
    "https://cdn.discordapp.com:secret@evil.example/a.png",
    "https://user@cdn.discordapp.com/a.png",
    "https://cdn.discordapp.com:8443/a.png",
    "https://cdn.discordapp.com./a.png",
    "https://CDN.discordapp.com.evil.example/a.png",
    "HTTPS://CDN.DISCORDAPP.COM/a.png",
    "https://cdn.discordapp.com",
    "https://cdn.discordapp.com?@evil.example/",
    "https://cdn.discordapp.com#@evil.example/",
    "https://cdn.discordapp.com\\@evil.example/a.png",
    "https://cdn.discordapp.com%2eevil.example/a.png",
    "https://cdn.discordapp.com%00.evil.example/a.png",
    "https://xcdn.discordapp.com/a.png",
    "https://discordapp.com/a.png",
    "https://cdn。discordapp.com/a.png",
    "https://cdn.dіscordapp.com/a.png",
    "https://[::1]/a.png",
    "https://[::ffff:169.254.169.254]/a.png",
    "https://127.0.0.1/a.png",
    "https://2130706433/a.png",
    "//cdn.discordapp.com/a.png",
    " https://cdn.discordapp.com/a.png",
    "file:///etc/passwd",
    "data:image/png;base64,aaaa",
    "",
    "https://cdn.discordapp.com/\x00a.png",
]


@pytest.mark.parametrize("url", TRICKS)
async def test_nobody_is_asked_but_discord_s_own_hosts(url: str) -> None:
    images = AttachmentFetcher()
    with pytest.raises(UnusableFileError, match="link"):
        await images.fetch_image(Attachment(id="1", filename="a.png", url=url, size=10))
    assert images._client is None


@pytest.mark.parametrize("host", ["cdn.discordapp.com", "media.discordapp.net"])
async def test_discord_s_own_hosts_are_asked_over_https(host: str) -> None:
    url = AttachmentFetcher()._check_link(f"https://{host}/attachments/1/2/a.png?ex=1&hm=2")
    assert (url.scheme, url.host, url.port, url.userinfo) == ("https", host, None, b"")


# Finding B2.
async def test_a_text_comes_as_it_is_up_to_the_size_that_is_asked_for(cdn: CdnDouble) -> None:
    async with fetching(cdn) as files:
        assert await files.fetch(cdn.attachment("a.log", b"so it is", size=8), 8) == b"so it is"
        for served in (b"so it is.", Served(endless=True)):
            with pytest.raises(UnusableFileError, match="too large"):
                await files.fetch(cdn.attachment("b.log", served, size=8), 8)
        with pytest.raises(UnusableFileError, match="too large"):
            await files.fetch(cdn.attachment("c.log", b"", size=9), 8)
        with pytest.raises(LinkExpiredError):
            await files.fetch(cdn.attachment("d.log", Served(status=302, headers={"Location": cdn.host}), size=8), 8)
        assert "/c.log" not in cdn.asked
