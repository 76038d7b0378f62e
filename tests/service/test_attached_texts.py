"""Text files through the whole bot: real verbs and stores, a Discord in memory, and its files on a socket."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from anyio import Event, fail_after
from anyio.to_thread import run_sync

from intern.core.captures import CapturedPair
from intern.core.decisions import MessagesWithdrawn, PairFiled
from intern.core.messages import AnswerResult, Attachment, Image
from intern.learning.forgetting import ForgetRequest
from intern.platforms.discord.attachments import AttachmentFetcher
from intern.runtime.bot import open_sandbox
from intern.service.job_kinds import FORGET
from intern.service.opening import open_intern
from intern.settings.settings import Settings
from intern.sources.refresh import RefreshReport
from intern.stores.archive import Archive
from intern.stores.engines.sqlite.database import ReadOnlySqliteDatabase
from tests.service.test_recorder import words_of
from tests.worlds.bot import Watching, settings_in
from tests.worlds.cdn import CdnDouble, Served, cdn_double
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock

pytestmark = pytest.mark.anyio

LOG = "INFO: starting for ann@example.org\nERROR: quokka spool of /home/annsmith is locked (code 35)\n"
SEEN = "ERROR: quokka spool of /home/[masked user_name] is locked (code 35)"


@dataclass
class Scene:
    sandbox: Sandbox
    events: Watching
    cdn: CdnDouble
    settings: Settings

    def log(self, text: str = LOG, name: str = "latest.log") -> Attachment:
        return self.cdn.attachment(name, text.encode(), content_type="text/plain")

    def turns(self) -> list[list[str]]:
        return [[turn.text for turn in pair.turns] for pair in Archive(self.settings.paths.raw).pairs_after(None)]


@asynccontextmanager
async def at_work(
    folder: Path, cdn: CdnDouble, sandbox: Sandbox | None = None, **discord: Any
) -> AsyncGenerator[Scene]:
    settings, events = settings_in(folder, **discord), Watching()
    scene = Scene(sandbox or Sandbox(HandClock(), team={"mira"}), events, cdn, settings)
    with fail_after(60):
        async with (
            AttachmentFetcher(hosts=[cdn.host]) as files,
            open_sandbox(settings, scene.sandbox, events=events, clock=HandClock(), files=files),
        ):
            await events.one_of(RefreshReport)
            yield scene


# Finding B2.
async def test_what_a_log_tells_is_archived_with_its_message_masked_and_never_whole(tmp_path: Path) -> None:
    with cdn_double() as cdn:
        async with at_work(tmp_path, cdn) as scene:
            asked = scene.sandbox.say("bob", "It does not start", attachments=[scene.log()])
            fix = scene.cdn.attachment("fix.conf", b"[spool]\nlock = false\n", content_type="application/octet-stream")
            packed = scene.cdn.attachment("all.zip", bytes(range(256)) * 9, content_type="application/zip")
            scene.sandbox.say("mira", "Use this.", reply_to=asked.id, attachments=[fix, packed])
            await scene.events.one_of(PairFiled)
            first = [f"It does not start\n[file latest.log: {SEEN}]"]
            first.append("Use this.\n[file fix.conf: [spool] / lock = false]\n[file: all.zip]")
            assert scene.turns() == [first]

            scene.sandbox.edit(asked.channel_id, asked.id, "It does not stop")
            await scene.events.one_of(CapturedPair, after=1)
            assert scene.turns()[-1][0] == f"It does not stop\n[file latest.log: {SEEN}]"


class Waiting:
    """A host that holds a log or a picture back until it is released."""

    def __init__(self) -> None:
        self.asked, self.released = Event(), Event()

    async def fetch_image(self, attachment: Attachment, /) -> Image:
        return Image(media_type="image/png", data=await self.fetch(attachment, 0))

    async def fetch(self, attachment: Attachment, most: int, /) -> bytes:
        self.asked.set()
        await self.released.wait()
        return LOG.encode()


async def test_a_file_that_is_fetched_while_its_message_is_deleted_leaves_nothing(tmp_path: Path) -> None:
    settings, events, host = settings_in(tmp_path), Watching(), Waiting()
    sandbox = Sandbox(HandClock(), team={"mira"})
    log = Attachment(id="1", filename="latest.log", url="", size=9, content_type="text/plain")
    with fail_after(60):
        async with open_sandbox(settings, sandbox, events=events, clock=HandClock(), files=host):
            await events.one_of(RefreshReport)
            asked = sandbox.say("bob", "It does not start", attachments=[log])
            sandbox.say("mira", "Purge it.", reply_to=asked.id)
            await host.asked.wait()
            sandbox.delete(asked.channel_id, asked.id)
            await events.one_of(MessagesWithdrawn)
            host.released.set()
            other = sandbox.say("ann", "@intern Which port does the relay listen on?")
            await events.one_of(AnswerResult)
            sandbox.say("mira", "It is 7480.", reply_to=other.id)
            await events.one_of(PairFiled)
    assert (
        ReadOnlySqliteDatabase(settings.paths.database).read_blocking(
            lambda db: db.texts("select text from attachment_texts")
        )
        == []
    )


async def test_what_a_file_said_is_held_in_memory_until_a_message_is_deleted(tmp_path: Path) -> None:
    with cdn_double() as cdn:
        async with at_work(tmp_path, cdn) as scene:
            log, times = scene.log(), list[int]()
            for n in range(3):
                asked = scene.sandbox.say(f"bob{n}", "@intern It does not start, why?", attachments=[log])
                await scene.events.one_of(AnswerResult, after=n)
                times.append(len(cdn.asked))
                if n:
                    scene.sandbox.delete(asked.channel_id, asked.id)
        assert times == [1, 1, 2]


@pytest.mark.rest
async def test_an_outage_changes_nothing_of_what_a_log_teaches(tmp_path: Path) -> None:
    with cdn_double() as cdn:
        sandbox = Sandbox(HandClock(), team={"mira"})
        async with at_work(tmp_path, cdn, sandbox):
            pass
        log = cdn.attachment("latest.log", LOG.encode(), content_type="text/plain")
        asked = sandbox.say("bob", "It does not start", attachments=[log])
        sandbox.say("mira", "Purge it.", reply_to=asked.id)
        async with at_work(tmp_path, cdn, sandbox) as scene:
            await scene.events.one_of(PairFiled)
        assert scene.turns() == [[f"It does not start\n[file latest.log: {SEEN}]", "Purge it."]]


@pytest.mark.rest
async def test_switched_off_files_are_names_and_nothing_is_fetched(tmp_path: Path) -> None:
    with cdn_double() as cdn:
        async with at_work(tmp_path, cdn, read_files=False) as scene:
            asked = scene.sandbox.say("bob", "@intern It does not start, why?", attachments=[scene.log()])
            await scene.events.one_of(AnswerResult)
            scene.sandbox.say("mira", "Purge it.", reply_to=asked.id)
            await scene.events.one_of(PairFiled)
        assert scene.turns() == [["@intern It does not start, why?\n[file: latest.log]", "Purge it."]]
        assert cdn.asked == []


@pytest.mark.rest
async def test_a_member_who_sends_a_hundred_is_held_to_twenty_an_hour(tmp_path: Path) -> None:
    with cdn_double() as cdn:
        async with at_work(tmp_path, cdn, files_per_hour=20, max_questions_per_user_per_hour=0) as scene:
            for n in range(25):
                files = [scene.log(name=f"{n}-{chr(97 + k) * (k + 1)}.log") for k in range(4)]
                scene.sandbox.say("bob", f"@intern Why is it locked, take {n}?", attachments=files)
                await scene.events.one_of(AnswerResult, after=n)
        assert len(cdn.asked) == 20


@pytest.mark.rest
async def test_a_log_that_cannot_be_fetched_leaves_the_question_to_be_answered(tmp_path: Path) -> None:
    with cdn_double() as cdn:
        async with at_work(tmp_path, cdn) as scene:
            gone = cdn.attachment("gone.log", Served(status=404), content_type="text/plain")
            scene.sandbox.say("bob", "@intern Which port does the relay listen on?", attachments=[gone])
            result = await scene.events.one_of(AnswerResult)
        assert result.should_reply
        assert "7480" in (result.reply_text or "")


def holding(settings: Settings, word: str) -> list[str]:
    """Return the files of a folder and the unpacked recordings that contain a word."""
    folder = settings.paths.database.parent
    files = (path for path in folder.rglob("*") if path.is_file())
    found = sorted(str(path.relative_to(folder)) for path in files if word.encode() in path.read_bytes())
    return found + ["recordings"] * (word in words_of(settings))


# Finding B2.
@pytest.mark.parametrize("by", ["member", "message"])
async def test_forgetting_leaves_no_byte_of_a_file(tmp_path: Path, by: str) -> None:
    with cdn_double() as cdn:
        async with at_work(tmp_path, cdn, max_questions_per_user_per_hour=0) as scene:
            asked = scene.sandbox.say("bob", "@intern It does not start, why?", attachments=[scene.log()])
            await scene.events.one_of(AnswerResult)
            scene.sandbox.say("mira", "Purge it.", reply_to=asked.id)
            await scene.events.one_of(PairFiled)
        assert "recordings" in await run_sync(holding, scene.settings, "quokka")
        assert (
            await run_sync(holding, scene.settings, "annsmith")
            == await run_sync(holding, scene.settings, "ann@example")
            == []
        )
        wanted = ForgetRequest(user_id=asked.author.id) if by == "member" else ForgetRequest(message_ids=(asked.id,))
        with fail_after(30):
            async with open_intern(scene.settings, clock=HandClock()) as intern:
                await intern.run_job(
                    FORGET, ForgetRequest(user_id=wanted.user_id, message_ids=wanted.message_ids, erase=True)
                )
        assert await run_sync(holding, scene.settings, "quokka") == []
