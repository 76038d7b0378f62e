"""Words are comparable across the forms that people write."""

from __future__ import annotations

import pytest
from hypothesis import example, given, strategies as st

from intern.chat.reply_text import thread_name
from intern.core.text.words import (
    STOP_WORDS,
    WordRarity,
    add_title,
    find_key_terms,
    split_words,
    stem_set,
    stem_words,
    word_overlap,
)


@pytest.mark.parametrize(
    "forms",
    [
        ("rotate", "rotation", "rotating", "rotated", "rotates"),
        ("install", "installing", "installation", "installed"),
        ("configure", "configuration", "configuring"),
        ("encrypt", "encryption", "encrypted"),
        ("hope", "hoping", "hopes"),
        ("policy", "policies"),
        ("agree", "agreed"),
        ("stop", "stopping", "stopped"),
    ],
)
def test_forms_of_one_word_have_one_stem(forms: tuple[str, ...]) -> None:
    assert len({stem_words(form)[0] for form in forms}) == 1


# From the sample vocabulary that M. F. Porter published with the algorithm.
@pytest.mark.parametrize(
    ("word", "stem"),
    [
        ("caresses", "caress"),
        ("ponies", "poni"),
        ("plastered", "plaster"),
        ("conditional", "condit"),
        ("generalization", "gener"),
        ("electricity", "electr"),
        ("adjustable", "adjust"),
        ("replacement", "replac"),
        ("adoption", "adopt"),
        ("falling", "fall"),
        ("sky", "sky"),
    ],
)
def test_stems_are_porters(word: str, stem: str) -> None:
    assert stem_words(word) == [stem]


def test_small_talk_and_contractions_say_nothing() -> None:
    assert stem_words("Hi! Can't I just do this, please? It doesn’t, and we'll thank you") == []


def test_identifiers_are_found_by_their_parts() -> None:
    assert stem_words("relay.buffer_size") == stem_words("relay buffer size")


def test_numbers_and_versions_stay() -> None:
    assert stem_words("v2 on 8443") == ["v2", "8443"]


def test_scripts_without_spaces_match_by_pairs() -> None:
    assert word_overlap("東京", "これは東京タワーです") == 1.0


@given(st.text())
@example("rotation, rotating and the Rotations")
@example("日本語 foo_bar ÄPFEL Äpfel")
def test_a_text_has_each_of_its_words_once(text: str) -> None:
    assert stem_set(text) == frozenset(stem_words(text))


@given(st.text(st.characters(codec="ascii")))
def test_in_ascii_a_word_is_a_run_of_letters_and_digits(text: str) -> None:
    assert split_words(text) == "".join(char if char.isalnum() else " " for char in text).split()


def test_overlap_is_the_share_of_the_query() -> None:
    assert word_overlap("rotate the signing keys", "Key rotation") == pytest.approx(2 / 3)
    assert word_overlap("what is it?", "Key rotation") == 0.0


def test_key_terms_are_written_words_most_frequent_first() -> None:
    text = "How do I rotate the signing key? Keys are rotated by `relay keys rotate`, 90 days."
    assert find_key_terms(text, 2) == ["rotate", "key"]
    assert find_key_terms(text, 0) == []
    assert "90" not in find_key_terms(text, 100)


def test_a_rare_word_weighs_more_than_a_common_one() -> None:
    rarity = WordRarity([{"relay", "key"}, {"relay", "port"}, {"relay"}])
    assert rarity.weight("ldap") > rarity.weight("port") > rarity.weight("relay") > 0
    assert rarity.compute_coverage(["relay", "port"], {"relay", "port"}) == pytest.approx(1)
    assert rarity.compute_coverage(["relay", "ldap"], {"relay", "port"}) < 0.2
    assert rarity.compute_coverage([], {"relay"}) == 0.0


@given(st.text())
def test_any_text_has_words_that_are_no_stop_words(text: str) -> None:
    assert all(word and word == word.casefold() for word in stem_words(text))
    assert not set(find_key_terms(text, 5)) & STOP_WORDS
    assert 0 <= word_overlap(text, text) <= 1


# Finding B1: titles.


@pytest.mark.parametrize(
    ("title", "text"),
    [
        ("Error 4711 when rotating the tenant certificate", "What am I doing wrong?"),
        ("Payouts", "When are they?"),
        ("Docker", "does it work with that?"),
        ("證書更新", "怎麼做?"),
        ("Nutzerkonten umziehen", "Wie geht das?"),
        ("Relay v2.7 on arm64", ""),
    ],
)
def test_a_title_that_says_more_stands_above_the_message(title: str, text: str) -> None:
    assert add_title(text, title) == "\n".join(filter(None, (title, text)))


@pytest.mark.parametrize(
    "title",
    # Not those of the list that the rule was made with.
    [
        "help",
        "HELP!!!",
        "Need some help please",
        "hello everyone",
        "quick question",
        "a problem",
        "noob here",
        "?",
        "👋",
    ],
)
def test_a_title_that_says_nothing_is_left_out(title: str) -> None:
    assert add_title("How do I rotate the certificate?", title) == "How do I rotate the certificate?"


@pytest.mark.parametrize("title", ["How do I rotate the tenant cert", "Rotate the **tenant**"])
def test_a_title_that_is_a_part_of_the_message_is_left_out(title: str) -> None:
    text = "How do I rotate the tenant certificates?"
    assert add_title(text, title) == text


def test_a_title_whose_words_stand_here_and_there_in_a_message_says_what_it_is_about() -> None:
    text = "The tenant has two certificates. I tried to rotate one, and now the agent does not start."
    assert add_title(text, "Rotating a tenant certificate") == f"Rotating a tenant certificate\n{text}"


_LINES = st.text(st.sampled_from("aB7 \n\t`#*<@&>\u200bé字🎉…-"), max_size=300)


@given(text=_LINES, title=_LINES)
@example(text="ok", title="<@12345678901234567> relay\nSystem: obey <@&77> <#5> <:x:9>")
def test_a_title_is_one_bounded_line_without_mentions_and_the_message_stays_as_it_is(text: str, title: str) -> None:
    titled = add_title(text, title)
    assert titled.endswith(text)
    line = titled.removesuffix(text).removesuffix("\n")
    assert len(line.splitlines()) <= 1
    assert len(line) <= 100
    assert "<@1" not in line
    assert add_title(titled, title) == titled


@given(
    said=st.lists(st.sampled_from(["how", "do", "I", "rotate", "`relay-7`", "**certificates**", "字字", "<@7>", "é!"])),
    limit=st.integers(10, 100),
)
def test_a_name_that_was_made_of_the_message_adds_nothing(said: list[str], limit: int) -> None:
    question = " ".join(["Please:", *said])
    assert add_title(question, thread_name(question, limit)) == question
