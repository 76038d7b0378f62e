"""The depth of a page, guessed from its tags, is never too low, with any tags."""

from __future__ import annotations

import pytest

from intern.documents.html import is_deeper


@pytest.mark.parametrize(
    "tangle",
    [
        "<div>",
        "<ul><li>",
        "<div></x>",
        "<div><table></div></table>",
        "<div><button></div></button>",
        "<svg></div></svg><div>",
        "<table><tr><td>",
        "<!-- </div> --><div>",
        "<DIV>",
        "<div/>",
        "<path d='x'/>",
        "<svg><p></svg><path/>",
        "<svg></svg><path/>",
        "<svg><foreignobject><path/>",
    ],
)
def test_no_end_tag_hides_how_deep_a_page_is(tangle: str) -> None:
    assert is_deeper(tangle * 600, 512)


def test_formatting_that_was_never_ended_is_opened_again_in_each_block() -> None:
    assert is_deeper("".join(f"<div><b id={n}>x</div>" for n in range(600)), 512)


@pytest.mark.parametrize(
    "page",
    [
        "<p>text<br>",
        "<ul><li>one<li>two</ul>",
        "<div><span>never ended</div>",
        "<h1>Title</h1><div><p><a href=x>link</a></div>",
        "<table><tr><td>cell<td>cell</table>",
        "</div>",
        "<svg><g><path d='M1 2'/><text x='1'>word</text><circle r='1' /></g></svg>",
        "a < b and b > c",
    ],
)
def test_a_long_page_is_not_a_deep_one(page: str) -> None:
    assert not is_deeper(page * 600, 512)
