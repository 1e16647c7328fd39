"""Runs the code blocks of a Markdown page the way a reader would: top to bottom, in one empty directory.

`python` blocks share one namespace, and may await at the top level. In a `console` block, lines that start
with `$ ` are commands (`> ` continues one), run by one shell per block; the lines below a command are what it
prints, where a line `...` stands for any lines and `...` within a line for any characters. A command must end
with status 0. A block right below `<!-- not run -->` is left alone.
"""

import ast
import asyncio
import contextlib
import inspect
import os
import re
import signal
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,}) *(?P<language>[^\s`]*)")
NOT_RUN = re.compile(r"<!-- not run\b.*-->")
# The names under which a block would look executable to a reader and escape this test.
ALIASES = {"py": "python", "python3": "python", "pycon": "python"} | dict.fromkeys(
    ("sh", "bash", "shell", "zsh", "shell-session"), "console"
)
SECONDS_PER_BLOCK = 120
MARK = "<<status>>"


@dataclass(frozen=True)
class Block:
    language: str
    line: int  # of the first line of code, counted from 1
    code: str
    run: bool = True


@dataclass(frozen=True)
class Command:
    line: str
    expected: list[str]


def blocks(text: str) -> list[Block]:
    """Every fenced block of a page, in order."""
    found: list[Block] = []
    lines = text.splitlines()
    above, at = "", 0
    while at < len(lines):
        if fence := FENCE.match(lines[at]):
            end = closing_line(lines, at, fence["ticks"])
            code = "\n".join(line.removeprefix(fence["indent"]) for line in lines[at + 1 : end])
            found.append(Block(fence["language"], at + 2, code, run=not NOT_RUN.fullmatch(above.strip())))
            above, at = "", end
        elif lines[at].strip():
            above = lines[at]
        at += 1
    return found


def closing_line(lines: list[str], start: int, ticks: str) -> int:
    for at in range(start + 1, len(lines)):
        line = lines[at].strip()
        if line.startswith(ticks) and set(line) == {ticks[0]}:
            return at
    raise AssertionError(f"the block that opens on line {start + 1} is never closed")


def run_page(page: Path, directory: Path) -> int:
    """Execute a page's blocks in `directory`; returns how many. Raises at the first that is wrong."""
    count = 0
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.chdir(directory)
        # Registered, so that annotations in the page's classes can be resolved by name.
        main = types.ModuleType("__main__")
        patch.setitem(sys.modules, "__main__", main)
        # A page may put its own directory on the path: the one before must not be looked at in its place.
        patch.setattr(sys, "path", list(sys.path))
        sys.path_importer_cache.pop(".", None)
        for block in blocks(page.read_text("utf-8")):
            assert block.language not in ALIASES, (
                f"{page}:{block.line}: call it `{ALIASES[block.language]}`, so that it is tested"
            )
            if block.run and block.language in ("python", "console"):
                if block.language == "python":
                    run_python(block, page, main, runner)
                else:
                    run_console(block, page, directory)
                count += 1
    return count


def run_python(block: Block, page: Path, main: types.ModuleType, runner: asyncio.Runner) -> None:
    # Blank lines above, so that a traceback shows the page's own line.
    source = "\n" * (block.line - 1) + block.code
    code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    result = eval(code, main.__dict__)
    if inspect.iscoroutine(result):
        runner.run(result)


def commands(code: str) -> list[Command]:
    found: list[Command] = []
    for line in code.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], []))
        elif line.startswith("> ") and found and not found[-1].expected:
            found[-1] = Command(f"{found[-1].line}\n{line[2:]}", [])
        else:
            assert found or not line.strip(), f"output without a command: {line}"
            if found:
                found[-1].expected.append(line)
    assert found, "a console block needs a line that starts with `$ `"
    return found


def run_console(block: Block, page: Path, directory: Path) -> None:
    expected = commands(block.code)
    outputs = shell([command.line for command in expected], directory)
    for command, (output, status) in zip(expected, outputs, strict=True):
        where = f"{page}:{block.line}: $ {command.line}"
        assert status == 0, f"{where}\nended with status {status}:\n{output}"
        wanted = "\n".join(command.expected)
        assert matches(wanted, output), f"{where}\nexpected:\n{wanted}\nprinted:\n{output}"


def shell(lines: list[str], directory: Path) -> list[tuple[str, int]]:
    """Run commands in one bash, so that `cd`, variables and `$!` live on; what each printed, and its status.

    Output goes to a file: a command left in the background would keep a pipe open.
    """
    script = "\n".join(f"{line}\nprintf '\\n%s %s\\n' '{MARK}' $?" for line in lines)
    printed = directory / ".console-output"
    with printed.open("wb") as sink:
        bash = subprocess.Popen(
            ["bash", "-c", script],
            cwd=directory,
            env=reader_environment(directory),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            bash.wait(SECONDS_PER_BLOCK)
        finally:
            end_group(bash)
    text = printed.read_text("utf-8", errors="replace")
    printed.unlink()
    ends = list(re.finditer(rf"\n{re.escape(MARK)} (\d+)\n", text))
    assert len(ends) == len(lines), f"the shell ended early:\n{text}"
    starts = [0, *(end.end() for end in ends)]
    return [(text[start : end.start()], int(end[1])) for start, end in zip(starts, ends, strict=False)]


def end_group(bash: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):  # nothing was left in the background
        os.killpg(bash.pid, signal.SIGKILL)
    bash.wait()


def reader_environment(home: Path) -> dict[str, str]:
    """A plain terminal, with the programs of the running interpreter first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    plain = {"LANG": "C.UTF-8", "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "100", "PYTHONWARNINGS": "error"}
    given = {name: os.environ[name] for name in ("DATABASE_URL",) if name in os.environ}
    return plain | {"PATH": path, "HOME": str(home)} | given


def matches(expected: str, printed: str) -> bool:
    """Whether the output is as expected, white space at the ends of lines and of the whole aside."""
    pattern = "".join(
        r"(?:[^\n]*\n)*?"
        if line.strip() == "..."
        else ".*?".join(map(re.escape, line.rstrip().split("..."))) + r"\n"
        for line in expected.strip("\n").splitlines()
    )
    lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines)) is not None
