"""People in a conversation get labels, and no text gives them away, however it is written."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from intern.core.captures import Speaker, Turn
from intern.core.ids import ConversationId, MessageId, UserId
from intern.facts.segments import LABEL, NAMELESS, Pseudonyms, Segment, find_outside_names
from tests.worlds.samples import START

MIA, ANN, TOM = UserId("100000000000000501"), UserId("100000000000000900"), UserId("100000000000000777")


def pseudonyms(*said: tuple[Speaker, UserId, str], names: Mapping[UserId, tuple[str, ...]] | None = None) -> Pseudonyms:
    turns = [Turn(speaker, text) for speaker, _, text in said]
    return Pseudonyms(segment(turns, tuple(author for _, author, _ in said), names=names or {}))


def segment(turns: Sequence[Turn], author_ids: tuple[UserId, ...] = (), **more: Any) -> Segment:
    return Segment(
        id=ConversationId("1"),
        turns=tuple(turns),
        message_ids=tuple(MessageId(str(n)) for n, _ in enumerate(turns)),
        author_ids=author_ids,
        last_message_at=START,
        **more,
    )


IRC = pseudonyms(
    ("User", MIA, "madmax28-M: how do I purge?"),
    ("Team", ANN, "mia_: run purge"),
    names={MIA: ("mia_",), ANN: ("madmax28-M",)},
)


def test_people_are_numbered_as_they_appear_and_keep_their_number() -> None:
    known = pseudonyms(("User", MIA, f"hello <@{TOM}>"), ("Team", ANN, "hi"), ("User", MIA, "so"), ("User", TOM, "me?"))
    assert known.labels == ("User_1", "User_3", "User_1", "User_2")


def test_whoever_is_not_known_is_one_person_on_each_side() -> None:
    turns = [Turn("User", "a"), Turn("Team", "b"), Turn("User", "c")]
    assert Pseudonyms(segment(turns)).labels == ("User_1", "User_2", "User_1")
    assert Pseudonyms(segment(turns, (MIA, UserId(""), UserId("")))).labels == ("User_1", "User_2", "User_3")


@pytest.mark.parametrize(
    ("written", "left"),
    [
        ("madmax28-M: try it", "User_2: try it"),
        ("MADMAX28-m, try it", "User_2, try it"),
        ("madmax28 said so", "User_2 said so"),
        ("_mia_ and **mia_**", "_User_1 and **User_1**"),
        ("@mia_ said", "User_1 said"),
        (f"<@{MIA}> and <@!{ANN}>", "User_1 and User_2"),
        (f"{MIA} wrote", "User_1 wrote"),
        (f"id={MIA}", "id=User_1"),
        ("<@123456789012345678> too", f"{NAMELESS} too"),
        ("<@&123456789012345678> in <#123456789012345678>", "a role in a channel"),
        ("<:blob:123456789012345678>", ":blob:"),
        ("</ask:123456789012345678>", "/ask"),
        ("see https://discord.com/channels/1/2/3!", "see a link to Discord!"),
        ("message 123456789012345678", "message an id"),
        ("@everyone look", "everyone look"),
        ("@stranger knows", f"{NAMELESS} knows"),
        ("User_9 said so", f"{NAMELESS} said so"),
        ("User_1 said so", "User_1 said so"),
    ],
)
def test_names_mentions_and_ids_are_taken_out(written: str, left: str) -> None:
    assert IRC.conceal(written) == left


@pytest.mark.parametrize(
    "kept",
    [
        "set mia_size = 3",
        "mail me@example.org",
        "npm install @types/node",
        "@cache(maxsize=3)",
        "`@dataclass` and\n```py\n@property\n```",
        "port 7480, 18446744073709551615 bytes",
        "Note: use `std_out: 1`, well,",
        "v1.2.3 of 2026-01-12",
    ],
)
def test_what_is_no_name_stays(kept: str) -> None:
    assert IRC.conceal(kept) == kept


@pytest.mark.parametrize("disguise", ["ｍｉａ＿", "m\u200bia_", "mi\u0301a_", "<@\u200b100000000000000501>", "ＭＩＡ_"])
def test_a_disguise_does_not_help(disguise: str) -> None:
    said = IRC.conceal(f"ask {disguise} again")
    plain = "".join(char for char in unicodedata.normalize("NFKD", said) if unicodedata.category(char)[0] not in "MC")
    assert "mia" not in plain.casefold()
    assert MIA not in plain


NAMED = pseudonyms(
    ("User", MIA, "how?"),
    ("Team", ANN, "so, `@dataclass`"),
    ("Team", TOM, "yes"),
    names={
        MIA: ("山田太郎", "Zoë", "Alice"),
        ANN: ("J. R. Smith", "Bob Smith"),
        TOM: ("Олег Орлов", "김철수", "أحمد علي"),
    },
)


@pytest.mark.parametrize(
    ("written", "left"),
    [
        ("id ١٠٠٠٠٠٠٠٠٠٠٠٠٠٠٥٠١ is", "id User_1 is"),
        ("id १२३४५६७८९०१२३४५६७८ is", "id an id is"),
        ("<@١٠٠٠٠٠٠٠٠٠٠٠٠٠٠٥٠١> is", "User_1 is"),
        ("山田太郎さんが言った", "User_1さんが言った"),
        ("昨日山田太郎が", "昨日User_1が"),
        ("AliceさんがBob Smithに", "User_1さんがUser_2に"),
        ("Zoe, ZOE and Zoë", "User_1, User_1 and User_1"),
        ("@Bob Smith knows", "User_2 knows"),
        ("@Bob\u00a0Smith knows", "User_2 knows"),
        ("J.R. Smith, J. R. Smith, JR Smith, J.  R.\nSmith", "User_2, User_2, User_2, User_2"),
        ("@O'Brien's and @O’Brien", f"{NAMELESS}'s and {NAMELESS}"),
        ("ask Al**ice** or A~~l~~ice, Al\\ice", "ask User_1 or User_1, User_1"),
        ("**Alice**", "**User_1**"),
        ("Аlісе and ΑLΙCΕ", "User_1 and User_1"),
        ("олег орлов, ОЛЕГ ОРЛОВ", "User_3, User_3"),
        ("김철수가 했다", "User_3가 했다"),
        ("سأل أَحمد علي", "سأل User_3"),
        ("café ｍｉａ Zoe\u0308 café", "café ｍｉａ User_1 café"),
    ],
)
def test_a_name_is_known_however_it_is_written(written: str, left: str) -> None:
    assert NAMED.conceal(written) == left
    assert NAMED.conceal(left) == left


@pytest.mark.parametrize(
    "kept",
    ["Zoey and Malice", "a*l*b", "日本語の文", "Смысл и Олегов", "use `a*b` ~ 2**3", "हिन्दी में", "tiếng Việt", "ﬁne ½"],
)
def test_what_only_resembles_a_name_stays(kept: str) -> None:
    assert NAMED.conceal(kept) == kept


def test_who_is_called_by_a_name_of_two_words_is_nobody_else() -> None:
    known = pseudonyms(("User", MIA, "@Bob Smith knows"), ("Team", ANN, "hi"), names={ANN: ("Bob Smith",)})
    assert known.labels == ("User_1", "User_2")


def test_a_mention_in_code_is_one_in_words_that_nobody_of_the_conversation_wrote() -> None:
    retold = "ask `@bob`, or\n```\n@carol\n```\nsee `@dataclass`"
    assert NAMED.conceal_model_text(retold) == f"ask `{NAMELESS}`, or\n```\n{NAMELESS}\n```\nsee `@dataclass`"
    assert NAMED.conceal_with_roles("`@bob` knows") == f"`{NAMELESS}` knows"
    assert NAMED.conceal("ask `@bob`") == "ask `@bob`"


def test_of_people_elsewhere_a_name_counts_that_is_no_word_or_that_somebody_is_addressed_by() -> None:
    text = "max: see\nBerg, look\nhello @rust, linux is fine\nmia_ and Bob Smith say windows"
    names = ["max", "Berg", "rust", "linux", "windows", "mia_", "Bob Smith", "7", "hello"]
    assert find_outside_names(text, names) == ("max", "Berg", "rust", "mia_", "Bob Smith")


def test_a_name_elsewhere_stands_for_nothing_less_than_all_of_it() -> None:
    turns = [Turn("User", "windows_ says: windows update"), Turn("Team", "ok")]
    assert Pseudonyms(segment(turns, others=("windows_",))).conceal(turns[0].text) == f"{NAMELESS} says: windows update"


def test_who_is_called_by_name_in_the_conversation_is_known_by_it() -> None:
    known = pseudonyms(("User", MIA, "@alice said it works"), ("Team", ANN, "bob`: it does"))
    assert known.conceal("Alice and bob` agree") == "User_2 and User_4 agree"


def test_a_name_of_several_words_is_found_across_lines() -> None:
    known = pseudonyms(("User", MIA, "x"), ("Team", ANN, "y"), names={MIA: ("Mia Bright",)})
    assert known.conceal("Mia\nBright asks") == "User_1 asks"


def test_where_nobody_knows_the_labels_people_are_told_by_their_role() -> None:
    assert IRC.conceal_with_roles("mia_ asked User_2, and <@5>") == f"a member asked a team member, and {NAMELESS}"


_NICK = st.from_regex(r"[a-zA-Z\[\]\\`_^{|}][a-zA-Z0-9\[\]\\`_^{|}-]{1,15}", fullmatch=True).filter(
    lambda nick: not LABEL.search(nick) and re.search(r"[^\W_]", nick) is not None
)
_OURS = re.compile(r"\b(?:user|somebody|an?|id|link|to|discord|role|channel|everyone|here)\b", re.IGNORECASE)


@pytest.mark.rest
@given(
    nicks=st.lists(_NICK.filter(lambda nick: not _OURS.search(nick)), min_size=1, max_size=5, unique_by=str.casefold),
    around=st.lists(
        st.sampled_from([" ", ": ", ", ", "@", "\n", "*", "(", ")", ".", "`", "said", "<@!", ">"]), max_size=9
    ),
)
def test_no_known_name_is_left_in_any_text(nicks: list[str], around: list[str]) -> None:
    people = {UserId(str(100000000000000500 + n)): (nick,) for n, nick in enumerate(nicks)}
    said: list[tuple[Speaker, UserId, str]] = [("User", author, "hi") for author in people]
    known = pseudonyms(*said, names=people)
    text = "".join(
        f"{each} {nick} <@{author}> {author}"
        for each, (author, (nick,)) in zip([*around, *[" "] * len(nicks)], list(people.items()) * 3, strict=False)
    )
    concealed = known.conceal(text)
    assert known.conceal(concealed) == concealed
    for author, (nick,) in people.items():
        assert author not in concealed
        assert not re.search(rf"(?<![^\W_]){re.escape(nick)}(?![^\W_])", concealed), concealed
