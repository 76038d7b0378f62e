"""Finding says what it found and why; nothing found is no failure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from anyio import fail_after

from intern.domain import HeldTerms, Match, SearchFilter, SourceId
from intern.errors import KnowledgeError
from intern.knowledge.database import Transaction
from intern.knowledge.search_store import SqliteSearchStore, WordTable
from intern.search.finding import Finder
from intern.search.query import ENOUGH_DOCUMENTS
from tests.search.documents import document, opened

pytestmark = pytest.mark.anyio


async def test_what_is_found_says_why(tmp_path: Path) -> None:
    with fail_after(5):
        async with opened(tmp_path) as (store, _):
            await store.put(
                [document("kb:keys", "How signing keys are rotated"), document("kb:ports", "The relay's ports")]
            )
            [first] = await Finder(store).find("Can I rotate a signing key -- today?")
            assert first.document.source_id == "kb:keys"
            assert first.matched == ("rotate", "signing", "key")
            assert first.bm25 > 0
            assert await Finder(store).find("xylophone") == ()
            assert await Finder(store).find("?!") == ()


async def test_other_scripts_are_found_by_a_part_and_by_two_characters(tmp_path: Path) -> None:
    with fail_after(5):
        async with opened(tmp_path) as (store, _):
            await store.put([document("kb:zh", "如何安装GPU驱动程序"), document("kb:en", "How to install")])
            for asked in ("安装驱动程序", "驱动", "gpu"):
                [hit] = await Finder(store).find(asked)
                assert hit.document.source_id == "kb:zh"
                assert hit.matched


async def test_the_best_come_first_and_filters_hold(tmp_path: Path) -> None:
    with fail_after(5):
        async with opened(tmp_path) as (store, _):
            await store.put(
                [
                    document("kb:a", "keys are kept here and much else is told at length in this text"),
                    document("kb:b", "signing keys"),
                    document("file:c", "signing keys", kind="file", type="source_code"),
                ]
            )
            finder = Finder(store)
            assert await finder.rank("signing keys", 5) == ["kb:b", "kb:a"]
            assert await finder.rank("signing keys", 1) == ["kb:b"]
            [hit] = await finder.find("signing keys", SearchFilter(type="source_code"))
            assert hit.document.source_id == "file:c"


async def test_what_an_answer_is_to_draw_on_is_what_is_found(tmp_path: Path) -> None:
    with fail_after(5):
        async with opened(tmp_path) as (store, _):
            texts = ["signing keys", "signing keys, and how they are told apart", "keys", "signing", "如何安装驱动程序"]
            await store.put([document(f"kb:{n}", text) for n, text in enumerate(texts)])
            finder = Finder(store)
            for asked in ("signing keys", "安装驱动程序", "驱动", "signing 驱动", "?!"):
                found = [each.document.source_id for each in await finder.find(asked)]
                assert await finder.rank(asked, 9) == found
            assert await finder.rank("安装驱动程序 or 驱动", 9) == ["kb:4"]


async def test_where_enough_hold_every_word_those_that_hold_one_are_not_weighed(tmp_path: Path) -> None:
    class Watched(SqliteSearchStore):
        asked: list[Match]

        def _ids(
            self, db: Transaction, table: WordTable, match: Match, wanted: SearchFilter, limit: int
        ) -> tuple[SourceId, ...]:
            self.asked += [match] if table == "words" else []
            return super()._ids(db, table, match, wanted, limit)

    with fail_after(5):
        async with opened(tmp_path) as (store, db):
            await store.put([document(f"kb:{n}", "signing keys" if n < 3 else "keys") for n in range(90)])
            watched = Watched(db)
            watched.asked = []
            assert len(await Finder(watched).rank("signing keys", 3)) == 3
            assert watched.asked == ['"signing" AND "keys"']
            assert len(await Finder(watched).rank("signing keys", 9)) == 9
            assert watched.asked[1:] == ['"signing" AND "keys"', '"signing" OR "keys"']
            # Of so few documents, hardly enough hold every word.
            assert len(await Finder(watched).rank("signing keys", 10)) == 10
            assert watched.asked[3:] == ['"signing" OR "keys"']


async def test_among_many_documents_common_words_do_not_find_all_of_them(tmp_path: Path) -> None:
    with fail_after(60):
        async with opened(tmp_path) as (store, _):
            await store.put([document(f"kb:{n}", f"relay part{n}") for n in range(ENOUGH_DOCUMENTS)])
            finder = Finder(store)
            assert await finder.rank("relay part77", 5) == ["kb:77"]
            assert len(await finder.rank("relay", 5)) == 5


async def test_a_store_that_cannot_look_is_an_error(tmp_path: Path) -> None:
    class Broken(SqliteSearchStore):
        async def held(self, terms: Sequence[Match], at_most: float, least: int) -> HeldTerms:
            raise KnowledgeError("the disk is gone")

    with fail_after(5):
        async with opened(tmp_path) as (_, db):
            with pytest.raises(KnowledgeError):
                await Finder(Broken(db)).rank("port", 5)
