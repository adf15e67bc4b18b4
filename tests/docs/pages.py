"""The pages of the documentation, taken apart."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Folders of generated pages.
GENERATED = ("_build", "api")
#: Languages of blocks that hold command lines.
SHELLS = {"sh", "bash", "shell", "console", "text", ""}


def pages() -> list[Path]:
    """Every page that is kept in the repository, but the changelog: it names what is gone."""
    pages = [
        path
        for path in sorted((ROOT / "docs").rglob("*.md"))
        if not set(path.relative_to(ROOT).parts) & set(GENERATED)
    ]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *pages]


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, where it begins, its text."""

    language: str
    line: int
    text: str


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page."""
    pattern = re.compile(r"^```([^\n]*)\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
    for match in pattern.finditer(text):
        yield Block(match[1].strip(), text[: match.start()].count("\n") + 1, match[2])


def prose(text: str) -> str:
    """A page without its fenced blocks and code spans, line for line."""
    text = re.sub(
        r"^```.*?^```\s*$",
        lambda match: "\n" * match[0].count("\n"),
        text,
        flags=re.MULTILINE | re.DOTALL,
    )
    return re.sub(r"`[^`\n]*`", "code", text)


def command_lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and words of every ``esscher ...`` in the blocks of a page."""
    for block in blocks(text):
        if block.language not in SHELLS:
            continue
        lines = block.text.replace("\\\n", " ").splitlines()
        for number, line in enumerate(lines):
            line = line.strip().removeprefix("$ ").removeprefix(".venv/bin/")
            if re.match(r"esscher [a-z-]", line):
                yield block.line + 1 + number, _words(line)[1:]


def inline_commands(text: str) -> Iterator[tuple[int, list[str]]]:
    """The same for commands with options in code spans."""
    for number, line in enumerate(
        re.sub(r"^```.*?^```\s*$", "", text, flags=re.M | re.S).splitlines()
    ):
        for span in re.findall(r"`(esscher [a-z][^`]*)`", line):
            if "|" not in span:
                yield number + 1, _words(span)[1:]


def _words(line: str) -> list[str]:
    """Words of a command line up to a pipe, a redirection or a comment."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|><;&")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    for word in lexer:
        if word and set(word) <= set("|><;&"):
            break
        words.append(word)
    return words


def anchors(text: str) -> set[str]:
    """Anchors that a forge and the site make of the headings."""
    counts: dict[str, int] = {}
    for title in re.findall(
        r"^#{1,6} (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M
    ):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", lambda m: m[1] or "", title).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        counts[slug] = counts.get(slug, -1) + 1
    return {slug if not k else f"{slug}-{k}" for slug, n in counts.items() for k in range(n + 1)}
