"""Finding says what it found and why; nothing found is no failure."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Never

import apsw
import pytest
from anyio import CancelScope, create_task_group, fail_after, sleep_forever, to_thread, wait_all_tasks_blocked
from msgspec.structs import replace

from intern.core.errors import KnowledgeError
from intern.core.search_documents import SearchFilter
from intern.search.hybrid_search import HybridSearch
from intern.search.terms import split_search_terms
from intern.stores.search_file.search_index import SqliteSearchStore
from tests.search.documents import Directions, document, opened, ranked


async def test_what_is_found_says_why(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, _):
        await store.replace_documents(
            [document("kb:keys", "How signing keys are rotated"), document("kb:ports", "The relay's ports")]
        )
        [first] = await HybridSearch(store).find("Can I rotate a signing key -- today?")
        assert first.document.source_id == "kb:keys"
        assert first.matched == ("rotate", "signing", "key")
        assert first.bm25 > 0
        assert await HybridSearch(store).find("xylophone") == ()
        assert await HybridSearch(store).find("?!") == ()


async def test_other_scripts_are_found_by_a_part_and_by_two_characters(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, _):
        await store.replace_documents([document("kb:zh", "如何安装GPU驱动程序"), document("kb:en", "How to install")])
        for asked in ("安装驱动程序", "驱动", "gpu"):
            [hit] = await HybridSearch(store).find(asked)
            assert hit.document.source_id == "kb:zh"
            assert hit.matched


async def test_another_form_of_a_word_is_found_in_the_language_of_text_and_question(tmp_path: Path) -> None:
    texts = {
        "kb:de": (
            "Die Verbindungen sind immer mit einem eigenen Zertifikat gesichert.",
            "Wie wird die Verbindung geschützt?",
        ),
        "kb:fr": (
            "Les sauvegardes sont gardées pendant une semaine sur le disque.",
            "Où est la sauvegarde de mes données ?",
        ),
        "kb:es": (
            "Los agentes están siempre conectados con el servidor principal.",
            "¿Por qué mi agente no se conecta?",
        ),
        "kb:pt": (
            "As configurações ficam guardadas em um arquivo de texto.",
            "Onde eu mudo a configuração do meu programa?",
        ),
    }
    async with opened(tmp_path) as (store, _):
        await store.replace_documents([document(name, text) for name, (text, _) in texts.items()])
        for name, (_, question) in texts.items():
            hits, _ = await store.search_words(split_search_terms(question).stems, (), (), SearchFilter(), 5)
            assert [hit.source_id for hit in hits] == [name]
            assert await ranked(HybridSearch(store), question, 1) == [name]
        await store.replace_documents([document("kb:de", "Nothing of that is left.")])
        asked = split_search_terms(texts["kb:de"][1])  # a heading does not tell its language
        await store.replace_documents([document("kb:heading", "Die Verbindungen der Agenten")])
        assert await store.search_words(asked.stems, (), (), SearchFilter(), 5) == [(), ()]


async def test_the_best_come_first_and_filters_hold(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, _):
        await store.replace_documents(
            [
                document("kb:a", "keys are kept here and much else is told at length in this text"),
                document("kb:b", "signing keys"),
                document("file:c", "signing keys", kind="file", type="source_code"),
            ]
        )
        finder = HybridSearch(store)
        assert await ranked(finder, "signing keys", 5) == ["kb:b", "kb:a"]
        assert await ranked(finder, "signing keys", 1) == ["kb:b"]
        [hit] = await finder.find("signing keys", SearchFilter(type="source_code"))
        assert hit.document.source_id == "file:c"


async def test_what_an_answer_is_to_draw_on_is_what_is_found(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, _):
        texts = ["signing keys", "signing keys, and how they are told apart", "keys", "signing", "如何安装驱动程序"]
        await store.replace_documents([document(f"kb:{n}", text) for n, text in enumerate(texts)])
        finder = HybridSearch(store)
        for asked in ("signing keys", "安装驱动程序", "驱动", "signing 驱动", "?!"):
            found = [each.document.source_id for each in await finder.find(asked)]
            assert await ranked(finder, asked, 9) == found
        assert await ranked(finder, "安装驱动程序 or 驱动", 9) == ["kb:4"]


async def test_of_many_questions_at_once_each_is_embedded_once(tmp_path: Path) -> None:
    embedder, questions = Directions(), [f"signing keys {n}" for n in range(40)]
    async with opened(tmp_path) as (store, _), create_task_group() as tg:
        await store.replace_documents([document("kb:new", "signing keys")])  # without a vector yet
        finder = HybridSearch(store, embedder)
        for question in questions:
            tg.start_soon(finder.find, question)
    assert sorted(embedder.asked) == sorted(questions)


# Finding A2.
async def test_a_search_that_is_cancelled_while_a_thread_looks_for_words_ends_there(tmp_path: Path) -> None:
    looking, looked = threading.Event(), threading.Event()

    class Slow(SqliteSearchStore):
        async def search_words(self, *args: Any, **kwargs: Any) -> Any:
            found = await super().search_words(*args, **kwargs)
            looking.set()
            await to_thread.run_sync(looked.wait)
            return found

    class Waiting(Directions):
        async def compute_vectors(self, texts: Sequence[str], /, *, asked: bool = False) -> Never:
            await sleep_forever()
            raise AssertionError

    ended: list[object] = []
    async with opened(tmp_path) as (store, db), create_task_group() as tg:
        await store.replace_documents([document("kb:keys", "signing keys")])
        finder, asking = HybridSearch(Slow(db, tmp_path / "search.db"), Waiting()), CancelScope()

        async def ask() -> None:
            try:
                with asking:
                    await finder.find("signing keys")
            except TypeError as bug:
                ended.append(bug)
            else:
                ended.append("cancelled" if asking.cancelled_caught else "found")

        tg.start_soon(ask)
        await to_thread.run_sync(looking.wait)
        asking.cancel()
        await wait_all_tasks_blocked()  # the thread alone is waited for
        looked.set()
    assert ended == ["cancelled"]


@pytest.mark.rest
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_words_rank_as_plain_fts5_does_among_many_documents_each_of_which_holds_common_words(
    tmp_path: Path,
) -> None:
    chance = Random(17)
    shares = [0.5, 0.3, 0.2, 0.1, 0.06, 0.04, 0.03, 0.002, 0.9, 0.45]
    texts = [
        " ".join(f"word{n}" for n, share in enumerate(shares) if chance.random() < share)
        + " else" * chance.randrange(1, 20)
        for _ in range(20_500)
    ]
    with fail_after(120):
        async with opened(tmp_path) as (store, _):
            await store.replace_documents([document(f"kb:{n}", text) for n, text in enumerate(texts)])
            plain: Any = apsw.Connection(":memory:")
            plain.execute("create virtual table plain using fts5 (title, path, text, tokenize = 'porter')")
            plain.executemany("insert into plain values ('', '', ?)", [(text,) for text in texts])
            best = "select bm25(plain) from plain where plain match ? order by 1 limit 10"
            score = "select bm25(plain) from plain where plain match ? and rowid = ?"
            finder = HybridSearch(store)
            for asked in (
                "word0 word1 word2 word3 word4 word5 word6 word7",
                "word3 word4 word5",
                "word0 word6",
                "word8 word9",
            ):
                match = " OR ".join(asked.split())
                order = await ranked(finder, asked, 10)
                theirs = [value for (value,) in plain.execute(best, (match,))]
                ours = [plain.execute(score, (match, int(each[3:]) + 1)).fetchall()[0][0] for each in order]
                assert ours == pytest.approx(theirs)
            plain.close()


@pytest.mark.rest
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_a_filter_that_leaves_few_loses_none_that_holds_only_the_commonest_word(tmp_path: Path) -> None:
    with fail_after(120):
        async with opened(tmp_path) as (store, _):
            many = [document(f"kb:{n}", f"relay {'spool' if n % 3 else 'valve'} of part{n}") for n in range(12_000)]
            await store.replace_documents([*many, document("nugget:1", "the relay", kind="nugget", status="FACT")])
            [found] = await HybridSearch(store).find("relay spool valve part77", SearchFilter(kinds=("nugget",)))
            assert found.document.source_id == "nugget:1"
            assert found.matched == ("relay",)


async def test_a_long_document_does_not_win_by_the_number_of_its_passages_and_a_topic_is_no_long_text(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as (store, _):
        long = [document("kb:long", "ports are open" if n == 7 else f"part {n}", n=n) for n in range(30)]
        short = document("kb:short", "ports are open", type="document")
        for kind, order in (("document", ["kb:short", "kb:long"]), ("topic", ["kb:long", "kb:short"])):
            await store.replace_documents([*(replace(each, type=kind) for each in long), short])
            assert await ranked(HybridSearch(store), "ports", 5) == order


async def test_a_store_that_cannot_look_is_an_error(tmp_path: Path) -> None:
    class Broken(SqliteSearchStore):
        async def search_words(self, *_args: Any, **_named: Any) -> Never:
            raise KnowledgeError("the disk is gone")

    async with opened(tmp_path) as (_, db):
        with pytest.raises(KnowledgeError):
            await HybridSearch(Broken(db, tmp_path / "search.db")).find_passages("port", 5)
