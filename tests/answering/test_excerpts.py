"""What of a text is quoted by itself: nothing cut, nothing that needs what stands before it."""

from __future__ import annotations

from intern.answering.citing import line_of
from intern.answering.nearest import excerpts

GUIDE = """\
# Install the relay

The relay needs 60 MB of memory. It starts by
itself, e.g. after a power cut. Version 2.x reads old ones.

## Debian

Install the package:

```sh
sudo apt install ./relay.deb

sudo systemctl enable relay
```

- `relay status`: one line on health.
- `relay doctor`: checks ports.

| key | default |
|---|---|
| `listen` | `0.0.0.0:7480` |

**The spool is full.** A backend is down.
Remove it.
"""


def texts() -> list[str]:
    return [each.text for each in excerpts(GUIDE)]


def test_sentences_are_whole_and_none_begins_with_what_leans_on_another() -> None:
    prose = [each.text for each in excerpts(GUIDE) if each.heading == "Install the relay"]
    assert prose == [
        "The relay needs 60 MB of memory.",
        "The relay needs 60 MB of memory. It starts by itself, e.g. after a power cut.",
        "The relay needs 60 MB of memory. It starts by itself, e.g. after a power cut. Version 2.x reads old ones.",
        "Version 2.x reads old ones.",
    ]


def test_a_code_block_stands_with_the_line_that_leads_to_it_and_never_apart() -> None:
    code = [text for text in texts() if "apt install" in text or "Install the package" in text]
    assert code == [
        "Install the package:\n```sh\nsudo apt install ./relay.deb\n\nsudo systemctl enable relay\n```",
    ]


def test_an_item_alone_has_no_bullet_and_a_row_no_frame() -> None:
    assert "`relay doctor`: checks ports." in texts()
    assert "- `relay status`: one line on health.\n- `relay doctor`: checks ports." in texts()
    assert "`listen` | `0.0.0.0:7480`" in texts()
    assert not any("key |" in text or "---" in text for text in texts())


def test_a_paragraph_with_a_title_of_its_own_is_quoted_whole_and_found_by_its_beginning() -> None:
    [titled] = [each for each in excerpts(GUIDE) if "spool is full" in each.text]
    assert titled.text == "**The spool is full.** A backend is down. Remove it."
    assert titled.core == "**The spool is full.** A backend is down."


def test_each_excerpt_stands_in_its_text_and_no_heading_is_quoted() -> None:
    for each in excerpts(GUIDE):
        assert line_of(GUIDE, each.text.split("\n")[0]) is not None, each.text
        assert "# " not in each.text


def test_code_that_is_cut_off_is_not_quoted() -> None:
    assert [each.text for each in excerpts("Run this:\n\n```sh\nrelay purge\n")] == []
