"""HTML as Sphinx, MkDocs, Docusaurus and people write it."""

from __future__ import annotations

from tests.documents.law import Inside, block, row

NOTE = Inside(kind="admonition")
ITEM = Inside(depth=1, kind="paragraph")

HTML = (
    row("<p>w1 <i>w2</i> <code>w3</code></p>", block("paragraph", "w1 w2 `w3`")),
    row("<p>w1\nw2<br>w3\n</p>", block("paragraph", "w1 w2\nw3")),
    row(
        "<p><a href='https://e.org/a'>w1</a> <a href='#x'>w2</a> <b>w3</b></p>",
        block("paragraph", "[w1](https://e.org/a) w2 w3"),
    ),
    row("<div>w1<div>w2</div>\nw3</div>", block("paragraph", "w1"), block("paragraph", "w2"), block("paragraph", "w3")),
    row(
        "<section>\n<h2 id='w2'>w1 <a class='headerlink' href='#w2'>¶</a></h2>\n<p>w3</p>\n</section>",
        block("heading", "w1", level=2, anchor="w2"),
        block("paragraph", "w3"),
        is_top=True,
    ),
    row(
        "<ul>\n<li>w1\n<li><p>w2</p>\n@\n</li>\n</ul>",
        block("item", "w1", marker="-", depth=1),
        block("item", "w2", marker="-", depth=1),
        ITEM,
    ),
    row(
        "<ol start=3><li>w1</li>\n<li><pre>w2</pre></li></ol>",
        block("item", "w1", marker="3.", depth=1),
        block("code", "w2", marker="4.", depth=1),
    ),
    row(
        "<dl>\n<dt>w1</dt>\n<dt>w2</dt>\n<dd><p>w3</p>\n@\n</dd>\n<dd>w4</dd></dl>",
        block("definition", "w3", term="w1, w2"),
        Inside(kind="paragraph"),
        block("definition", "w4", term="w1, w2"),
        is_loose=True,
    ),
    row(
        "<table>\n<caption>w1</caption>\n<thead><tr><th>w2</th>\n<th>w3</th></tr></thead>\n<tbody><tr><td>w4</td><td><p>w5</p><p><code>w6</code></p></td></tr></tbody></table>",
        block("paragraph", "w1"),
        block("row", "w2 | w3"),
        block("row", "w4 | w5 `w6`", columns=("w2", "w3")),
    ),
    row("<blockquote>\n<p>w1</p>\n@\n</blockquote>", block("paragraph", "w1"), Inside()),
    row(
        "<details>\n<summary>w1 <code>w2</code></summary>\nw3\n@\n</details>",
        block("heading", "w1 `w2`", level=7, anchor="w1-w2"),
        block("paragraph", "w3"),
        Inside(),
    ),
    row(
        "<figure><img src='a.png' alt='w1'><figcaption>w2</figcaption></figure>",
        block("paragraph", "w1"),
        block("paragraph", "w2"),
    ),
    # Code
    row("<pre>w1\n  w2</pre>", block("code", "w1\n  w2")),
    row(
        '<div class="highlight-python notranslate"><div class="highlight"><pre><span></span><span class="linenos">1</span><span class="k">w1</span>\n<span class="linenos">2</span>  w2\n</pre></div></div>',
        block("code", "w1\n  w2", language="python"),
    ),
    row(
        '<table class="highlighttable"><tr><td class="linenos"><div class="linenodiv"><pre>1\n2</pre></div></td>\n<td class="code"><div class="highlight"><pre>w1\nw2</pre></div></td></tr></table>',
        block("code", "w1\nw2"),
    ),
    row(
        '<pre><code class="language-sh"><span class="token-line">w1<br></span><span class="token-line">w2<br></span></code></pre>',
        block("code", "w1\nw2", language="sh"),
        is_loose=True,
    ),
    row(
        '<div class="language-js codeBlockContainer"><div class="codeBlockTitle">w1</div><pre><code><div class="line">w2</div><div class="line">w3</div></code></pre><button>x1</button></div>',
        block("paragraph", "w1"),
        block("code", "w2\nw3", language="js"),
    ),
    # Admonitions
    row(
        '<div class="admonition note">\n<p class="admonition-title">w1</p>\n<p>w2</p>\n@\n</div>',
        block("admonition", "w2", term="w1"),
        NOTE,
    ),
    row(
        '<div class="theme-admonition theme-admonition-tip admonition_x alert alert--success"><div class="admonitionHeading_x"><span class="admonitionIcon_x"><svg>x1</svg></span>w1</div><div class="admonitionContent_x"><p>w2</p>\n@\n</div></div>',
        block("admonition", "w2", term="w1"),
        NOTE,
    ),
    row('<div class="alert alert-warning">w1</div>', block("admonition", "w1", term="Warning")),
    # Tabs
    row(
        '<div class="sd-tab-set">\n<input type="radio" id="t1"><label class="sd-tab-label" for="t1">w1</label><div class="sd-tab-content">\n@\n</div>\n<input type="radio" id="t2"><label class="sd-tab-label" for="t2">w2</label><div class="sd-tab-content"><p>w3</p></div></div>',
        Inside(label="w1"),
        block("paragraph", "w3", label="w2"),
    ),
    row(
        '<div class="sphinx-tabs"><div role="tablist"><button aria-controls="p1" id="w8" role="tab">w1</button><button id="w9" role="tab">w2</button></div><div aria-labelledby="w8" class="sphinx-tabs-panel" role="tabpanel">\n@\n</div>\n<div aria-labelledby="w9" role="tabpanel" hidden><p>w3</p></div></div>',
        Inside(label="w1"),
        block("paragraph", "w3", label="w2"),
    ),
    row(
        '<div class="tabbed-set"><input type="radio"><input type="radio"><div class="tabbed-labels"><label for="__tabbed_1_1">w1</label><label for="__tabbed_1_2">w2</label></div>\n<div class="tabbed-content"><div class="tabbed-block">\n@\n</div>\n<div class="tabbed-block"><p>w3</p></div></div></div>',
        Inside(label="w1"),
        block("paragraph", "w3", label="w2"),
    ),
    row(
        '<div class="tabs-container"><ul role="tablist" class="tabs"><li role="tab" class="tabs__item">w1</li><li role="tab">w2</li></ul>\n<div><div role="tabpanel">\n@\n</div>\n<div role="tabpanel" hidden=""><p>w3</p></div></div></div>',
        Inside(label="w1"),
        block("paragraph", "w3", label="w2"),
    ),
    # Parts that readers do not see, or that are no text of the page
    row("<nav><ul><li><a href='a'>x1</a></li></ul></nav>"),
    row("<div class='sidebar-menu'><a href='a'>x1</a> <a href='b'>x2</a></div>"),
    row("<footer><p>x1</p></footer>"),
    row("<button>x1</button>"),
    row(
        "<p>w1<!-- x1 --><span hidden>x2</span> <span style='display:none'>x3</span>w2</p>", block("paragraph", "w1 w2")
    ),
    row("<div aria-hidden=true><p>x1</p></div>"),
    row("<script>x1()</script>"),
    row("<style>.x1 {}</style>"),
)
