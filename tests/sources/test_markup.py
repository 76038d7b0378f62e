"""Markup that a chat does not show is taken out; plain text and code stay."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given, strategies as st

from intern.sources.markup import without_markup

ASCIIDOC = """\
relay-purge(1)
==============
:toc: left
// a remark

ifdef::manual[]
[[purge]]
.Before you begin
[verse]
'relay purge' [--all]
endif::manual[]

include::options.txt[]

--all::
	Purge *all* of it; see linkgit:relay[1] and <<stop,how to stop>>.
+
More in link:guide.html[the guide] or https://relay.example/x[here], `+a+`.

== Example
----
$ relay purge --all // kept
[verse]
----
. first
.. second
ifdef::x[held]
"""
PLAIN_ASCIIDOC = """\
## relay-purge(1)

Before you begin
'relay purge' [--all]

--all:
	Purge *all* of it; see relay(1) and how to stop.

More in the guide or here, `a`.

## Example
```
$ relay purge --all // kept
[verse]
```
- first
- second
held"""
RST = """\
.. _purge:

=====
Purge
=====

.. contents:: Here
   :depth: 2

.. note:: Stop it first.
   :class: big

   It takes a minute.

See :ref:`the guide <guide>`, :py:func:`~relay.purge` and `the site <https://relay.example/x>`_; ``--all`` is all.

.. code-block:: sh
   :linenos:

   relay purge \\
     --all

Then run::

    relay start

.. image:: x.png
   :alt: no

.. versionadded:: 2.1
"""
PLAIN_RST = """\
## Purge

Note: Stop it first.

   It takes a minute.

See the guide, `relay.purge` and [the site](https://relay.example/x); `--all` is all.

```
relay purge \\
  --all
```

Then run:

```
relay start
```

Added in 2.1"""
HTML = """\
---
title: Purge
---
# Purge <a name="purge"></a>

<p align="center"><img src="a.png"> Stop <b>it</b>&nbsp;first.</p>
<!-- hidden
 here --> :ok:

:::note
Use `<your-token>&amp;` for <your-name>; see [other](../x.md), ![a picture](a.png), [site](https://relay.example).
:::

```html
<div><!-- kept --></div>
```
"""
PLAIN_HTML = """\
# Purge

 Stop it first.
 :ok:

Use `<your-token>&amp;` for <your-name>; see other, a picture, [site](https://relay.example).

```html
<div><!-- kept --></div>
```"""
PLAIN = """\
# Spool

Set `a::b` or std::vector; Key:: value. 1 < 2 & 3 > 2. [a, b] and {c}.

Term::
no code

| a | b |
|---|---|
| 1 | 2 |

***

----

    indented

* item
** bold **
`a` and `_`, [x] done
Wait...
... for it"""


@pytest.mark.parametrize(
    ("text", "plain"),
    [(ASCIIDOC, PLAIN_ASCIIDOC), (RST, PLAIN_RST), (HTML, PLAIN_HTML), (PLAIN, PLAIN)],
    ids=["asciidoc", "restructuredtext", "html", "plain"],
)
def test_markup_is_taken_out_and_the_rest_stays(text: str, plain: str) -> None:
    assert without_markup(text) == plain


@given(st.text(alphabet="ab .:=-`_<>[]|*+\n", max_size=200))
def test_no_text_is_too_strange_to_read(text: str) -> None:
    without_markup(text)


@pytest.mark.rest
@pytest.mark.parametrize(
    "sign", ["<!--", "`a", "[a", "<a ", ":a:`", "<<", "a::", "..\n", "== \n", "link:a[", "![", "{%"]
)
def test_a_text_takes_no_more_work_than_its_length(sign: str) -> None:
    began = process_time()
    without_markup(f"ifdef::x[]\n.. x::\n{sign * (20_000 // len(sign))}")
    assert process_time() - began < 2
