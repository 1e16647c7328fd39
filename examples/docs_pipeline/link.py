"""Links pages to each other: a name in the text that has a page leads there."""

from __future__ import annotations

from collections.abc import Mapping

from examples.docs_pipeline import markdown

SEE_ALSO = "## See also"


def linked(text: str, references: Mapping[str, str]) -> str:
    """A page with its cross references; those that its prose does not mention are listed at its end."""
    reached: set[str] = set()

    def code(words: str) -> str:
        target = references.get(words.removesuffix("()"))
        if target is None:
            return f"`{words}`"
        reached.add(target)
        return f"[`{words}`]({target})"

    body = markdown.replace(text, code=code).rstrip("\n")
    others = {target: name for name, target in references.items() if not target.startswith("#")}
    entries = [f"- [`{name}`]({target})" for target, name in others.items() if target not in reached]
    return "\n\n".join([body, *([SEE_ALSO, "\n".join(sorted(entries))] if entries else [])]) + "\n"
