"""The command line. A module with commands is imported only when one is called, so that `--help` costs next to nothing.

Results go to stdout, messages to stderr. Exit codes: 0 done or answered; 1 no answer, and the reason; 2 wrong use or
configuration; 3 could not look (endpoint, disk, network); 70 a bug.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from keyword import iskeyword
from typing import Any

import click
from click.exceptions import NoSuchCommand

from intern import __version__
from intern.core.progress import send_progress_to
from intern.frontends.cli.output import ProgressLine, ReaderGoneError, exit_after, set_progress_line

# The module of each command, and the first line of its help, so that listing imports none of them; a test compares.
COMMANDS = {
    "run": ("running", "Run the bot on Discord."),
    "try": ("try_", "Try the whole bot in the terminal, without Discord."),
    "page": ("running", "Serve the status page without the bot."),
    "index": ("indexing", "Bring the index of the knowledge base up to date."),
    "ask": ("asking", "Ask a question, as a community member would."),
    "search": ("asking", "Search all that is known."),
    "discover": ("indexing", "Show what discovery would look into, and why; or do it."),
    "regenerate": ("topics", "Rebuild the topics from the archive."),
    "import": ("importing", "Learn from exported history (DiscordChatExporter, JSON)."),
    "import-notes": ("importing", "Learn nuggets and facts from a folder of notes (*.md)."),
    "models": ("setup", "List the models that the endpoint offers."),
    "doctor": ("health", "Check model, data folder, and rights and roles on Discord."),
    "backup": ("storage", "Copy the database to a file, whether or not the bot runs."),
    "export": ("storage", "Write archive, decisions, topics and indices as text files."),
    "move": ("storage", "Copy the database to another engine."),
    "restore": ("storage", "Make a lost database anew from the text files of a folder."),
    "status": ("health", "Show the data folder's state, whether or not the bot runs."),
    "topics": ("topics", "Read the topics: list them, show one, tell its history."),
    "archive": ("captures", "Read the captured pairs: list them, show one."),
    "facts": ("facts", "Read what is known as facts; retire what is no longer true."),
    "nuggets": ("facts", "Read what was distilled from conversations."),
    "prompts": ("prompts", "Read and check the wording of prompts and messages."),
    "eval": ("evaluation", "Ask a file of questions, and say how well they were answered."),
    "backtest": ("backtest", "Replay exported history, and compare with the team's answers."),
    "why": ("recordings", "Explain an answer, or a silence."),
    "replay": ("recordings", "Answer recorded questions again, with today's settings."),
    "calibrate": ("backtest", "Set how sure an answer must be, by judged answers."),
    "review": ("captures", "Read, approve or reject captures that wait for the team."),
    "retry": ("captures", "File parked pairs now: all of them, or those that you name."),
    "forget": ("forget", "Take a member's or a message's text out of what was learned."),
    "community": ("communities", "Read and change the communities of a process that hosts many."),
    "init": ("setup", "Write a commented intern.toml and the data folders."),
    "completion": ("shell", "Print what a shell needs to complete commands and options."),
    "help": ("shell", "Show the help of intern, or of one command."),
}

_OF_ALL = frozenset(("run", "try", "doctor", "models", "backup", "move", "community", "init"))
"""The commands that do not take --community."""

OF_NONE = _OF_ALL | {"page", "prompts", "backtest"}
"""The commands that need no --community where a process hosts many."""

_CALLED_HERE = {"init_kb": "index", "init_team_kb": "regenerate"}
"""The specifications' names of commands."""


class _LazyCommandGroup(click.Group):
    """Commands by name, imported at first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"intern.frontends.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name.replace("-", "_"))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in _CALLED_HERE:
            ctx.fail(f"No such command {name!r}. Here it is: intern {_CALLED_HERE[name]}")
        if name not in COMMANDS and not name.startswith("-"):
            raise NoSuchCommand(name, possibilities=COMMANDS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # click would end with 1 now, which is our code for "no answer".
            raise ReaderGoneError from error


@click.group(cls=_LazyCommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="intern")
@click.option("--config", metavar="FILE", help="The settings to use; else INTERN_CONFIG, else ./intern.toml.")
@click.option("--community", metavar="NAME", help="Work on one hosted community; `intern community` lists them.")
@click.pass_context
def cli(ctx: click.Context, config: str | None, community: str | None) -> None:
    """Answers a Discord community's questions, and learns from the team's replies."""
    if community is not None and ctx.invoked_subcommand in _OF_ALL:
        raise click.UsageError(f"intern {ctx.invoked_subcommand} is for the whole process; leave out --community", ctx)
    ctx.obj = config


def main() -> None:
    """Run the command line; the process ends with the command's exit code."""
    # click knows whether a stream is a terminal, but not https://no-color.org.
    color = False if os.environ.get("NO_COLOR") else None
    line = ProgressLine(sys.stderr)
    set_progress_line(line)

    def work() -> object:
        try:
            with send_progress_to(line):
                return cli.main(prog_name="intern", color=color, standalone_mode=False)
        finally:
            line.end()
            set_progress_line(None)

    exit_after(work)
