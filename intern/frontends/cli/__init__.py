"""The command line: one file per command, each imported only when it is called, so that `--help` costs next to nothing.

Data goes to stdout, talk to stderr. Exit codes: 0 done or answered; 1 no answer, and the reason; 2 wrong use or
configuration; 3 could not look (endpoint, disk, network); 70 a bug.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from keyword import iskeyword
from typing import Any

import click

from intern import __version__
from intern.core.progress import heard_by
from intern.frontends.cli.ending import ReaderGoneError, ending_well
from intern.frontends.cli.progress import ProgressLine, showing

# The first line of each command's help stands here, so that listing them imports none of them; a test compares.
COMMANDS = {
    "run": "Run the bot on Discord.",
    "try": "Try the whole bot in the terminal, without Discord.",
    "index": "Bring the index of the knowledge base up to date.",
    "ask": "Ask a question, as a community member would.",
    "search": "Search all that is known.",
    "discover": "Show what discovery would look into, and why; or do it.",
    "regenerate": "Rebuild the topic files from the archive.",
    "import": "Learn from exported history (DiscordChatExporter, JSON).",
    "import-notes": "Learn nuggets and facts from a folder of notes (*.md).",
    "doctor": "Check model, data folder, and rights and roles on Discord.",
    "backup": "Copy the database to a file, whether or not the bot runs.",
    "status": "Say how the data folder stands, whether or not the bot runs.",
    "topics": "Read the topics: list them, show one, tell its history.",
    "archive": "Read the captured pairs: list them, show one.",
    "facts": "Read what is known as facts; retire what is no longer true.",
    "nuggets": "Read what was distilled from conversations.",
    "prompts": "Read and check the wording of prompts and messages.",
    "eval": "Ask a file of questions, and say how well they were answered.",
    "backtest": "Replay exported history, and compare with the team's answers.",
    "review": "Read, approve or reject captures that wait for the team.",
    "retry": "File parked pairs now: all of them, or those that you name.",
    "forget": "Take a member's or a message's text out of what was learned.",
    "init": "Write a commented intern.toml and the data folders.",
}


def module_of(name: str) -> str:
    """The module of a command: its name, with an underscore where Python keeps that for itself."""
    return f"{name}_" if iskeyword(name) else name.replace("-", "_")


class _Commands(click.Group):
    """Commands by name, imported at first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"intern.frontends.cli.{module_of(cmd_name)}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # click would end with 1 now, which is our word for "no answer".
            raise ReaderGoneError from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="intern")
@click.option("--config", metavar="FILE", help="The settings to use; else INTERN_CONFIG, else ./intern.toml.")
@click.pass_context
def cli(ctx: click.Context, config: str | None) -> None:
    """Answers a Discord community's questions, and learns from the team's replies."""
    ctx.obj = config


def main() -> None:
    """Run the command line; the process ends with the command's exit code."""
    # click knows whether a stream is a terminal, but not https://no-color.org.
    color = False if os.environ.get("NO_COLOR") else None
    line = ProgressLine(sys.stderr)
    showing(line)

    def work() -> object:
        try:
            with heard_by(line):
                return cli.main(prog_name="intern", color=color, standalone_mode=False)
        finally:
            line.end()
            showing(None)

    ending_well(work)
