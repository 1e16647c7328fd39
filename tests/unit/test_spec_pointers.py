"""Every pointer into `specs/` leads to a clause, and the clauses of a prefix are numbered 1, 2, 3 …

A clause opens a paragraph with its id in bold. A pointer is the section sign followed by a letter, anywhere.
"""

import re
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
READ = ("src", "tests", "docs", "specs", "benchmarks", "examples", "tools")
SUFFIXES = {".py", ".sql", ".md", ".json", ".toml"}

SIGN = "\N{SECTION SIGN}"
CLAUSE = re.compile(rf"^\*\*{SIGN}([A-Z]+-[1-9][0-9]*)\*\*\s", re.MULTILINE)
POINTER = re.compile(rf"{SIGN}([A-Za-z]\w*(?:-\w+)?)")


def clauses(specs: dict[str, str]) -> list[str]:
    return [clause for text in specs.values() for clause in CLAUSE.findall(text)]


def used_twice(ids: list[str]) -> list[str]:
    return [clause for clause, times in Counter(ids).items() if times > 1]


def missing_numbers(ids: list[str]) -> list[str]:
    numbers: dict[str, set[int]] = defaultdict(set)
    for clause in ids:
        prefix, number = clause.split("-")
        numbers[prefix].add(int(number))
    return [f"{prefix}-{n}" for prefix, used in numbers.items() for n in range(1, max(used)) if n not in used]


def dangling(texts: dict[str, str], ids: list[str]) -> list[str]:
    """Pointers that lead nowhere, with file and line."""
    return [
        f"{name}:{number}: {pointer}"
        for name, text in texts.items()
        for number, line in enumerate(text.splitlines(), start=1)
        for pointer in POINTER.findall(line)
        if pointer not in ids
    ]


def read(*folders: str, suffixes: set[str] = SUFFIXES) -> dict[str, str]:
    paths = (path for folder in folders for path in sorted((ROOT / folder).rglob("*")))
    return {str(p.relative_to(ROOT)): p.read_text("utf-8") for p in paths if p.suffix in suffixes}


def test_clauses_are_numbered_without_gap_or_repetition() -> None:
    ids = clauses(read("specs", suffixes={".md"}))
    assert ids
    assert used_twice(ids) == []
    assert missing_numbers(ids) == []


def test_every_pointer_leads_to_a_clause() -> None:
    assert dangling(read(*READ), clauses(read("specs", suffixes={".md"}))) == []


def spec(*ids: str) -> dict[str, str]:
    return {"specs/a.md": "# Title\n\n" + "\n\n".join(f"**{SIGN}{clause}** It holds." for clause in ids)}


def test_a_clause_opens_a_paragraph() -> None:
    assert clauses(spec("LOG-1", "LOG-2")) == ["LOG-1", "LOG-2"]
    assert clauses({"a": f"As **{SIGN}LOG-1** says, and {SIGN}LOG-2."}) == []


def test_a_repeated_id_is_reported() -> None:
    assert used_twice(clauses(spec("LOG-1", "LOG-2") | {"specs/b.md": f"**{SIGN}LOG-1** Again."})) == [
        "LOG-1"
    ]


def test_a_gap_is_reported_per_prefix() -> None:
    assert missing_numbers(["LOG-1", "LOG-3", "RUN-2"]) == ["LOG-2", "RUN-1"]
    assert missing_numbers(["LOG-2", "LOG-1", "RUN-1"]) == []


def test_a_dangling_pointer_is_reported_with_its_place() -> None:
    text = f"# {SIGN}LOG-1, {SIGN}LOG-1.\n# {SIGN}LOG-12 {SIGN}log-1 {SIGN}LOG {SIGN}LOG-1a"
    assert dangling({"src/a.py": text}, ["LOG-1"]) == [
        f"src/a.py:2: {p}" for p in ("LOG-12", "log-1", "LOG", "LOG-1a")
    ]


def test_the_sections_of_other_documents_are_no_pointers() -> None:
    assert dangling({"src/a.py": f"RFC 9562 {SIGN}5.7 and {SIGN} 5"}, []) == []
