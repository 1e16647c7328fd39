"""As much of Markdown as pages need: what is prose, its links, its anchors. Code is left alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

_TOKEN: Final = re.compile(
    r"\[(?P<text>(?:`[^`]*`|[^\[\]`])*)\]\((?P<target>[^()\s]+)\)|(?P<ticks>`+)(?P<code>.*?)(?P=ticks)"
)
_ANCHOR: Final = re.compile(r'^<a id="([^"]+)"></a>$')
_FENCE: Final = re.compile(r"^\s*(```+|~~~+)")
_SCHEME: Final = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)


def lines(text: str) -> Iterator[tuple[str, bool]]:
    """Every line, and whether it is prose: no heading, no block of code."""
    fence = ""
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark[1][:3]
            yield line, False
        elif mark and mark[1].startswith(fence):
            fence = ""
            yield line, False
        else:
            yield line, not fence and not line.startswith(("    ", "\t", "#"))


def closed(text: str) -> str:
    """The text with its last fence closed, so that nothing behind it becomes code."""
    fence = ""
    for mark in filter(None, map(_FENCE.match, text.split("\n"))):
        kind = mark[1][:3]
        fence = kind if not fence else "" if kind == fence else fence
    return f"{text}\n{fence}" if fence else text


def prose(text: str) -> str:
    """A docstring as Markdown: what looks like a tag, as in <run_id>, is text."""
    shown = [_escaped(line) if is_prose else line for line, is_prose in lines(text)]
    return closed("\n".join(shown))


def _escaped(line: str) -> str:
    parts = re.split(r"(`+.*?`+)", line)
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)


def anchor(name: str) -> str:
    """The line that a link to `#name` leads to."""
    return f'<a id="{name}"></a>'


def anchors(text: str) -> set[str]:
    """The names that links can lead to."""
    return {found[1] for line in text.split("\n") if (found := _ANCHOR.match(line))}


def links(text: str) -> list[str]:
    """Where the links lead that stay inside of the repository, in their order."""
    found: list[str] = []

    def note(words: str, target: str) -> str:
        found.append(target)
        return ""

    replace(text, link=note)
    return [target for target in found if not _SCHEME.match(target)]


def replace(
    text: str,
    *,
    link: Callable[[str, str], str] = lambda words, target: f"[{words}]({target})",
    code: Callable[[str], str] = lambda code: f"`{code}`",
) -> str:
    """The text with every link and every piece of code in its prose as the functions give it back."""

    def token(found: re.Match[str]) -> str:
        if found["target"] is not None:
            return link(found["text"], found["target"])
        return code(found["code"]) if found["ticks"] == "`" else found[0]

    return "\n".join(_TOKEN.sub(token, line) if is_prose else line for line, is_prose in lines(text))
