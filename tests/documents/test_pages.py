"""Pages as Markdown: nothing that answers quote is lost, and no page can stop us."""

from __future__ import annotations

import time
from typing import NamedTuple

import pytest
from hypothesis import given, strategies as st

from intern.documents import html, sandboxed
from intern.documents.blocks import write_blocks
from intern.documents.html import decode_page


class Read(NamedTuple):
    title: str
    text: str
    needs_scripts: bool


def read_html(markup: str, base_url: str = "") -> Read:
    page = html.read_html(markup, base_url)
    return Read(page.document.title, write_blocks(page.document.blocks), page.needs_scripts)


PAGE = """<!DOCTYPE html><html><head><title>Install — Drum</title><style>p{}</style><script>var x</script></head><body>
<nav><a href=/>Home</a><a href=/b>Blog</a></nav><div class=sidebar><ul><li><a href=/x>Sidebar</a></ul></div>
<main><h1>Install<a href="#install">¶</a></h1><p>Drum needs &lt;2 GB&gt; &amp; Python 3.11, see the <a
href="../guide(1)">odd guide</a> or the <a href="/guide?a=1&amp;b=2">guide</a>.</p><h2>With pip</h2>
<figure><pre><code>pip install drum==2.4.1
  drum --config x.toml \\
    run</code></pre></figure><ul><li>Open port 8080.<li>Restart.</ul>
<table><tr><th>Port</th><th>For</th></tr><tr><td>9090</td><td>Metrics</td></tr></table>
<p><a href="javascript:alert(1)">Click</a></p></main><footer>Imprint</footer></body></html>"""


def test_headings_code_lists_tables_and_links_are_kept_and_chrome_is_not() -> None:
    title, text, needs_scripts = read_html(PAGE, "https://drum.example/docs/install")
    assert title == "Install — Drum"
    assert not needs_scripts
    assert text.startswith("# Install\n")
    assert "## With pip" in text
    assert "```\npip install drum==2.4.1\n  drum --config x.toml \\\n    run\n```" in text
    assert "needs <2 GB> & Python 3.11" in text
    assert "[guide](https://drum.example/guide?a=1&b=2)" in text
    assert "- Open port 8080." in text
    assert "9090" in text
    for chrome in ("Home", "Sidebar", "Imprint", "javascript", "¶", "guide(1)", "var x"):
        assert chrome not in text


def test_a_page_that_names_no_main_part_is_read_as_well() -> None:
    text = "<p>" + "Words that matter. " * 20
    assert "Words that matter." in read_html(f"<title>T</title><div>{text}</div>").text
    assert read_html("<p>Moved.").text == "Moved."


def test_a_page_that_a_script_was_to_fill_is_told_and_read_as_far_as_it_goes() -> None:
    shell = (
        '<title>App</title><meta name=description content="Runs drums."><div id=root></div>'
        "<noscript>Enable JavaScript.</noscript><script src=a.js></script>"
    )
    assert read_html(shell) == ("App", "Runs drums.\n\nEnable JavaScript.", True)
    filled = shell.replace("<div id=root>", "<div id=root><p>" + "Words. " * 100)
    assert not read_html(filled).needs_scripts


def test_code_with_a_fence_in_it_stays_in_its_fence() -> None:
    text = read_html("<main><pre>```\nx\n```</pre></main>").text
    assert text.startswith("````\n```")


@pytest.mark.parametrize(
    ("data", "charset", "text"),
    [
        ("ä€".encode(), None, "ä€"),
        ("ä".encode("latin-1"), "iso-8859-1", "ä"),
        ("ä€".encode("cp1252"), None, "ä€"),
        (b"\xef\xbb\xbf" + "ä".encode(), "latin-1", "ä"),
        ('<meta charset="windows-1251">Привет'.encode("cp1251"), None, '<meta charset="windows-1251">Привет'),
        ("日本".encode("shift_jis"), "Shift_JIS", "日本"),
        (b"abc", "unicode_escape", "abc"),
        (b"abc", "base64", "abc"),
        (b"abc", "no such", "abc"),
    ],
)
def test_bytes_are_read_by_what_they_say_of_themselves(data: bytes, charset: str | None, text: str) -> None:
    assert decode_page(data, charset) == text


