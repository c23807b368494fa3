"""What a server says is wrong -> one line for people."""

from __future__ import annotations

import html
import json
import re

MAX_WORDS = 600
_PAGE = re.compile(r"<(?:!doctype\s+html|html)\b", re.IGNORECASE)
_TITLE = re.compile(r"<(?:title|h1)\b[^>]*>([^<]+)", re.IGNORECASE)
_PAGE_HEAD = 4096
"""Characters of a web page that are looked at."""


def error_words(said: object) -> str:
    """The message in an error answer of any of the shapes in use: OpenAI's, vLLM's old one, TGI's,
    FastAPI's ``detail``, a bare string, or text that is no JSON at all. Of a web page the title."""
    if isinstance(said, str):
        try:
            parsed = json.loads(said)
        except (ValueError, RecursionError):
            parsed = None
        return one_line(_find_message(parsed) or _page_words(said) or said)
    return one_line(_find_message(said) or json.dumps(said, default=str))


def _page_words(text: str) -> str:
    head = text[:_PAGE_HEAD].lstrip("\ufeff \t\r\n")
    if not (head.startswith("<") and _PAGE.search(head)):
        return ""
    title = _TITLE.search(head)
    return f"a web page, {one_line(html.unescape(title[1]))!r}" if title else "a web page"


def one_line(words: str) -> str:
    """Printable, so that a server cannot steer the terminal that shows it."""
    shown = "".join(c if c.isprintable() else " " for c in words[: 4 * MAX_WORDS])
    return " ".join(shown.split())[:MAX_WORDS] or "no reason given"


def _find_message(said: object, depth: int = 0) -> str:
    if isinstance(said, str):
        return said
    if depth > 4:
        return ""
    if isinstance(said, list):
        return "; ".join(filter(None, (_find_message(item, depth + 1) for item in said[:5])))
    if isinstance(said, dict):
        for key in ("error", "message", "msg", "detail", "error_msg", "type"):
            if words := _find_message(said.get(key), depth + 1):
                return words
    return ""
