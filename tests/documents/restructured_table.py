"""reStructuredText with the directives and roles of Sphinx and its extensions."""

from __future__ import annotations

from tests.documents.law import Inside, block, row

NOTE = Inside(kind="admonition", scope=True)

RESTRUCTURED = (
    row("w1 *w2* ``w3``", block("paragraph", "w1 w2 `w3`")),
    row("w1\nw2 **w3**", block("paragraph", "w1 w2 w3")),
    row("`w1 <https://e.org/a>`__ w2 https://e.org/b", block("paragraph", "[w1](https://e.org/a) w2 https://e.org/b")),
    row(":ref:`w1 <a-b>` :func:`~a.w2` :kbd:`w3` `w4`", block("paragraph", "w1 `w2` `w3` `w4`")),
    row(":menuselection:`w1 --> w2` :guilabel:`&w3`", block("paragraph", "w1 › w2 w3")),
    row("w1 |x1|\n\n.. |x1| replace:: Other", block("paragraph", "w1 Other")),
    row("| w1\n| w2", block("paragraph", "w1\nw2")),
    row(
        "- w1\n\n  @\n\n- w2",
        block("item", "w1", marker="-", depth=1),
        Inside(depth=1, kind="paragraph"),
        block("item", "w2", marker="-", depth=1),
    ),
    row(
        "3. w1\n   w2\n4. w3\n\n   - w4\n\nw5",
        block("item", "w1 w2", marker="3.", depth=1),
        block("item", "w3", marker="4.", depth=1),
        block("item", "w4", marker="-", depth=2),
        block("paragraph", "w5"),
    ),
    row("w1\n\n  w2\n\n  @", block("paragraph", "w1"), block("paragraph", "w2"), Inside()),
    row("w1\n   w2\n\n   @", block("definition", "w2", term="w1"), Inside(kind="paragraph")),
    row("w1 : w2\n   w3", block("definition", "w3", term="w1 : w2")),
    row(":w1: w2\n:w3 w4: w5", block("definition", "w2", term="w1"), block("definition", "w5", term="w3 w4")),
    row(
        "-w, --w1=W  w2\n--w3        w4",
        block("definition", "w2", term="-w, --w1=W"),
        block("definition", "w4", term="--w3"),
    ),
    row("w1::\n\n  w2\n    w3\n\nw4", block("paragraph", "w1:"), block("code", "w2\n  w3"), block("paragraph", "w4")),
    row(">>> w1\nw2\n\nw3", block("code", ">>> w1\nw2"), block("paragraph", "w3")),
    row(
        "===== =====\nw1    w2\n===== =====\nw3    ``w4``\nw5    w6\n===== =====",
        block("row", "w1 | w2"),
        block("row", "w3 | `w4`", columns=("w1", "w2")),
        block("row", "w5 | w6", columns=("w1", "w2")),
    ),
    row(
        "+-------+-------+\n| w1 | w2 |\n+=======+=======+\n| w3 | w5 |\n| w4 |       |\n+-------+-------+",
        block("row", "w1 | w2"),
        block("row", "w3 w4 | w5", columns=("w1", "w2")),
    ),
    row("w1 [#]_\n\n.. [#] w2", block("paragraph", "w1"), block("paragraph", "w2")),
    row(".. x1 x2\n   x3"),
    row("..\n   x1\n\n   x2"),
    row(".. _x1: https://e.org"),
    row("Lost_ `w2 w3`_ `w4 <a_>`_", block("paragraph", "Lost w2 w3 w4")),
    row("w1 |x1|\n\n.. |x1| image:: a.png\n   :alt: Other", block("paragraph", "w1 Other")),
    # Directives
    row(".. note::\n\n   w1\n\n   @", block("admonition", "w1", term="Note"), NOTE),
    row(".. warning:: w1\n   w2", block("admonition", "w1 w2", term="Warning")),
    row(
        ".. tip::\n   * w1\n   * w2",
        block("admonition", "", term="Tip"),
        block("item", "w1", marker="-", depth=1),
        block("item", "w2", marker="-", depth=1),
    ),
    row(".. admonition:: w1 ``w2``\n   :class: tip\n\n   w3\n\n   @", block("admonition", "w3", term="w1 `w2`"), NOTE),
    row(".. versionadded:: 1.2 w1\n   w2 *w3*", block("admonition", "1.2 w1 w2 w3", term="Added in version")),
    row(
        ".. code-block:: python\n   :caption: w1\n   :linenos:\n   :emphasize-lines: 1\n\n   w2\n     w3",
        block("code", "w2\n  w3", language="python", term="w1"),
    ),
    row(".. code::\n\n   w1", block("code", "w1")),
    row(".. testcode::\n   :options: +SKIP\n\n   w1", block("code", "w1")),
    row(".. math:: w1", block("code", "w1")),
    row(
        ".. list-table:: w1\n   :header-rows: 1\n   :align: left\n\n   * - w2\n     - w3\n   * - w4\n     - w5",
        block("paragraph", "w1"),
        block("row", "w2 | w3"),
        block("row", "w4 | w5", columns=("w2", "w3")),
    ),
    row(
        '.. csv-table::\n   :header: "w1", "w2"\n\n   "w3", "w4, w5"',
        block("row", "w1 | w2"),
        block("row", "w3 | w4, w5", columns=("w1", "w2")),
        is_loose=True,
    ),
    row(
        ".. tabs::\n\n   .. tab:: w1\n\n      @\n\n   .. group-tab:: w2\n\n      w3\n\n   .. code-tab:: py w4\n\n      w5",
        Inside(label="w1"),
        block("paragraph", "w3", label="w2"),
        block("code", "w5", language="py", label="w4"),
    ),
    row(".. tab-set::\n   :sync-group: a\n\n   .. tab-item:: w1\n      :sync: b\n\n      @", Inside(label="w1")),
    row(".. tab:: w1 w2\n\n   @", Inside(label="w1 w2")),
    row(
        ".. dropdown:: w1 ``w2``\n   :open:\n\n   w3\n\n   @",
        block("heading", "w1 `w2`", level=7, anchor="w1-w2"),
        block("paragraph", "w3"),
        Inside(),
    ),
    row(
        ".. glossary::\n   :sorted:\n\n   w1\n   w2\n      w3\n\n   w4\n      w5",
        block("definition", "w3", term="w1, w2"),
        block("definition", "w5", term="w4"),
    ),
    row(".. only:: html\n\n   w1\n\n   @", block("paragraph", "w1"), Inside(scope=False)),
    row(".. topic:: w1\n\n   w2", block("paragraph", "w1"), block("paragraph", "w2")),
    row(
        ".. py:function:: w1(w2)\n   :async:\n\n   w3\n\n   @",
        block("definition", "w3", term="w1(w2)"),
        Inside(kind="paragraph"),
    ),
    row(".. option:: --w1\n\n   w2", block("definition", "w2", term="--w1")),
    row(".. figure:: a.png\n   :alt: w1\n\n   w2", block("paragraph", "w1"), block("paragraph", "w2")),
    row(
        ".. unheardof:: w1\n   :some: option\n\n   w2\n\n   @",
        block("paragraph", "w1"),
        block("paragraph", "w2"),
        Inside(scope=False),
    ),
    row(".. toctree::\n   :maxdepth: 2\n\n   x1\n   x2"),
    row(".. raw:: html\n\n   <b>x1</b>"),
    row(".. include:: x1.rst"),
    row(".. image:: a.png\n   :alt: w1", block("paragraph", "w1")),
    row(".. seealso:: :doc:`w1`", block("admonition", "w1", term="See also")),
    row(
        "=====\nw1\n=====\n\nw2\n=====\n\nw3 ``w4``\n---------------",
        block("heading", "w1", level=1),
        block("heading", "w2", level=2),
        block("heading", "w3 `w4`", level=3, anchor="w3-w4"),
        is_top=True,
    ),
)
