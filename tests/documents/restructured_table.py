from tests.documents.law import Inside, block, row
RESTRUCTURED = (row("w1 *w2* ``w3``", block("paragraph", "w1 w2 `w3`")),)
