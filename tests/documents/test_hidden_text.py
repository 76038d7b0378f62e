"""Parts of a document that its readers never see are not read; all others are."""

from __future__ import annotations

from pathlib import Path

import pytest

from intern.documents.blocks import write_document
from intern.documents.parsing import parse_document
from intern.sources.scanning import read_file
from intern.sources.source_folder import SourceFolder

MARKDOWN = (
    "<!-- planted -->",
    "<!-- a\n```\nplanted\n```\n-->",
    "<!-- planted",
    "[//]: # (planted)",
    "[comment]: <> 'planted'",
    '[x]: #\n  "planted"',
    "[unused]: https://planted.example/login",
    '[^1] [used]: see\n\n[used]: https://docs.example "planted"',
    "<div hidden>planted <div>planted</div> planted</div>",
    '<span class="a" style="color: red; display&#58; none">planted</span>',
    "<p STYLE='position:absolute; left:-9999px'>planted</p>",
    '<p style="color:transparent">planted</p>',
    '<p aria-hidden="true">planted</p>',
    "<script>planted</script>",
    "<template>planted</template>",
    "<dialog>planted</dialog>",
    "{/* planted */}",
    "{{/* planted */}}",
    "{% comment %} planted {% endcomment %}",
)
RST = (".. planted", "..\n   planted", ".. a\n   planted\n\n   planted", "Ports\n~~~~~\n\n.. planted")
ASCIIDOC = ("// planted", "////\nplanted\n////", "----\n// kept\n----\n// planted")


def read(text: str, name: str) -> str:
    return write_document(parse_document(text.encode(), name, max_chars=100_000))


# Finding A13.
@pytest.mark.parametrize(
    ("name", "hidden"),
    [(name, text) for name, texts in (("a.md", MARKDOWN), ("a.rst", RST), ("a.adoc", ASCIIDOC)) for text in texts],
)
def test_what_no_reader_sees_is_not_read(name: str, hidden: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(f"It listens on 7480.\n\n{hidden}\n", encoding="utf-8")
    for text in (SourceFolder(tmp_path, 10_000).read(name), read_file(str(file.resolve())).text):
        assert "planted" not in text
        assert text.startswith("It listens on 7480.")
    assert "planted" not in read(f"a [used] b\n\n{hidden}\n", f"docs/{name.upper()}")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", "```html\n<!-- kept -->\n<p hidden>kept</p>\n```\n"),
        ("a.md", "Use `<!-- kept -->` or ``[//]: # (kept)``.\n"),
        ("a.md", "See [the guide][g] and [it].\n\n[g]: https://docs.example/g\n[it]: <b.md>\n"),
        ("a.md", "Usage: run <script> [options]\n\nThe port is 8080.\n"),
        ("a.md", "Put it into <template>.\n\n[note]: this\n[Step 1]: Install\n"),
        ("a.md", '<div style="overflow: hidden; margin-left:-100px; border-top: -120px">kept</div>\n'),
        ("a.txt", "Usage: run <script> [options] <!-- kept -->\n\n[note]: https://docs.example\n"),
        ("README", "<template> is kept </template>\n"),
        ("a.md", "A note[^1].\n\n[^1]: kept\n"),
        ("a.md", "[12:30]: the relay starts\n"),
        ("a.md", '<details><summary>More</summary>kept</details> <div class="a hidden b">kept</div>\n'),
        ("a.md", "<dialog open>kept</dialog> <p style='opacity: 0.5'>kept</p> <p hidden role=tabpanel>kept</p>\n"),
        ("a.md", "## Title {#id}\n\n1 < 2 and a <your-name> {#b}\n"),
        ("a.rst", "Ports\n~~~~~\n\n.. note:: kept\n   :class: x\n\n   kept\n\n.. _a: https://docs.example\n"),
        ("a.rst", ".. [1] kept\n.. |x| replace:: kept\n\n|x| Run::\n\n    kept\n\n..\n\n  kept\n"),
        ("a.rst", "<!-- kept -->\n"),
        ("a.adoc", "----\n// kept\n----\n\n/// kept\nhttps://docs.example // kept\n"),
        ("a.toml", "# kept\n// kept\n<!-- kept -->\n[x]: # (kept)\n"),
        ("a.yaml", "a: 1 # kept\n"),
    ],
)
def test_what_readers_see_is_read(name: str, text: str) -> None:
    assert read(text, name).count("kept") == text.count("kept")


# Finding A13.
@pytest.mark.parametrize("name", ["a.md", "a.rst", "a.txt", "a.toml", "a.html"])
def test_characters_that_nobody_sees_are_not_read(name: str, tmp_path: Path) -> None:
    told = "".join(chr(0xE0000 + ord(each)) for each in "planted")
    (tmp_path / name).write_text(f"It list\u200bens\u202e on{told} 7480.\ufeff", encoding="utf-8")
    assert "It listens on 7480." in (text := SourceFolder(tmp_path, 10_000).read(name))
    assert text.isascii()


def test_a_comment_in_an_example_of_a_page_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<p>Write &lt;!-- kept --&gt; there.<!-- planted --></p>", encoding="utf-8")
    assert SourceFolder(tmp_path, 10_000).read("a.html") == "Write <!-- kept --> there."
