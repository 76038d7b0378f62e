"""`intern help` and `intern completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from intern.frontends.cli.output import show


@click.command("help")
@click.argument("command", metavar="COMMAND…", nargs=-1)
@click.pass_context
def help(ctx: click.Context, *, command: tuple[str, ...]) -> None:  # noqa: A001 it is the name of the command
    """Show the help of intern, or of one command.

    The same as `intern COMMAND --help`. Exit code 0: done. 2: there is no such command.
    """
    assert ctx.parent is not None
    shown = ctx.parent
    for name in command:
        group = shown.command
        if not isinstance(group, click.Group):
            ctx.fail(f"{shown.command_path} has no commands of its own")
        _, named, _ = group.resolve_command(shown, [name])
        assert named is not None
        shown = click.Context(named, info_name=name, parent=shown)
    show(shown.get_help())


@click.command("completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(ctx: click.Context, *, shell: str) -> None:
    """Print what a shell needs to complete commands and options.

    \b
    bash: eval "$(intern completion bash)" in ~/.bashrc
    zsh:  eval "$(intern completion zsh)" in ~/.zshrc
    fish: intern completion fish > ~/.config/fish/completions/intern.fish

    Exit code 0: done. 2: the shell is unknown.
    """  # noqa: D301 click's mark for lines that are kept
    kind = get_completion_class(shell)
    assert kind is not None
    show(kind(ctx.find_root().command, {}, "intern", "_INTERN_COMPLETE").source())
