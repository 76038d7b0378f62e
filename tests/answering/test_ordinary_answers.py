"""Ordinary good answers are not refused: paraphrases, steps, other spellings of the source's text."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from intern.answering.addresses import find_strange_urls
from intern.answering.grounding import check_grounding

HANDBOOK = """\
# Lumen Relay handbook

## Install

1. Install the package:

```sh
$ sudo apt-get update
$ sudo apt-get install lumen-relay=2.4.1
$ curl -fsSL https://get.example.org/install.sh | sudo bash
```

Requires Python 3.11 or newer, Docker v24.0 and PostgreSQL 15. Works on Ubuntu 22.04 LTS. Since v1.2, TLS is on.

## Ports

The relay listens on port 7480. Set `listen` in `relay.toml` to change the port.
Use `export RELAY_PORT=9000` to override. See [the guide](https://docs.example.org/guide/#ports) or <https://docs.example.org/faq>.
Docs: https://docs.example.org/a_b_c.

    lumen-relay start --config /etc/relay.toml

On Windows:

```powershell
PS C:\\> Restart-Service LumenRelay
```

Run **lumen-relay spool purge** after stopping. Press Ctrl+C. `git commit -m "fix it"`; released 2024-05-01.
kubectl get pods -n lumen
| Command | What |
|---|---|
| lumen-relay status | shows it |

Set log_level to "debug" and restart. Default time-out 1.5 s; limit of 10,000 agents.
```toml
[relay]
listen = "0.0.0.0:7480"
```
```json
{"listen": 7480, "tls": true}
```
"""
SAID = "How do I do that? I get cannot open lock file all the time."
ORDINARY = [
    "1. Stop the relay.\n2. Run `lumen-relay spool purge`.\n3. Start it again.",
    "Step 1: run `sudo apt-get update`. Step 2: run `sudo apt-get install lumen-relay=2.4.1`.",
    "In step 2, restart.",
    "Since 1.2, TLS is on.",
    "Since version 1.2 TLS is on.",
    "Since v1.2 TLS is on.",
    "Since V1.2.",
    "You need Python 3.11+.",
    "You need Python ≥3.11.",
    "You need Python>=3.11.",
    "You need Docker 24.0.",
    "You need Docker 24.",
    "PostgreSQL v15.",
    "PostgreSQL version 15 is needed.",
    "Python version 3.11 is needed.",
    "Ubuntu 22.04.",
    "Use lumen-relay 2.4.1.",
    "Use lumen-relay v2.4.1",
    "(2.4.1)",
    "It is 2.4.1.",
    "**2.4.1**",
    "`2.4.1`",
    "_2.4.1_",
    "lumen-relay-2.4.1",
    "lumen-relay@2.4.1 or lumen-relay==2.4.1",
    "```\n$ sudo apt-get update\n```",
    "```\nsudo apt-get update\nsudo apt-get install lumen-relay=2.4.1\n```",
    "```bash\n$ sudo apt-get update\n$ sudo apt-get install lumen-relay=2.4.1\n```",
    "```bash\nsudo apt-get update && sudo apt-get install lumen-relay=2.4.1\n```",
    "```bash\n# update first\nsudo apt-get update   # refreshes the list\n```",
    "```console\n# sudo apt-get update\n```",
    "   ```sh\n   sudo apt-get update\n   ```",
    "1. Run:\n     ```sh\n     sudo apt-get update\n     ```",
    "Run:\n\n    lumen-relay start --config /etc/relay.toml",
    "`lumen-relay start --config /etc/relay.toml`",
    "`lumen-relay start`",
    "`lumen-relay status`",
    "`kubectl get pods -n lumen`",
    "`export RELAY_PORT=9000`",
    "```sh\nexport RELAY_PORT=9000\n```",
    "```powershell\nRestart-Service LumenRelay\n```",
    "```powershell\nPS C:\\> Restart-Service LumenRelay\n```",
    "```\nPS C:\\> Restart-Service LumenRelay\n```",
    '`git commit -m "fix it"`',
    "`git commit -m “fix it”`",
    '```toml\n[relay]\nlisten = "0.0.0.0:7480"\n```',
    'Set `listen = "0.0.0.0:7480"`.',
    "It listens on 0.0.0.0:7480 by default.",
    "Set `listen` in `relay.toml`.",
    '```\n[relay]\nlisten = "0.0.0.0:7480"\n```',
    '```json\n{"listen": 7480, "tls": true}\n```',
    '```\n{"listen": 7480, "tls": true}\n```',
    "Press `Ctrl+C`.",
    "It was released 2024-05-01.",
    "It was released in May 2024.",
    "The default is 1.5 s.",
    "The default is 1.5 seconds.",
    "The limit is 10000 agents.",
    "The limit is 10 000 agents.",
    "The limit is 10,000 agents.",
    "See https://docs.example.org/faq.",
    "See https://docs.example.org/faq, please",
    "See (https://docs.example.org/faq).",
    "See [the FAQ](https://docs.example.org/faq).",
    "See [the FAQ](<https://docs.example.org/faq>).",
    "See <https://docs.example.org/faq>!",
    "See **https://docs.example.org/faq**.",
    "See `https://docs.example.org/faq`.",
    "See https://docs.example.org/guide/#ports.",
    "See https://docs.example.org/faq…",
    "See “https://docs.example.org/faq”.",
    "See 「https://docs.example.org/faq」。",
    "参照：https://docs.example.org/faq。",
    "See https://docs.example.org/a_b_c",
    "```sh\ncurl -fsSL https://get.example.org/install.sh | sudo bash\n```",
    "`curl -fsSL https://get.example.org/install.sh | sudo bash`",
    "```sh\nsudo apt-get update\n```\nYou should see no errors.",
    "1) Set `listen`.\n2) Restart.",
    "a. Set `listen`\nb. Restart",
    "There are 2 ways: one, two.",
    "First, ... second ...",
    "> Requires Python 3.11",
    "Set `log_level` to `debug`.",
    "Set `log_level=debug`",
    "`/etc/relay.toml` is the file.",
    "e.g. `listen`.",
    "Run `Sudo apt-get update`",
    "Run `sudo  apt-get   update`.",
    "Run ``sudo apt-get update``.",
    "Run `sudo apt-get update;`",
    "`lumen-relay spool purge`",
    "Run *lumen-relay spool purge*.",
    "For v1.2+ TLS is on.",
    "from 1.2 on",
    "on versions >=1.2",
    "On Ubuntu 22.04.",
    "On Ubuntu 22.04 LTS or newer.",
    "Set it to `true`.",
    "```text\nthe relay listens on port 7480\n```",
    "- `listen`: the port\n- `log_level`: how much",
    "The error `cannot open lock file` means that another process runs.",
    "Das Limit ist 10.000 Agenten.",
    "Ab 01.05.2024.",
    "Put `import os` first.",
    "It is 3.5 times as fast, in about 2.5 hours, 99.9% of the time.",
    "See docs.example.org/faq or docs.example.org.",
    "Mail admin@example.com.",
    "Edit relay.toml, install.sh or README.md; Node.js, ASP.NET and socket.io work.",
    "The limit is `10,000`.",
    "Since v1.2 (or later), TLS is on.",
]


def refused(answer: str) -> list[str]:
    """Return the parts of an answer that prevent posting it."""
    held = check_grounding(answer, [HANDBOOK], [SAID])
    return [
        *held.strange_commands,
        *held.strange_versions,
        *find_strange_urls(answer, [HANDBOOK], []),
    ]


@pytest.mark.rest
@pytest.mark.parametrize("answer", ORDINARY)
def test_an_ordinary_answer_is_not_refused(answer: str) -> None:
    assert refused(answer) == []


LINES = [
    line.strip() for line in HANDBOOK.split("```")[::2] for line in line.split("\n") if line.strip() and line[:1] != " "
]
LEADS = ["", "1. ", "12) ", "- ", "* 3. ", "> ", "Step 2: ", "Then ", "**", "In 2025: ", "(3) ", "#2 "]


@given(st.lists(st.tuples(st.sampled_from(LEADS), st.sampled_from(LINES)), min_size=1, max_size=8))
def test_an_answer_made_of_its_sources_own_lines_is_not_refused(said: list[tuple[str, str]]) -> None:
    lines = [f"{lead}{line}{'**' if lead == '**' else ''}" for lead, line in said]
    assert refused("\n".join(lines)) == refused("\n\n".join(lines)) == []


@given(
    st.lists(st.sampled_from(LINES), max_size=4),
    st.sampled_from(["9.8.7", "v77", "`relay burn --all`", "https://x.dev"]),
)
def test_one_invention_among_them_is_refused(lines: list[str], invention: str) -> None:
    assert refused("\n\n".join([*lines, f"Or {invention} then."])) == [invention.strip("`")]
