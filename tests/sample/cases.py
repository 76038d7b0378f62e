"""Sixty fixed messages to a bot that knows the sample documents, and code that judges an answer to one of them.

No prompt may use one as an example: what is asked here measures how good the bot is.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Literal

from msgspec import Struct

SAMPLE = Path(__file__).parents[2] / "sample"

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
    return (SAMPLE / source_id.removeprefix("kb:")).read_text("utf-8")


ANSWERABLE: tuple[Case, ...] = (
    Case(
        name="vulnerability",
        kind="answerable",
        text="I think I found a security hole in the relay, whom do I tell?",
        sources=("kb:community.md",),
        holds=(("security@lumen-relay.example",),),
    ),
    Case(
        name="rhythm",
        kind="answerable",
        text="Wie oft gibt es ein neues Release?",
        language="de",
        sources=("kb:community.md",),
        holds=(("six weeks", "6 weeks", "sechs wochen", "6 wochen"),),
    ),
    Case(
        name="old-major",
        kind="answerable",
        text="for how long do old major versions still get patches?",
        sources=("kb:community.md",),
        holds=(("one year", "a year", "1 year", "12 months", "twelve months"),),
        wrong=("six weeks after", "two years"),
    ),
    Case(
        name="price",
        kind="answerable",
        text="is there a license fee if I use Lumen Relay in my company?",
        sources=("kb:overview.md",),
        holds=(
            ("free software", "free of charge", "is free", "mit license", "mit licence", "free to use", "pay nothing"),
        ),
    ),
    Case(
        name="graphs",
        kind="answerable",
        text="Does Lumen Relay have charts or some sort of dashboard built in?",
        sources=("kb:overview.md",),
        holds=(("dashboard",), ("not ", "n't ", "no dashboard", "no, ")),
        wrong=("yes",),
    ),
    Case(
        name="ram",
        kind="answerable",
        text="how much memory should I plan for the relay on a small machine",
        sources=("kb:guides/install.md",),
        holds=(("60 mb", "60mb", "60 megabyte"),),
        wrong=("32 mb", "256 mb"),
    ),
    Case(
        name="container",
        kind="answerable",
        text="I'd rather have the relay in a Docker container, what do I type?",
        sources=("kb:guides/install.md",),
        holds=(("docker run",), ("lumen/relay:2.4",)),
    ),
    Case(
        name="disk-a-day",
        kind="answerable",
        text="Combien de place sur le disque faut-il pour le spool, par jour avec 50 agents ?",
        language="fr",
        sources=("kb:guides/install.md",),
        holds=(("1 gb", "1gb", "1 go", "1go", "un go", "un gigaoctet", "1 gigaoctet"),),
        wrong=("5 gb", "5gb", "5 go"),
    ),
    Case(
        name="late-code",
        kind="answerable",
        text="My enrolment code from before lunch is rejected, how long do these live?",
        sources=("kb:guides/first-agent.md",),
        holds=(("15 minutes", "15 min", "fifteen minutes"),),
    ),
    Case(
        name="agent-key",
        kind="answerable",
        text="Wo speichert der Agent seinen Key?",
        language="de",
        sources=("kb:guides/first-agent.md",),
        holds=(("/etc/lumen-agent/key",),),
        wrong=("privkey.pem",),
    ),
    Case(
        name="order",
        kind="answerable",
        text="moving to 2.x: do I begin with the relay or with the agents?",
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
        name="way-back",
        kind="answerable",
        text="the new major version was a mistake. can we return to 1.x?",
        sources=("kb:guides/upgrade.md",),
        holds=(("copy of the old spool", "copy of your old spool", "old spool"),),
        wrong=("not possible to go back",),
    ),
    Case(
        name="killed-halfway",
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
        text="Do I have to bounce the relay each time Let's Encrypt renews the certificate?",
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
        name="new-certificate",
        kind="answerable",
        text="my agent won't talk to the relay since we put in a certificate for another host name",
        sources=("kb:guides/tls.md",),
        holds=(
            ("lumen-agent join", "join again", "rejoin", "re-join"),
            ("again", "rejoin", "re-join", "certificate", "host name", "hostname"),
        ),
        wrong=("firewall",),
    ),
    Case(
        name="outage-over",
        kind="answerable",
        text="our Prometheus backend was gone all night and is up again. how long until the relay sends to it again?",
        sources=("kb:guides/backends.md",),
        holds=(("10 minutes", "ten minutes", "10 min"),),
    ),
    Case(
        name="still-waiting",
        kind="answerable",
        text="how can I see how much is still queued for each backend",
        sources=("kb:guides/backends.md", "kb:reference/command-line.md", "kb:reference/troubleshooting.md"),
        holds=(("backends status",),),
    ),
    Case(
        name="outgrown",
        kind="answerable",
        text="What becomes of old data once the spool outgrows its limit?",
        sources=("kb:reference/configuration.md",),
        holds=(("oldest",), ("drop", "delete", "discard", "remove")),
        wrong=("slows",),
    ),
    Case(
        name="other-port",
        kind="answerable",
        text="¿Cómo cambio el puerto de listen, por ejemplo a 9000?",
        language="es",
        sources=("kb:reference/configuration.md",),
        holds=(("listen",), ("restart", "reinici")),
    ),
    Case(
        name="without-the-file",
        kind="answerable",
        text="can I overide a seting of relay.toml with an environment variable?",
        sources=("kb:reference/configuration.md",),
        holds=(("lumen_",),),
    ),
    Case(
        name="phoning-home",
        kind="answerable",
        text="does the relay phone home or send telemetry to you?",
        sources=("kb:reference/privacy.md",),
        holds=(("nothing", "no telemetry", "not send", "doesn't send", "no data", "no update check"),),
        wrong=("yes",),
    ),
    Case(
        name="addresses-of-customers",
        kind="answerable",
        text="Our log lines contain mail addresses of customers, how do I filter these out?",
        sources=("kb:reference/privacy.md",),
        holds=(("drop_fields", "[[filters]]"),),
    ),
    Case(
        name="stolen-laptop",
        kind="answerable",
        text="A laptop with an agent was stolen. How do I lock it out right now?",
        sources=("kb:reference/command-line.md",),
        holds=(("agents remove", "remove revokes", "agents list|enrol|remove"),),
        wrong=("lumen-agent leave",),
    ),
    Case(
        name="self-test",
        kind="answerable",
        text="is there a comand that checks if ports, certificate and so on are fine",
        sources=("kb:reference/command-line.md",),
        holds=(("lumen-relay doctor",),),
    ),
    Case(
        name="rebuilt",
        kind="answerable",
        text="Do all agents need new codes after I restored the relay on another machine?",
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
        name="what-to-save",
        kind="answerable",
        text="wich folders must I save so that nothing is lost if the relay's disk dies?",
        sources=("kb:guides/backup.md",),
        holds=(("/etc/lumen-relay",), ("/var/lib/lumen-relay",)),
    ),
    Case(
        name="copied-machine",
        kind="answerable",
        text="since we cloned a VM its metrics show up two times",
        sources=("kb:reference/troubleshooting.md",),
        holds=(("same name", "another name", "different name", "unique name", "new name"),),
    ),
    Case(
        name="memory-hog",
        kind="answerable",
        text="the relay eats 2 GB of memory while several backends lag, can I tame that?",
        sources=("kb:reference/troubleshooting.md",),
        holds=(("backends.buffer", 'buffer = "8mb"'),),
    ),
    Case(
        name="fleet",
        kind="answerable",
        text="Can one relay take 5000 agents?",
        sources=("kb:reference/limits.md",),
        holds=(("2,000", "2000", "2.000", "2 000"),),
        wrong=("yes",),
    ),
    Case(
        name="stack-traces",
        kind="answerable",
        text="how long may a log line be? ours are stack traces of 200 KB",
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
        name="high-availability",
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
        name="status-password",
        kind="not covered",
        text="Can I put LDAP or single sign-on before the status page of the relay?",
        telling=("ldap", "single sign-on", "basic auth"),
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
        text="Can I get a push message on my phone when a backend dies?",
        telling=("push", "phone", "alert"),
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
    Case(name="to-a-colleague", kind="chatter", text="@mira did you have a look at my pull request yet?"),
    Case(name="same-here", kind="chatter", text="same here tbh"),
    Case(name="holiday", kind="chatter", text="I'm off until Monday, talk to you then"),
    Case(name="conference", kind="chatter", text="who else is at the conference in Ghent next week?"),
    Case(name="merci", kind="chatter", text="merci beaucoup, c'est réglé !", language="fr"),
    Case(name="runs-again", kind="chatter", text="danke dir, läuft jetzt wieder", language="de"),
    Case(
        name="upgrade-went-well",
        kind="chatter",
        text="we upgraded all 300 agents to 2.4 last night, no problems at all",
    ),
    Case(name="later", kind="chatter", text="ok I'll raise spool.max_size tomorrow and report back"),
    Case(name="small-talk", kind="chatter", text="what a week, isn't it? can't believe that it's only Wednesday"),
)

CASES: tuple[Case, ...] = (*ANSWERABLE, *NOT_COVERED, *CHATTER)
