"""`python -m tests.newcomer`: does all that the README tells people to type, in its order, in a clean clone.

The commands are taken from the README's own text: every `sh` block, line by line. What a newcomer has and a machine has
not is put in its place: a token and a server are those of the Discord double, an endpoint is the endpoint double, a
folder of documents is made. A command that fails, that takes too long, or that does not show what it is for fails the
check.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from intern.service.doctor import WANTED
from tests.double.discord import DiscordDouble
from tests.worlds.endpoint import EndpointDouble

TREE = Path(__file__).parents[1]
PATIENCE = {"make": 600.0}
"""The maximum seconds of a command, by its first word; else 120. `make demo` may have to download everything."""
TYPED = {"try": "alice: How do I change the colour of the lamp?\n/topics\n/why\n/quit\n"}
"""The input to a program once it has started."""
SHOWN = {"demo": r"`team:", "try": r"`kb:lamp\.md`", "index": r"\b1 described"}
"""Text in the output of a successful command: an answer with its source, the indexed documents."""
FOLDER = "path/to/documents"
LAMP = "# The lamp\n\nTo change the colour of the lamp, run `lamp colour`.\n"


class Step(NamedTuple):
    """One line to type, and its place."""

    command: str
    line: int
    page: str = "README.md"


class Stand(NamedTuple):
    """The place where the commands run, with the doubles of the outside."""

    clone: Path
    discord: DiscordDouble
    endpoint: EndpointDouble


class FailedError(Exception):
    """The failure that a newcomer would have met."""


def steps(text: str, page: str = "README.md") -> Iterator[Step]:
    """Return the commands of a page, in its order. Comments are no commands."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip().startswith("```"):
            inside = line.strip() == "```sh"
        elif inside and (command := line.partition(" # ")[0].strip()) and not command.startswith("#"):
            yield Step(command, number, page)


def variable(command: str, stand: Stand) -> tuple[str, str] | None:
    """Return the variable that `export` sets, with a substitute for a newcomer's own value; None for other commands."""
    found = re.fullmatch(r"export (\w+)=(.*)", command)
    if found is None:
        return None
    ours = {
        "INTERN__DISCORD__TOKEN": stand.discord.token,
        "INTERN__DISCORD__GUILD_IDS": json.dumps([stand.discord.guild.id]),
        "INTERN__DISCORD__TEAM_ROLE_IDS": json.dumps([stand.discord.team_role.id]),
        "INTERN__LLM__BASE_URL": stand.endpoint.base_url,
        "INTERN__LLM__API_KEY": "a-key-of-nobody",
        "INTERN_CONFIG": str(stand.clone / "intern.toml"),
        "INTERN__DATA__DIR": str(stand.clone / "data"),
    }
    [value] = shlex.split(found[2])
    return found[1], ours.get(found[1], value)


def main() -> int:
    """Return 0 if all of it worked."""
    began = monotonic()
    try:
        asyncio.run(_followed((TREE / "README.md").read_text(encoding="utf-8")))
    except FailedError as error:
        print(f"newcomer: {error}", file=sys.stderr)
        return 1
    print(f"newcomer: all of it works, in {monotonic() - began:.0f} s", file=sys.stderr)
    return 0


async def _followed(readme: str) -> None:
    with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
        clone = Path(folder) / "intern"
        await asyncio.to_thread(cloned, clone)
        for place in (FOLDER, "data/knowledge-base/sources"):
            (clone / place).mkdir(parents=True)
            (clone / place / "lamp.md").write_text(
                "# The lamp\n\nTo change the colour of the lamp, run `lamp colour`.\n"
            )
        async with DiscordDouble() as discord, EndpointDouble().serving() as endpoint:
            _invited(discord)
            await _typed(readme, Stand(clone, discord, endpoint))


def _invited(discord: DiscordDouble) -> None:
    """Follow the link that `doctor` prints: the bot's own role gets its permissions."""
    [role] = (role for role in discord.guild.roles.values() if role.managed_by == discord.bot_id)
    role.permissions = WANTED


async def _typed(readme: str, stand: Stand) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("INTERN", "VIRTUAL_ENV"))}
    environment |= {"INTERN__DISCORD__REST_URL": stand.discord.rest_url, "LANG": "C.UTF-8"}
    for step in steps(readme):
        if setting := variable(step.command, stand):
            name, value = setting
            environment[name] = value
            print(f"  set         {name}", file=sys.stderr)
        else:
            began = monotonic()
            await _run(step, stand, environment)
            print(f"  {monotonic() - began:6.1f} s    {step.command}", file=sys.stderr)


async def _run(step: Step, stand: Stand, environment: Mapping[str, str]) -> str:
    """Run the command, and return its output. Raises FailedError."""
    words = shlex.split(step.command)
    stays = words[-1] == "run" and words[0].endswith("intern")
    process = await asyncio.create_subprocess_shell(
        f"exec {step.command}", cwd=stand.clone, env=environment, stdin=PIPE, stdout=PIPE, stderr=STDOUT
    )
    typed = next((text for word, text in TYPED.items() if word in words), "")
    told = asyncio.create_task(process.communicate(typed.encode()))
    try:
        async with asyncio.timeout(PATIENCE.get(words[0], 120.0)):
            if stays:
                await _met(stand.discord, told)
                process.send_signal(signal.SIGINT)
            output, _ = await told
    except TimeoutError:
        raise FailedError(f"{step.page}, line {step.line}: `{step.command}` does not end") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said = output.decode(errors="replace")
    if process.returncode:
        raise FailedError(
            f"{step.page}, line {step.line}: `{step.command}` ends with exit code {process.returncode}:\n{said[-3000:]}"
        )
    for word, shown in SHOWN.items():
        if word in words and "--sources" not in words and not re.search(shown, said):
            raise FailedError(f"{step.page}, line {step.line}: `{step.command}` does not show {shown}:\n{said[-3000:]}")
    return said


async def _met(discord: DiscordDouble, told: asyncio.Task[tuple[bytes, bytes]]) -> None:
    """Wait until the started bot is ready, or has ended."""
    ready = asyncio.create_task(discord.wait_ready())
    await asyncio.wait({ready, told}, return_when=asyncio.FIRST_COMPLETED)
    if ready.done():
        await discord.until(lambda: discord.gateway.heartbeats)
    else:
        ready.cancel()


def cloned(clone: Path) -> None:
    """Make a clean clone of the checked out tree, with later changes and additions except those that git ignores."""
    _git("clone", "--quiet", "--no-hardlinks", str(TREE), str(clone))
    for name in _git("ls-files", "-z", "--deleted").split("\0"):
        if name:
            (clone / name).unlink(missing_ok=True)
    for name in _git("ls-files", "-z", "--modified", "--others", "--exclude-standard").split("\0"):
        if name and (TREE / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(TREE / name, clone / name)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=TREE, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
