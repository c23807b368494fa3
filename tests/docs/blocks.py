"""The fenced blocks of a Markdown page, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(
    r"(?:<!-- (?P<mark>[^>]*) -->\n)?^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"^# (?P<path>[\w./-]+\.(?:py|ini|toml|yaml|yml))$")


@dataclass(frozen=True)
class Block:
    """One fenced block. ``mark`` is the text of an HTML comment right above it."""

    language: str
    text: str
    mark: str = ""

    @property
    def file(self) -> str | None:
        """Where the block belongs, if its first line is a comment with a path."""
        match = _FILE.match(self.text.partition("\n")[0])
        return match["path"] if match else None

    @property
    def exit_code(self) -> int:
        """What the text says a shell block ends with."""
        match = re.fullmatch(r"exit: (\d)", self.mark)
        return int(match[1]) if match else 0


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [
        Block(
            found["language"],
            re.sub(f"^{found['indent']}", "", found["text"], flags=re.MULTILINE),
            found["mark"] or "",
        )
        for found in _FENCE.finditer(page.read_text(encoding="utf-8"))
    ]


def scripts(block: Block) -> Iterator[str]:
    """The shell text of a block: itself, what follows ``$``, or the steps of a workflow file."""
    if block.language == "sh":
        yield block.text
    elif block.language == "console":
        joined = block.text.replace("\\\n", " ")
        yield from (line[2:] for line in joined.splitlines() if line.startswith("$ "))
    elif block.language == "yaml":
        yield from _steps(yaml.safe_load(block.text))


def _steps(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("run", "script", "before_script"):
                yield from [value] if isinstance(value, str) else map(str, value)
            else:
                yield from _steps(value)
    elif isinstance(node, list):
        for item in node:
            yield from _steps(item)


def commands(script: str) -> Iterator[list[str]]:
    """The simple commands of a shell script, as words; assignments before them are left out."""
    # what a workflow fills in is one word here
    plain = re.sub(r"\$\{\{.*?\}\}", "X", script).replace("\\\n", " ")
    for line in plain.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("&|;"):
                if words:
                    yield words
                words = []
            elif words or not re.match(r"\w+=", word):
                words.append(word)
