"""The engine treats any text of people as words, and nothing else."""

from __future__ import annotations

from typing import Any

import anyio
import apsw
import pytest
from anyio import fail_after
from hypothesis import given, settings, strategies as st

from intern.search.hybrid_search import HybridSearch
from intern.search.ranking import fuse_rankings
from intern.search.terms import MOST_TERMS, SearchTerms, split_search_terms
from intern.stores.search_file.word_matches import match_any, quote_term
from tests.examples import examples
from tests.search.documents import Directions, document, opened


def engine() -> Any:
    db: Any = apsw.Connection(":memory:")
    db.execute("create virtual table words using fts5 (summary, text, tokenize = 'porter unicode61')")
    db.execute("create virtual table grams using fts5 (text, tokenize = 'trigram')")
    db.execute("insert into words values ('all about ports', 'NEAR the port: a-b ^c'), ('', 'nothing')")
    return db


def test_stop_words_go_unless_nothing_else_is_left() -> None:
    assert split_search_terms("How do I rotate the signing key? The key!").words == ("rotate", "signing", "key")
    assert split_search_terms("what is this").words == ("what", "is", "this")
    assert split_search_terms(' ?! "* ') == SearchTerms()


def test_what_means_something_to_the_engine_is_a_word_here() -> None:
    assert match_any(split_search_terms('summary:s NEAR(a b, 2) "x" y* -z ^q AND').words) == (
        '"summary" OR "near" OR "b" OR "2" OR "x" OR "y" OR "z" OR "q"'
    )
    assert quote_term('a"b\0c') == '"a""b c"'
    assert match_any(()) is None


def test_a_paste_is_cut_to_its_first_terms() -> None:
    assert len(split_search_terms(" ".join(f"word{n}" for n in range(500))).words) == MOST_TERMS


def test_scripts_without_spaces_are_taken_in_pieces() -> None:
    terms = split_search_terms("GPU 如何安装 驱动")
    assert terms.words == ("gpu",)
    assert terms.grams == ("gpu", "如何安", "何安装")
    assert terms.short == ("驱动",)


def test_words_in_a_language_that_is_known_have_its_stems_too() -> None:
    terms = split_search_terms("Wie kann ich die Verbindungen der Agenten prüfen?")
    assert {"verbindungen", "agenten", "prüfen"} <= set(terms.words)
    assert {"verbind", "agent", "pruf"} <= set(terms.stems)
    assert not set(terms.stems) & set(terms.words)
    assert split_search_terms("How can I check the connections of the agents?").stems == ()
    assert (
        len(split_search_terms("Wie kann ich die prüfen? " + " ".join(f"wort{n}" for n in range(500))).stems)
        <= MOST_TERMS
    )


@settings(max_examples=examples(300))
@given(st.text(max_size=60) | st.text(st.sampled_from('"*:-^()+ NEARORANDab{}\0\u0e01\u4e00'), max_size=40))
def test_no_text_is_an_error_to_the_engine(text: str) -> None:
    terms = split_search_terms(text)
    db = engine()
    for table, match in (("words", match_any(terms.words)), ("grams", match_any(terms.grams))):
        if match is not None:
            db.execute(f"select * from {table} where {table} match ?", (match.encode("utf-8", "replace").decode(),))
    db.close()


def test_orders_are_joined_by_their_places() -> None:
    assert fuse_rankings(["a", "b", "c"], ["b", "d"]) == ["b", "a", "d", "c"]
    assert fuse_rankings(["a", "b"]) == ["a", "b"]
    assert fuse_rankings() == []


@pytest.mark.parametrize("text", ["summary:ports", "ports -nothing", '"ports', "port*", "NEAR(ports nothing, 0)"])
def test_an_operator_finds_what_its_words_find(text: str) -> None:
    db = engine()
    match = match_any(split_search_terms(text).words)
    assert db.execute("select rowid from words where words match ? order by rowid", (match,)).fetchall()[0] == (1,)
    db.close()


HOSTILE = (
    st.characters() | st.characters(categories=["Cs", "Cc", "Cf"]) | st.sampled_from("\"*:-^()+,{}' \u0e01驱动안🔥\0")
)
SPOKEN = st.lists(
    st.text(HOSTILE, max_size=8)
    | st.sampled_from(["NEAR(a b, 2)", "AND", "OR NOT", "text:", "title : ports", "-text"]),
    max_size=6,
).map(" ".join)


def test_no_text_is_an_error_to_the_search_and_none_selects_a_column(tmp_path_factory: pytest.TempPathFactory) -> None:
    async def law(texts: list[str]) -> None:
        with fail_after(60):
            async with opened(tmp_path_factory.mktemp("shelf")) as (store, _):
                await store.replace_documents(
                    [document("kb:a", "all about ports", title="relay"), document("kb:b", "安装驱动程序 🔥")]
                )
                finder = HybridSearch(store, Directions())
                for text in texts:
                    found = {str(each.document.source_id) for each in await finder.find(text)}
                    for prefix in ("title:", "- text :", "{title} : ^"):
                        # The name of a column is a word that nothing here holds.
                        assert {str(each.document.source_id) for each in await finder.find(f"{prefix}{text}")} == found

    texts: list[str] = []

    @settings(max_examples=examples(60), database=None)
    @given(SPOKEN)
    def collect(text: str) -> None:
        texts.append(text)

    collect()
    anyio.run(law, texts)
