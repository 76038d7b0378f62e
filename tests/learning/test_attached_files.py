"""The choice and reading of a message's files."""

from __future__ import annotations

from datetime import timedelta

from msgspec import structs

from intern.core.errors import ChatUnavailableError, InternError, PageUnavailableError, UnusableFileError
from intern.core.ids import UserId
from intern.core.messages import MOST_FILE_BYTES, Attachment, FileDigest, Image
from intern.learning.attached_files import MOST_FILES, UNREAD, FileReader
from tests.worlds.clock import HandClock

ANN, BOB = UserId("1"), UserId("2")
NOW = HandClock().now()
LOG = b"ERROR: spool is full"


def file(name: str, kind: str | None = "text/plain") -> Attachment:
    return Attachment(id=name, filename=name, url=f"https://cdn/{name}", size=9, content_type=kind)


class Host:
    """Serves a log under each name, unless a test has other contents for it or lets it fail."""

    def __init__(self) -> None:
        self.fetched: list[str] = []
        self.contents: dict[str, bytes] = {}
        self.fails: dict[str, InternError] = {}

    async def fetch_image(self, attachment: Attachment, /) -> Image:
        raise UnusableFileError(attachment.filename)

    async def fetch(self, attachment: Attachment, most: int, /) -> bytes:
        assert most == MOST_FILE_BYTES
        self.fetched.append(attachment.filename)
        if attachment.filename in self.fails:
            raise self.fails[attachment.filename]
        return self.contents.get(attachment.filename, LOG)


def test_all_but_pictures_and_sounds_are_looked_at_up_to_four_a_message() -> None:
    files = [file("a.png", "image/png"), file("voice", "audio/ogg"), file("x", None), *map(file, "abcde")]
    assert [each.id for each in FileReader(Host()).choose(ANN, NOW, "", files)] == ["x", "a", "b", "c"]
    assert FileReader(Host(), reads=False).choose(ANN, NOW, "", files) == []


def test_texts_with_the_names_of_media_are_looked_at() -> None:
    film = structs.replace(file("film.mp4", "video/mp4"), width=640, height=480)
    files = [film, file("relay.ts", "video/mp2t"), file("plan.svg", "image/svg+xml"), file("a.png", "image/png")]
    assert [each.id for each in FileReader(Host()).choose(ANN, NOW, "", files)] == ["relay.ts", "plan.svg"]


def test_a_file_that_is_too_large_takes_no_place_and_counts_for_no_hour() -> None:
    large = [structs.replace(file(f"{n}.zip"), size=MOST_FILE_BYTES + 1) for n in range(MOST_FILES)]
    reader = FileReader(Host(), per_hour=1)
    assert [each.id for each in reader.choose(ANN, NOW, "", [*large, file("latest.log")])] == ["latest.log"]


# Finding B2.
def test_a_member_who_sends_a_hundred_files_is_held_to_the_limit_of_the_hour() -> None:
    reader = FileReader(Host(), per_hour=20)
    sent = [[file(f"{n}-{k}") for k in range(MOST_FILES)] for n in range(25)]
    chosen = [len(reader.choose(ANN, NOW, "", files)) for files in sent]
    assert (sum(chosen), chosen[:5]) == (20, [4] * 5)
    assert [len(reader.choose(ANN, NOW, "", files)) for files in sent] == chosen, "reading again costs nothing"
    assert len(reader.choose(BOB, NOW, "", sent[-1])) == 4
    assert len(reader.choose(ANN, NOW + timedelta(hours=1), "", sent[-1])) == 4


def test_links_are_followed_to_paste_sites_that_are_set_and_nowhere_else() -> None:
    text = "see <https://paste.example/raw/abc>. or https://paste.example.evil/x http://paste.example/y https://a@paste.example/z"
    found = FileReader(Host(), paste_hosts=["paste.example"]).choose(ANN, NOW, text, [])
    assert [(each.url, each.filename, each.is_linked) for each in found] == [
        ("https://paste.example/raw/abc", "paste.example/raw/abc", True)
    ]
    assert FileReader(Host()).choose(ANN, NOW, text, []) == []


async def test_a_paste_is_read_like_a_file_unless_it_is_a_page_or_fails() -> None:
    texts = {"https://p.example/1": LOG, "https://p.example/2": b"<!doctype html>error: x y"}

    async def fetch(url: str) -> bytes:
        if url not in texts:
            raise PageUnavailableError("away")
        return texts[url]

    reader = FileReader(Host(), paste_hosts=["p.example"], fetch_paste=fetch)
    text = "https://p.example/1 https://p.example/2 https://p.example/3"
    read = await reader.read_each(reader.choose(ANN, NOW, text, []))
    assert [read[f"https://p.example/{n}"].digest for n in "123"] == [
        FileDigest(telling=LOG.decode(), went_wrong=True, excerpt=LOG.decode()),
        None,
        UNREAD,
    ]


async def test_a_paste_is_a_page_only_if_it_begins_as_one() -> None:
    pages = ["\ufeff<!DOCTYPE html>\n<p>error: x y", "\n <HTML lang=en><p>error: x y"]
    texts = ["<configuration>\n  <port>error</port>", "<6>[ 12.3] usb 1-1: device not accepting address, error -71"]

    async def fetch(url: str) -> bytes:
        return url.removeprefix("https://").encode()

    reader = FileReader(Host(), fetch_paste=fetch)
    pasted = [Attachment(id=f"https://{each}", filename="", url=f"https://{each}", size=0) for each in pages + texts]
    assert [await reader.read(each) is None for each in pasted] == [True, True, False, False]


async def test_a_file_that_cannot_be_had_is_said_to_be_unread_and_no_text_is_a_name() -> None:
    host = Host()
    host.fails["b.log"] = ChatUnavailableError("away")
    host.contents["c.zip"] = bytes(range(256))
    read = await FileReader(host).read_each([file("a.log"), file("b.log"), file("c.zip")])
    assert read["a.log"].digest == FileDigest(telling=LOG.decode(), went_wrong=True, excerpt=LOG.decode())
    assert (read["b.log"].digest, read["c.zip"].digest) == (UNREAD, None)


async def test_what_was_forgotten_while_it_was_read_is_not_held_in_memory() -> None:
    reader = FileReader(Host())
    fetch = reader.host.fetch

    async def forgetting(attachment: Attachment, most: int, /) -> bytes:
        reader.digests.clear()
        return await fetch(attachment, most)

    reader.host.fetch = forgetting  # type: ignore[method-assign]
    assert await reader.read(file("a.log"))
    assert reader.digests == {}
