"""The README and the documentation say only what works: their code is executed, block by block."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.snippets import blocks, matches, run_page
from tests.servers.postgres import Server, binaries

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MOST_NOT_RUN = 5


NEEDS_DATABASE = "<!-- needs an empty database in DATABASE_URL, and psql -->"


@pytest.fixture
def page(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A page, and the servers that it says it needs."""
    page: Path = request.param
    monkeypatch.delenv("DATABASE_URL", raising=False)
    if NEEDS_DATABASE not in page.read_text("utf-8"):
        yield page
        return
    server: Server = request.getfixturevalue("postgres")
    monkeypatch.setenv("DATABASE_URL", request.getfixturevalue("empty_postgres_url"))
    if found := binaries():
        monkeypatch.setenv("PATH", f"{found}{os.pathsep}{os.environ['PATH']}")
    yield page
    server.execute("DROP ROLE IF EXISTS desk_deploy, desk_worker, desk_web")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)), indirect=True)
def test_the_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    runnable = [b for b in blocks(page.read_text("utf-8")) if b.run and b.language in ("python", "console")]
    assert run_page(page, tmp_path) == len(runnable)


def test_few_blocks_are_not_run() -> None:
    left_out = [f"{page}:{b.line}" for page in PAGES for b in blocks(page.read_text("utf-8")) if not b.run]
    assert len(left_out) <= MOST_NOT_RUN, left_out


def run(text: str, directory: Path) -> int:
    page = directory / "page.md"
    page.write_text(text, "utf-8")
    work = directory / "work"
    work.mkdir()
    return run_page(page, work)


def python(*lines: str) -> str:
    return "\n".join(["```python", *lines, "```", ""])


def console(*lines: str) -> str:
    return "\n".join(["```console", *lines, "```", ""])


def test_blocks_share_a_namespace_a_loop_and_a_directory(tmp_path: Path) -> None:
    page = [
        python("import asyncio", "loop, name = asyncio.get_running_loop(), await asyncio.sleep(0, 'x')"),
        python("assert asyncio.get_running_loop() is loop", "await asyncio.sleep(0)"),
        python("from pathlib import Path", "async def main(): Path(name).write_text('stone')"),
        python("if __name__ == '__main__': asyncio.run(main())"),
        console("$ cat x", "stone"),
    ]
    assert run("\n".join(page), tmp_path) == 5


def test_annotations_of_a_page_can_be_resolved(tmp_path: Path) -> None:
    page = python("import msgspec", "class A(msgspec.Struct):", "    b: 'B'", "class B(msgspec.Struct): ...")
    page += python("assert msgspec.json.decode('{\"b\": {}}', type=A).b == B()")
    assert run(page, tmp_path) == 2


def test_a_shell_keeps_its_state_within_a_block(tmp_path: Path) -> None:
    page = console("$ sleep 60 & child=$!", "$ kill -9 $child; wait $child; echo $?", "...", "137")
    page += console(
        "$ python -c '", "> print(1)", "> print(2)'", "1", "2", "$ mkdir a; cd a", "$ pwd", "...work/a"
    )
    assert run(page, tmp_path) == 2


@pytest.mark.parametrize(
    "page",
    [
        python("assert 1 == 2"),
        python("import asyncio", "await asyncio.sleep(0)", "assert 1 == 2"),
        python("def broken("),
        "- in a list:\n\n  ```python\n  assert 1 == 2\n  ```\n",
        "````python\nassert 1 == 2\n````\n",
        console("$ echo one", "two"),
        console("$ echo one"),
        console("$ true", "one"),
        console("$ echo one; false", "one"),
        console("$ no-such-program"),
        console("$ exit 0"),
        console("one"),
        console("$ echo one", "one", "", "$ echo two", "three"),
        "```py\n```\n",
        "```bash\n```\n",
        "```python\n",
    ],
)
def test_a_wrong_snippet_fails(page: str, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, SyntaxError)):
        run(page, tmp_path)


def test_a_failure_points_at_the_line_of_the_page(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as failure:
        run("# Title\n\n" + python("x = 1", "x / 0"), tmp_path)
    assert failure.traceback[-1].lineno + 1 == 5


def test_only_the_block_right_below_the_comment_is_not_run(tmp_path: Path) -> None:
    skipped = "<!-- not run: needs a server -->\n\n" + python("assert 1 == 2")
    assert run(skipped + python("x = 1") + "```json\n{\n```\n", tmp_path) == 1
    assert [block.run for block in blocks(skipped + "text\n" + python("x = 1"))] == [False, True]


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("run 1... done", "run 1f3e done\n", True),
        ("run 1... done", "run 1f3e\n done\n", False),
        ("a\n...\nd", "a\nb\nc\nd\n", True),
        ("a\n...\nd", "a\nd\n", True),
        ("a\n...\nd", "a\nb\nc\n", False),
        ("a.c", "abc\n", False),
        ("a\n\n", "a  \n", True),
        ("", "", True),
        ("", "a\n", False),
    ],
)
def test_three_dots_stand_for_anything(expected: str, printed: str, same: bool) -> None:
    assert matches(expected, printed) is same
