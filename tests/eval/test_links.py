"""The link detector, on what Discord makes clickable and what it does not; and intern's replies held against it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from intern.chat.reply_text import neutralise_links
from tests.eval.links import clickable, uncited
from tests.examples import examples

EVIL = "https://evil.example/x"


@pytest.mark.parametrize(
    "text",
    [
        EVIL,
        f"see {EVIL}.",
        f"<{EVIL}>",
        f"\\<{EVIL}",
        f"[docs]({EVIL})",
        f"[docs](<{EVIL}> 'title')",
        f"[a [b] c]({EVIL})",
        f"[a\nb]( {EVIL} )",
        f"**[docs]({EVIL})**",
        f"> {EVIL}",
        f"# {EVIL}",
        f"- {EVIL}",
        f"||{EVIL}||",
        f"\\`{EVIL}\\`",
        f"```\n{EVIL}",
        f"`{EVIL}",
        # What was meant as code, and is none:
        f"**a ` b** {EVIL} `",
        f"_a ` b_ {EVIL} `",
        f"~~a ` b~~ {EVIL} `",
        f"||a ` b|| {EVIL} `",
        f"> ```\n{EVIL}\n```",
        f"# ```\n{EVIL}\n```",
        f"- ```\n{EVIL}\n```",
        f"[a ` b](x:y) {EVIL} `",
    ],
)
def test_it_finds_what_can_be_clicked(text: str) -> None:
    assert any(link.startswith(EVIL) for link in clickable(text))


@pytest.mark.parametrize(
    "text",
    [
        "<mailto:a@evil.example>",
        "<a@evil.example>",
        "<tel:+123456>",
        "[a](https:evil.example)",
        r"[a[b]\](https:evil.example)",
        "join discord.gg/abc now",
        "discord.com/invite/abc",
        "discord.gift/abc",
        "steam://run/1",
        f"x{EVIL}",
        "HTTPS://EVIL.EXAMPLE",
    ],
)
def test_it_finds_links_that_do_not_look_like_it(text: str) -> None:
    assert clickable(text)


@pytest.mark.parametrize(
    "text",
    [
        "plain words: nothing / here",
        f"`{EVIL}`",
        f"``a ` {EVIL}``",
        f"```\n{EVIL}\n```",
        f"```sh\ncurl {EVIL}\n```",
        f"**`{EVIL}`**",
        f"> ```\n> {EVIL}\n> ```",
        f"- ```\n  {EVIL}\n  ```",
        "evil.example/x",
        "https: //evil.example",
        "[a](b)",
        "[a] (https)",
        "<@123> <#123> <t:123:R> <:name:123> <a:name:123> </ask:123>",
        "notdiscord.gg/abc",
    ],
)
def test_it_leaves_alone_what_cannot_be_clicked(text: str) -> None:
    assert clickable(text) == []


def test_a_cited_link_may_be_clicked_and_another_one_on_its_page_may_not() -> None:
    assert uncited(f"See {EVIL}.", [EVIL]) == []
    assert uncited(f"See {EVIL}/y.", [EVIL]) == [f"{EVIL}/y."]


MARKUP = (
    *(
        "`",
        "``",
        "```",
        "\n```\n",
        "\n",
        "\n\n",
        "**",
        "*",
        "_",
        "__",
        "~~",
        "||",
        "> ",
        "# ",
        "- ",
        "1. ",
        "\\",
        " ",
        "a",
    ),
    *("[", "]", "(", ")", "](", "<", ">", "x:y", "https:e.example", "<a@e.example>", "<tel:+12>", "<+123>"),
)
LINKS = [EVIL, f"<{EVIL}>", f"[a]({EVIL})", "discord.gg/q", "discord.gift/q", "steam://run/1"]


# Not random: of a million of these, two or three are read in ways that we do not foresee.
@settings(derandomize=True, max_examples=examples(500))
@given(st.lists(st.sampled_from([*MARKUP, *LINKS]), max_size=14).map("".join))
def test_no_markup_however_tangled_makes_a_link_of_what_was_not_cited(text: str) -> None:
    assert uncited(neutralise_links(text, ())) == []


@pytest.mark.parametrize(
    "text",
    [
        f"- one\n- two\n\nThen:\n```sh\ncurl -H 'Accept: */*' {EVIL}\n```",
        f"**Note:** *run* this\n```sh\ncurl -H 'Accept: */*' {EVIL} || exit 1\n```\nand `curl {EVIL}` _then_",
        f"1. step\n```sh\ncurl {EVIL}\n```\n2. next",
        f"1. step\n   ```sh\n   curl {EVIL}\n   ```\n2. next",
        f"Set `max_size` and MAX_SIZE, then `curl {EVIL}`.",
        f"> ```\n> curl {EVIL}\n> ```",
        f"# Title\n```\ncurl {EVIL}\n```\n## Two\n`{EVIL}`",
    ],
)
def test_a_command_in_honest_code_keeps_its_address(text: str) -> None:
    assert neutralise_links(text, ()) == text
