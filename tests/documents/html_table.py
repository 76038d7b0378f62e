from tests.documents.law import Inside, block, row
HTML = (row("<p>w1 <i>w2</i> <code>w3</code></p>", block("paragraph", "w1 w2 `w3`")),)
