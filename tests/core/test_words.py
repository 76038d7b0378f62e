"""Words are comparable across the forms that people write."""

from __future__ import annotations

import pytest
from hypothesis import example, given, strategies as st

from intern.core.text.words import STOP_WORDS, Rarity, key_terms, overlap, plain_words, word_set, words


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
    assert len({words(form)[0] for form in forms}) == 1


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
    assert words(word) == [stem]


def test_small_talk_and_contractions_say_nothing() -> None:
    assert words("Hi! Can't I just do this, please? It doesn’t, and we'll thank you") == []


def test_identifiers_are_found_by_their_parts() -> None:
    assert words("relay.buffer_size") == words("relay buffer size")


def test_numbers_and_versions_stay() -> None:
    assert words("v2 on 8443") == ["v2", "8443"]


def test_scripts_without_spaces_match_by_pairs() -> None:
    assert overlap("東京", "これは東京タワーです") == 1.0


@given(st.text())
@example("rotation, rotating and the Rotations")
@example("日本語 foo_bar ÄPFEL Äpfel")
def test_a_text_has_each_of_its_words_once(text: str) -> None:
    assert word_set(text) == frozenset(words(text))


@given(st.text(st.characters(codec="ascii")))
def test_in_ascii_a_word_is_a_run_of_letters_and_digits(text: str) -> None:
    assert plain_words(text) == "".join(char if char.isalnum() else " " for char in text).split()


def test_overlap_is_the_share_of_the_query() -> None:
    assert overlap("rotate the signing keys", "Key rotation") == pytest.approx(2 / 3)
    assert overlap("what is it?", "Key rotation") == 0.0


def test_key_terms_are_written_words_most_frequent_first() -> None:
    text = "How do I rotate the signing key? Keys are rotated by `relay keys rotate`, 90 days."
    assert key_terms(text, 2) == ["rotate", "key"]
    assert key_terms(text, 0) == []
    assert "90" not in key_terms(text, 100)


def test_a_rare_word_weighs_more_than_a_common_one() -> None:
    rarity = Rarity([{"relay", "key"}, {"relay", "port"}, {"relay"}])
    assert rarity.weight("ldap") > rarity.weight("port") > rarity.weight("relay") > 0
    assert rarity.covered(["relay", "port"], {"relay", "port"}) == pytest.approx(1)
    assert rarity.covered(["relay", "ldap"], {"relay", "port"}) < 0.2
    assert rarity.covered([], {"relay"}) == 0.0


@given(st.text())
def test_any_text_has_words_that_are_no_stop_words(text: str) -> None:
    assert all(word and word == word.casefold() for word in words(text))
    assert not set(key_terms(text, 5)) & STOP_WORDS
    assert 0 <= overlap(text, text) <= 1