@pytest.mark.parametrize(
    "markup", ["<div>" * 100_000, "<a href=x>" * 100_000, "<p>x" * 250_000, '<a href="' * 100_000, "<pre>`" * 50_000]
)
def test_a_monster_is_refused_at_once(markup: str) -> None:
    started = time.process_time()
    with pytest.raises(ValueError, match=r"nested|tags"):
        read_html(markup)
    assert time.process_time() - started < 5


@pytest.mark.rest
@pytest.mark.parametrize("markup", ["<" * 100_000, "<!--" * 25_000, "<p> </p>\n" * 10_000, "&amp;" * 25_000])
def test_an_odd_page_is_read_in_reasonable_time(markup: str) -> None:
    started = time.process_time()
    read_html(markup)
    assert time.process_time() - started < 20


@pytest.mark.rest
@pytest.mark.parametrize(
    "markup",
    [
        f"<p {' '.join(f'a{n}=1' for n in range(100_000))}>x",
        "<!-->" + "<ul><li>" * 60_000,
        "<script><!--</script>" + "<ul><li>" * 60_000,
        '<div title="</div>">' * 30_000,
    ],
)
def test_a_page_that_hides_how_hard_it_is_costs_no_more_than_the_bound(
    markup: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = time.process_time(), time.monotonic()
    monkeypatch.setattr(sandboxed, "_MOST_WAITING", 2)
    with pytest.raises(ValueError, match=r"within|cannot be parsed"):
        read_html(markup)
    assert time.process_time() - started[0] < 2  # nothing of it is done here
    assert time.monotonic() - started[1] < 20


@pytest.mark.rest
def test_a_long_page_is_read_as_a_short_one_is() -> None:
    long = PAGE.replace("</main>", "<p>And more.</p>" * 1000 + "</main>")
    assert read_html(long, "https://drum.example/docs/install").text.startswith(
        read_html(PAGE, "https://drum.example/docs/install").text
    )
    assert read_html("<title>\ud800</title><main>" + "<p>\udc00 More.</p>" * 1000).text.startswith("\ufffd More.")


@pytest.mark.parametrize(
    "hidden",
    [
        '<p style="display:none">planted</p>',
        '<div style="color: red; DISPLAY : NONE !important"><p>planted</p><p hidden>planted</p></div>',
        r'<p style="d\69splay:none">planted</p>',
        '<p style="visibility: hidden">planted</p>',
        '<p style="opacity:0">planted</p>',
        '<p style="font-size:0px">planted</p>',
        "<p aria-hidden=true>planted</p>",
        "<div hidden>planted<p>planted</div>",
        "<dialog>planted</dialog>",
        "<!-- planted -->",
        "<!-- planted --!>",
        "<template><p>planted</p></template>",
        "<noscript><p>planted</p></noscript>",
        "<script>planted</script>",
        "<style>planted</style>",
        "<textarea>planted</textarea>",
        "<iframe>planted</iframe>",
        "<input type=hidden value=planted>",
        "<meta name=description content=planted>",
    ],
)
@pytest.mark.parametrize(
    "page", ["<body>{}<p>Hello.", "<main>{}<p>Hello.</main>", "<body>{}" + "<p>Words that matter, hello. " * 30]
)
def test_what_no_reader_of_a_page_sees_stays_out(page: str, hidden: str) -> None:
    text = read_html(page.format(hidden)).text
    assert "planted" not in text
    assert "ello." in text


def test_what_a_reader_can_open_is_kept() -> None:
    for style in ("overflow: hidden", "margin-left:-100px", "border-left: -900px", "background-color: transparent"):
        assert "relay" in read_html(f'<body><div style="{style}"><p>The relay listens on 7480.</p></div>').text
    tabs = "<main><div role=tabpanel hidden>brew install drum</div><details><summary>More<p>apt install drum</details>"
    text = read_html(f"{tabs}<p hidden=until-found>dnf install drum<p style='opacity:0.5'>pip install drum").text
    for way in ("brew", "apt", "dnf", "pip"):
        assert f"{way} install drum" in text


@given(st.text(max_size=300))
def test_any_text_is_a_page(text: str) -> None:
    read_html(text, "https://docs.example.org/")
    read_html(f"<main><p>{text}</p></main><a href='{text}'>x</a>", text)


@given(st.binary(max_size=200), st.text(max_size=20))
def test_any_bytes_are_text(data: bytes, charset: str) -> None:
    decode_page(data, charset).encode()
