"""The text of a changed baseline: what did not change keeps the bytes it had, comments too."""

from __future__ import annotations

from typing import Any

import yaml

from pytest_llmperf.baseline.file import Loaded, dumps, loads
from pytest_llmperf.baseline.schema import Baseline
from pytest_llmperf.baseline.yamltext import END, parse
from pytest_llmperf.model.errors import ConfigError

_Key = tuple[str, ...]
_ENTRIES = ("runs", "cells")
"""Sections whose entries are taken one by one."""


def rewrite(old: Loaded | None, new: Baseline) -> str:
    """The text for ``new``: entries equal to those of ``old`` are copied from its text."""
    canonical = dumps(new)
    if old is None:
        return canonical
    if old.baseline == new:
        return old.text
    was, old_data = _chunks(old.text), old.baseline.model_dump(by_alias=True)
    new_data = new.model_dump(by_alias=True)
    text = "".join(
        was[key] if key in was and _part(old_data, key) == _part(new_data, key) else chunk
        for key, chunk in _chunks(canonical).items()
    )
    text += END
    try:
        # a file laid out in another way cannot be mixed with ours
        return text if loads(text, "") == new else canonical
    except ConfigError:
        return canonical


def _part(data: dict[str, Any], key: _Key) -> object:
    """What a chunk says; nothing for the first line of a section and what stands before all."""
    if len(key) == 2:
        return data[key[0]][key[1]]
    return data[key[0]] if key and key[0] not in _ENTRIES else None


def _chunks(text: str) -> dict[_Key, str]:
    """Whole lines by the key they start with: sections, and entries of ``runs`` and ``cells``."""
    lines = text.removesuffix(END).splitlines(keepends=True)
    starts: list[tuple[int, _Key]] = [(0, ())]
    node = parse(text, "").node
    for key, value in node.value:
        starts.append((key.start_mark.line, (key.value,)))
        if key.value in _ENTRIES and isinstance(value, yaml.MappingNode) and not value.flow_style:
            starts += [(k.start_mark.line, (key.value, k.value)) for k, _ in value.value]
    ends = [line for line, _ in starts[1:]] + [len(lines)]
    return {key: "".join(lines[start:end]) for (start, key), end in zip(starts, ends, strict=True)}
