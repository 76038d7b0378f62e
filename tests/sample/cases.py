"""Sixty fixed messages to a bot that knows the sample documents, and code that judges an answer to one of them.

No prompt may use one as an example: what is asked here measures how good the bot is.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Literal

from msgspec import Struct

SAMPLE = Path(__file__).parents[2] / "data" / "knowledge-base"
SOURCES = SAMPLE / "sources"

Kind = Literal["answerable", "not covered", "chatter"]
Language = Literal["en", "de", "fr", "es"]

_LOOKS = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "„": '"', "–": "-", "—": "-", "‑": "-"})
_MARKUP = re.compile(r"[`*]|\\(?=[_*`])")


class Case(Struct, frozen=True, kw_only=True):
    """A message, and what a right answer to it holds. Without `holds` any answer is wrong."""

    name: str
    kind: Kind
    text: str
    language: Language = "en"
    sources: tuple[str, ...] = ()
    """The documents that answer it, by their ids. One of them must be found."""
    holds: tuple[tuple[str, ...], ...] = ()
    """A right answer has one text of each group."""
    wrong: tuple[str, ...] = ()
    """A right answer has none of these."""
    telling: tuple[str, ...] = ()
    """Words without which no document answers a message that is not covered."""

    @property
    def addressed(self) -> bool:
        """Chatter is said to others."""
        return self.kind != "chatter"


def plain(text: str) -> str:
    """A text made comparable: case, markup, typography and line breaks aside."""
    flat = unicodedata.normalize("NFKC", text).translate(_LOOKS)
    return " ".join(_MARKUP.sub("", flat).casefold().split())


def is_right(case: Case, answer: str) -> bool:
    """Whether an answer holds what it must, and nothing that is wrong."""
    said = plain(answer)
    return (
        bool(case.holds)
        and all(any(plain(text) in said for text in group) for group in case.holds)
        and not any(plain(text) in said for text in case.wrong)
    )


def source_text(source_id: str) -> str:
    """A document of the sample as it stands in its file."""
    return (SOURCES / source_id.removeprefix("kb:")).read_text("utf-8")


ANSWERABLE: tuple[Case, ...] = (
    Case(
        name="vulnerability",
        kind="answerable",
        text="I think I found a vulnerability, whom should I tell?",
        sources=("kb:community.md",),
        holds=(("security@lumen-relay.example",),),
    ),
    Case(
        name="rhythm",
        kind="answerable",
        text="Wie oft kommt eine neue Version heraus?",
        language="de",
        sources=("kb:community.md",),
        holds=(("six weeks", "6 weeks", "sechs wochen", "6 wochen"),),
    ),
    Case(
        name="old major",
        kind="answerable",
        text="for how long do you keep patching an old major version?",
        sources=("kb:community.md",),
        holds=(("one year", "a year", "1 year", "12 months", "twelve months"),),
        wrong=("six weeks after", "two years"),
    ),
    Case(
        name="price",
        kind="answerable",
        text="what would I have to pay to use this in my company?",
        sources=("kb:overview.md",),
        holds=(
            ("free software", "free of charge", "is free", "mit license", "mit licence", "free to use", "pay nothing"),
        ),
    ),
    Case(
        name="graphs",
        kind="answerable",
        text="Does it come with charts that I can look at in a browser?",
        sources=("kb:overview.md",),
        holds=(("dashboard",), ("not ", "n't ", "no dashboard", "no, ")),
        wrong=("yes",),
    ),
    Case(
        name="ram",
        kind="answerable",
        text="how much RAM does the server part take",
        sources=("kb:guides/install.md",),
        holds=(("60 mb", "60mb", "60 megabyte"),),
        wrong=("32 mb", "256 mb"),
    ),
    Case(
        name="container",
        kind="answerable",
        text="I'd rather run it in a container, what do I type?",
        sources=("kb:guides/install.md",),
        holds=(("docker run",), ("lumen/relay:2.4",)),
    ),
    Case(
        name="disk a day",
        kind="answerable",
        text="Combien de place sur le disque faut-il prévoir par jour avec 50 machines ?",
        language="fr",
        sources=("kb:guides/install.md",),
        holds=(("1 gb", "1gb", "1 go", "1go", "un go", "un gigaoctet", "1 gigaoctet"),),
        wrong=("5 gb", "5gb", "5 go"),
    ),
    Case(
        name="late code",
        kind="answerable",
        text="I made a join token before lunch and now it is rejected, how long does it live?",
        sources=("kb:guides/first-agent.md",),
        holds=(("15 minutes", "15 min", "fifteen minutes"),),
    ),
    Case(
        name="agent's key",
        kind="answerable",
        text="Wo legt ein Agent seinen privaten Schlüssel ab?",
        language="de",
        sources=("kb:guides/first-agent.md",),
        holds=(("/etc/lumen-agent/key",),),
        wrong=("privkey.pem",),
    ),
    Case(
        name="order",
        kind="answerable",
        text="going from version 1 to 2: agents first or server first?",
        sources=("kb:guides/upgrade.md",),
        holds=(
            (
                "relay before",
                "relay first",
                "upgrade the relay",
                "relay should be upgraded",
                "relay must be upgraded",
                "relay needs to be upgraded",
                "start with the relay",
                "before the agents",
            ),
        ),
        wrong=("agents before the relay", "upgrade the agents first", "agents should be upgraded first"),
    ),
    Case(
        name="way back",
        kind="answerable",
        text="the new major version was a mistake for us. is there a way to return to the old one?",
        sources=("kb:guides/upgrade.md",),
        holds=(("copy of the old spool", "copy of your old spool", "old spool"),),
        wrong=("not possible to go back",),
    ),
    Case(
        name="killed halfway",
        kind="answerable",
        text="I pressed Ctrl-C in the middle of spool migrate, did I break my data?",
        sources=("kb:guides/upgrade.md",),
        holds=(
            (
                "started again",
                "start it again",
                "start again",
                "restarted",
                "run it again",
                "can be stopped",
                "resume",
                "rerun",
            ),
        ),
        wrong=("cannot be stopped", "can't be stopped", "corrupted"),
    ),
    Case(
        name="renewal",
        kind="answerable",
        text="Do I have to bounce the daemon each time Let's Encrypt gives me a fresh cert?",
        sources=("kb:guides/tls.md",),
        holds=(
            (
                "no restart",
                "without a restart",
                "without restart",
                "not need to",
                "don't need to",
                "do not have to",
                "don't have to",
                "doesn't need",
                "does not need",
                "not necessary",
                "not needed",
                "no need",
                "within a minute",
            ),
        ),
        wrong=("yes", "you must restart", "you should restart", "you have to restart the"),
    ),
    Case(
        name="new certificate",
        kind="answerable",
        text="my agent can't reach the server any more since that has a new cert for another DNS name",
        sources=("kb:guides/tls.md",),
        holds=(
            ("lumen-agent join", "join again", "rejoin", "re-join"),
            ("again", "rejoin", "re-join", "certificate", "host name", "hostname"),
        ),
        wrong=("firewall",),
    ),
    Case(
        name="outage over",
        kind="answerable",
        text="our Prometheus was gone all night and is up again. what is the longest I wait until data flows?",
        sources=("kb:guides/backends.md",),
        holds=(("10 minutes", "ten minutes", "10 min"),),
    ),
    Case(
        name="still waiting",
        kind="answerable",
        text="how can I see how much was not delivered to the targets yet",
        sources=("kb:guides/backends.md", "kb:reference/command-line.md", "kb:reference/troubleshooting.md"),
        holds=(("backends status",),),
    ),
    Case(
        name="outgrown",
        kind="answerable",
        text="What becomes of old readings once the queue on disk outgrows its limit?",
        sources=("kb:reference/configuration.md",),
        holds=(("oldest",), ("drop", "delete", "discard", "remove")),
        wrong=("slows",),
    ),
    Case(
        name="other port",
        kind="answerable",
        text="¿Cómo hago para que los agentes se conecten por otro puerto, por ejemplo 9000?",
        language="es",
        sources=("kb:reference/configuration.md",),
        holds=(("listen",), ("restart", "reinici")),
    ),
    Case(
        name="without the file",
        kind="answerable",
        text="can I overide a seting without touching relay.toml, eg from compose?",
        sources=("kb:reference/configuration.md",),
        holds=(("lumen_",),),
    ),
    Case(
        name="phoning home",
        kind="answerable",
        text="does this thing phone home?",
        sources=("kb:reference/privacy.md",),
        holds=(("nothing", "no telemetry", "not send", "doesn't send", "no data", "no update check"),),
        wrong=("yes",),
    ),
    Case(
        name="addresses of customers",
        kind="answerable",
        text="Our entries contain mail addresses of customers, how do I keep these out of OpenSearch?",
        sources=("kb:reference/privacy.md",),
        holds=(("drop_fields", "[[filters]]"),),
    ),
    Case(
        name="stolen laptop",
        kind="answerable",
        text="A laptop was stolen. How do I lock it out right now?",
        sources=("kb:reference/command-line.md",),
        holds=(("agents remove", "remove revokes", "agents list|enrol|remove"),),
        wrong=("lumen-agent leave",),
    ),
    Case(
        name="self-test",
        kind="answerable",
        text="is there somthing that looks over my setup and says what to fix",
        sources=("kb:reference/command-line.md",),
        holds=(("lumen-relay doctor",),),
    ),
    Case(
        name="rebuilt",
        kind="answerable",
        text="Must all machines sign up afresh when I rebuild the server from an archive?",
        sources=("kb:guides/backup.md",),
        holds=(
            (
                "without a new enrolment",
                "without new enrolment",
                "no new enrolment",
                "keeps its identity",
                "reconnect without",
                "not need",
                "don't need",
                "not have to",
            ),
        ),
        wrong=("yes",),
    ),
    Case(
        name="what to save",
        kind="answerable",
        text="wich directorys must I save so that nothing is lost if the disk dies?",
        sources=("kb:guides/backup.md",),
        holds=(("/etc/lumen-relay",), ("/var/lib/lumen-relay",)),
    ),
    Case(
        name="copied machine",
        kind="answerable",
        text="since we copied a VM every value shows up two times",
        sources=("kb:reference/troubleshooting.md",),
        holds=(("same name", "another name", "different name", "unique name", "new name"),),
    ),
    Case(
        name="memory hog",
        kind="answerable",
        text="the process eats 2 gigs of RAM while several targets lag, can I tame that?",
        sources=("kb:reference/troubleshooting.md",),
        holds=(("backends.buffer", 'buffer = "8mb"'),),
    ),
    Case(
        name="fleet",
        kind="answerable",
        text="Could a single server look after 5000 machines?",
        sources=("kb:reference/limits.md",),
        holds=(("2,000", "2000", "2.000", "2 000"),),
        wrong=("yes",),
    ),
    Case(
        name="stack traces",
        kind="answerable",
        text="we write stack traces of 200 kilobytes in one go, will they get through in one piece?",
        sources=("kb:reference/limits.md",),
        holds=(("64 kb", "64kb", "64 kilobytes"), ("cut", "truncated")),
        wrong=("yes",),
    ),
)

NOT_COVERED: tuple[Case, ...] = (
    Case(
        name="windows",
        kind="not covered",
        text="How do I install the relay as a Windows service?",
        telling=("windows",),
    ),
    Case(
        name="helm",
        kind="not covered",
        text="Is there a Helm chart for Kubernetes?",
        telling=("helm", "kubernetes"),
    ),
    Case(
        name="rename",
        kind="not covered",
        text="How do I rename an agent that is connected already?",
        telling=("rename",),
    ),
    Case(
        name="high availability",
        kind="not covered",
        text="Can two relays share one spool, so that one takes over when the other dies?",
        telling=("two relays", "share", "takes over"),
    ),
    Case(
        name="s3",
        kind="not covered",
        text="can the spool live in an S3 bucket instead of /var/lib/lumen-relay?",
        telling=("s3", "bucket"),
    ),
    Case(
        name="otlp",
        kind="not covered",
        text="does the relay take OTLP from OpenTelemetry collectors?",
        telling=("otlp", "opentelemetry", "collector"),
    ),
    Case(
        name="status password",
        kind="not covered",
        text="how do I put a password before the page on http://localhost:7480/status",
        telling=("before the page", "basic auth", "protect"),
    ),
    Case(
        name="ciphers",
        kind="not covered",
        text="Which TLS versions and ciphers does it offer to agents?",
        telling=("cipher", "tls 1."),
    ),
    Case(
        name="passphrase",
        kind="not covered",
        text="How can I encrypt FILE.tar.zst with a passphrase when I create a backup?",
        telling=("passphrase", "encrypted"),
    ),
    Case(
        name="kafka",
        kind="not covered",
        text="what is the backend type for Kafka?",
        telling=("kafka",),
    ),
    Case(
        name="alerts",
        kind="not covered",
        text="Can the relay alert me by mail when a backend is far behind?",
        telling=("alert", "notif"),
    ),
    Case(
        name="raspberry",
        kind="not covered",
        text="Gibt es das Agent-Paket auch für den Raspberry Pi?",
        language="de",
        telling=("raspberry", "arm64", "armhf"),
    ),
    Case(
        name="compression",
        kind="not covered",
        text="our uplink is slow. which compression do agents use on the wire?",
        telling=("compress", "gzip"),
    ),
    Case(
        name="freebsd",
        kind="not covered",
        text="my agent on FreeBSD dies with a segfault right after lumen-agent join",
        telling=("freebsd", "segfault"),
    ),
    Case(
        name="nightly",
        kind="not covered",
        text="how long does the relay keep old backups before it deletes them?",
        telling=("old backups", "keep backups", "retention"),
    ),
)

CHATTER: tuple[Case, ...] = (
    Case(name="thanks", kind="chatter", text="ah brilliant, thank you so much, all green again"),
    Case(name="morning", kind="chatter", text="good morning folks, coffee first"),
    Case(name="praise", kind="chatter", text="forty agents connected and the spool stays empty. I love this thing"),
    Case(name="game", kind="chatter", text="anyone up for a game tonight?"),
    Case(name="cat", kind="chatter", text="lol my cat just sat down on the keyboard and restarted the relay"),
    Case(name="joke", kind="chatter", text="why did the log line cross the road? to get to the other spool :D"),
    Case(name="to a colleague", kind="chatter", text="@mira did you have a look at my pull request yet?"),
    Case(name="same here", kind="chatter", text="same here tbh"),
    Case(name="holiday", kind="chatter", text="I'm off until Monday, talk to you then"),
    Case(name="conference", kind="chatter", text="who else is at the conference in Ghent next week?"),
    Case(name="merci", kind="chatter", text="merci beaucoup, c'est réglé !", language="fr"),
    Case(name="läuft", kind="chatter", text="danke dir, läuft jetzt wieder", language="de"),
    Case(
        name="upgrade went well",
        kind="chatter",
        text="we upgraded all 300 agents to 2.4 last night, no problems at all",
    ),
    Case(name="later", kind="chatter", text="ok I'll raise spool.max_size tomorrow and report back"),
    Case(name="small talk", kind="chatter", text="what a week, isn't it? can't believe that it's only Wednesday"),
)

CASES: tuple[Case, ...] = (*ANSWERABLE, *NOT_COVERED, *CHATTER)
