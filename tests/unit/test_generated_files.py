"""Schemas, database guards and reference pages are what the types say today."""

import json
from pathlib import Path

import pytest

from runstone.core.contract import CONTRACT_VERSION
from tools.generate import ROOT, generated

FILES = generated()


@pytest.mark.parametrize("path", FILES)
def test_the_file_is_what_the_generator_writes(path: str) -> None:
    """`make generate` writes it again."""
    assert (ROOT / path).read_text("utf-8") == FILES[path]


def test_no_schema_is_left_over() -> None:
    there = {str(path.relative_to(ROOT)) for path in Path(ROOT / "specs/schemas").rglob("*.json")}
    assert there == {path for path in FILES if path.startswith("specs/schemas/")}


def test_every_schema_names_the_contract_it_belongs_to() -> None:
    """§VER-2"""
    for path, content in FILES.items():
        if path.endswith(".schema.json"):
            assert json.loads(content)["$id"].endswith(f":{CONTRACT_VERSION}")
