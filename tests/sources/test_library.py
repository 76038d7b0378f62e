"""The library opens what is listed and nothing else, and knows where the team gave an answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from intern.answering.steps import KnowledgeLookup as Sources
from intern.core.captures import Capture, CapturedPair, Turn
from intern.core.errors import KnowledgeError, SourceError
from intern.core.ids import ChannelId, GuildId, MessageId, QAId, SourceId, TopicName, reply_conversation
from intern.learning.prompts import build_block
from intern.platforms.discord.options import DiscordOptions
from intern.sources.catalogue import Catalogue
from intern.sources.library import Library, document_title, jump_link
from intern.sources.source_folder import SourceFolder
from intern.stores.archive import Archive
from intern.stores.source_cache import CachedFile, CachedSource, Index
from intern.stores.tables.knowledge import KnowledgeStore
from tests.worlds.clock import HandClock
from tests.worlds.knowledge import knowledge_in

GPU = TopicName("gpu-detection")
LISTED = CachedFile(
    content_hash="1",
    summary_text="…",
    last_indexed_at=HandClock().now(),
    rel_path="a.md",
    size_bytes=1,
    version=1,
)


class Folder:
    """A data folder with its stores."""

    def __init__(self, root: Path, knowledge: KnowledgeStore) -> None:
        self.sources = root / "kb" / "sources"
        self.sources.mkdir(parents=True)
        self.knowledge = knowledge
        self.archive = Archive(root / "team" / "raw", clock=HandClock())
        self.kb, self.team = Catalogue(knowledge, "kb"), Catalogue(knowledge, "team")
        self.library = Library(
            indices=(self.kb, self.team),
            sources=SourceFolder(self.sources, 1_000_000),
            topics=knowledge,
            archive=self.archive,
        )

    def source(self, name: str, text: str) -> None:
        path = self.sources / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    async def listed(self, *source_ids: str) -> None:
        """List these, in the index that each belongs to."""
        for catalogue, prefix in ((self.kb, "kb:"), (self.team, "team:")):
            await catalogue.change({SourceId(name): LISTED for name in source_ids if name.startswith(prefix)})

    async def filed(self, capture: Capture, topic: TopicName = GPU) -> CapturedPair:
        pair = self.archive.append(capture)
        await self.knowledge.change(lambda change: change.file_blocks(topic, build_block(pair)))
        return pair


@pytest.fixture
async def folder(tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Folder]:
    async with knowledge_in(tmp_path) as knowledge:
        yield Folder(tmp_path, knowledge)


def capture(**changes: object) -> Capture:
    fields: dict[str, object] = {
        "conversation_id": reply_conversation(MessageId("10")),
        "turns": (Turn("User", "GPU not found?"), Turn("Team", "Update the driver.")),
        "message_ids": (MessageId("10"), MessageId("11")),
        "answered_at": datetime(2026, 2, 1, tzinfo=UTC),
        "guild_id": GuildId("1"),
        "channel_id": ChannelId("2"),
        **changes,
    }
    return Capture(**fields)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


async def test_documents_and_topics_are_listed_together(folder: Folder) -> None:
    knowledge: Sources = folder.library
    assert await knowledge.entries() == ()
    await folder.listed("team:a.txt", "kb:b.md")
    assert [entry.source_id for entry in await knowledge.entries()] == ["kb:b.md", "team:a.txt"]


async def test_what_is_listed_is_the_very_same_until_an_index_changes(folder: Folder) -> None:
    await folder.listed("kb:a.md")
    listed = await folder.library.entries()
    assert await folder.library.entries() is listed
    await folder.listed("kb:a.md", "kb:b.md")
    assert len(await folder.library.entries()) == 2


async def test_sources_are_loaded_together_and_one_that_fails_says_why(folder: Folder) -> None:
    folder.source("a.md", "# A\n")
    await folder.listed("kb:a.md", "kb:gone.md")
    ids = [SourceId(name) for name in ("kb:gone.md", "kb:a.md", "kb:../a.md")]
    gone, loaded, unlisted = await folder.library.load_each(ids)
    assert loaded == await folder.library.load(ids[1])
    assert isinstance(gone, SourceError)
    assert isinstance(unlisted, SourceError)
    assert "is in no index" in str(unlisted)
    assert await folder.library.load_each([]) == ()


async def test_a_document_is_loaded_with_its_heading_as_title(folder: Folder) -> None:
    folder.source("guide/install.md", "Intro\n\n# Install it #\n\nRun make.\n")
    await folder.listed("kb:guide/install.md")
    loaded = await folder.library.load(SourceId("kb:guide/install.md"))
    assert (loaded.title, loaded.text) == ("Install it", "Intro\n\n# Install it\n\nRun make.")


async def test_a_topic_is_loaded_with_the_ids_of_its_blocks(folder: Folder) -> None:
    pair = await folder.filed(capture())
    await folder.listed("team:gpu-detection.txt")
    loaded = await folder.library.load(SourceId("team:gpu-detection.txt"))
    assert loaded.title == "gpu detection"
    assert pair.qa_id in loaded.text
    assert "Team: Update the driver." in loaded.text


@pytest.mark.parametrize(
    "source_id",
    [
        "kb:secret.md",
        "kb:../outside.md",
        "/etc/passwd",
        "team:/etc/passwd",
        "team:other.txt",
        "kb:https://x/",
        "",
        "\udcff",
    ],
)
async def test_what_is_not_listed_is_never_opened(folder: Folder, source_id: str) -> None:
    folder.source("secret.md", "not indexed")
    folder.source("../outside.md", "outside")
    await folder.filed(capture(), TopicName("other"))
    await folder.listed("kb:open.md")
    with pytest.raises(SourceError, match="in no index"):
        await folder.library.load(SourceId(source_id))
    assert await folder.library.citation_link(SourceId(source_id)) is None


@pytest.mark.parametrize(
    "source_id",
    ["kb:../outside.md", "kb:gone.md", "kb:/etc/passwd", "team:../raw/x.txt", "team:gone.txt", "kb:https://x/"],
)
async def test_a_listed_id_that_cannot_be_read_is_an_error_of_that_source_alone(folder: Folder, source_id: str) -> None:
    folder.source("../outside.md", "outside")
    folder.source("good.md", "good")
    await folder.listed(source_id, "kb:good.md")
    with pytest.raises(SourceError):
        await folder.library.load(SourceId(source_id))
    assert (await folder.library.load(SourceId("kb:good.md"))).text == "good"


async def test_an_index_that_cannot_be_read_is_not_an_empty_library(folder: Folder) -> None:
    class Damaged(KnowledgeStore):
        def read_source_changes(self, index: Index, position: int) -> tuple[int, dict[SourceId, CachedSource | None]]:
            raise KnowledgeError(f"{index} is damaged after {position}")

    catalogue = Catalogue(Damaged(folder.knowledge.db), "kb")
    library = Library(
        indices=(catalogue,), sources=SourceFolder(folder.sources, 1), topics=folder.knowledge, archive=folder.archive
    )
    with pytest.raises(KnowledgeError, match="kb is damaged"):
        await library.entries()


async def test_a_team_answer_links_to_the_message_that_gave_it(folder: Folder) -> None:
    pair = await folder.filed(capture())
    elsewhere = await folder.filed(capture(), TopicName("other"))
    await folder.listed("team:gpu-detection.txt", "kb:https://a.example/#part", "kb:a.md")

    async def link(source_id: str) -> str | None:
        return await folder.library.citation_link(SourceId(source_id))

    assert await link(f"team:gpu-detection.txt#{pair.qa_id}") == "https://discord.com/channels/1/2/11"
    assert await link("kb:https://a.example/#part") == "https://a.example/#part"
    assert await link("kb:https://a.example/") is None
    assert await link("team:gpu-detection.txt") is None
    assert await link("kb:a.md") is None
    assert await link(f"kb:a.md#{pair.qa_id}") is None
    assert await link(f"team:gpu-detection.txt#{elsewhere.qa_id}") is None, "that answer stands in another topic"
    assert await link(f"team:other.txt#{elsewhere.qa_id}") is None, "that topic is not listed"
    assert await link("team:gpu-detection.txt#qa_19990101_000000") is None
    assert await link("team:gpu-detection.txt#../../etc") is None


@pytest.mark.parametrize(
    ("changes", "link"),
    [
        ({}, "https://discord.com/channels/1/2/11"),
        ({"message_ids": (MessageId("msg_7"),)}, "https://discord.com/channels/1/2/7"),
        ({"guild_id": None}, None),
        ({"channel_id": None}, None),
        ({"message_ids": ()}, None),
        ({"channel_id": ChannelId("2/../../evil")}, None),
        ({"message_ids": (MessageId("import-3"),)}, None),
    ],
)
def test_a_link_is_made_of_discord_ids_or_not_at_all(changes: dict[str, object], link: str | None) -> None:
    pair = archived(**changes)
    assert jump_link(pair) == link


@pytest.mark.parametrize(
    ("rest_url", "begins"),
    [
        ("https://discord.com/api/v10", "https://discord.com/channels/"),
        ("https://chat.example:8443/api/v9/", "https://chat.example:8443/channels/"),
    ],
)
def test_links_begin_with_the_server_that_is_spoken_to(rest_url: str, begins: str) -> None:
    assert (jump_link(archived(), DiscordOptions(rest_url=rest_url).site) or "").startswith(begins)


def archived(**changes: object) -> CapturedPair:
    made = capture(**changes)
    return CapturedPair(
        conversation_id=made.conversation_id,
        turns=made.turns,
        message_ids=made.message_ids,
        answered_at=made.answered_at,
        guild_id=made.guild_id,
        channel_id=made.channel_id,
        qa_id=QAId("qa_20260201_031056.228000"),
        timestamp=made.answered_at,
    )


@pytest.mark.parametrize(
    ("name", "text", "title"),
    [
        ("a.md", "```bash\n# no title\n```\n## The *title*\n# Later", "The *title*"),
        ("a.md", "~~~\n```\n# no title\n~~~\n# Title", "Title"),
        ("a.md", "#hashtag\n####### seven\n", "a.md"),
        ("a.md", "# \nText", "a.md"),
        ("dir/a.md", "", "a.md"),
        ("a.txt", "# a comment", "a.txt"),
        ("a.md", "# " + "x" * 500, "x" * 120),
    ],
)
def test_a_title_is_the_first_heading_or_the_file_name(name: str, text: str, title: str) -> None:
    assert document_title(name, text) == title
