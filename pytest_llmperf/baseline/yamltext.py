"""YAML as baselines use it: reading with line numbers, writing with fixed style. No schema here."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from pytest_llmperf.model.errors import ConfigError

SCHEMA = 1
"""Version of the file; one that is newer is refused, one that is older is migrated."""

MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""From a version to the next one; each returns the whole document."""

RESTORE = "correct it, or restore the file from version control"
END = "...\n"
"""YAML's document end, our last line: a file of ours without it has been cut off."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STR = "tag:yaml.org,2002:str"
# what PyYAML does not quote by itself, or breaks over lines: texts that a YAML 1.2 reader, unlike
# it, takes for numbers or truth values; line ends, those of YAML 1.1 too
_QUOTED = re.compile(
    r"\A([-+.]*\d[\d_.,:eE+-]*|0[xob][\da-fA-F_]+|[yYnN])\Z|[\n\x85\u2028\u2029\ufeff]"
)
_LONG = 60
_WIDTH = 100


@dataclass(frozen=True)
class Document:
    """A parsed file: plain data, and where in the file each part stands."""

    source: str
    data: dict[str, Any]
    node: yaml.Node

    def error(self, loc: Sequence[str | int], problem: str) -> ConfigError:
        """A message naming file, line and field; ``loc`` is the path to the field."""
        node, where = self.node, ""
        line = node.start_mark.line
        for part in loc:
            if isinstance(node, yaml.MappingNode):
                pair = next((p for p in node.value if p[0].value == str(part)), None)
                if pair is None:
                    break
                line, node = pair[0].start_mark.line, pair[1]
                where += f".{part}" if where else str(part)
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
                node = node.value[part]
                line = node.start_mark.line
                where += f"[{part}]"
        return ConfigError(
            f"{self.source}:{line + 1}: {where + ': ' if where else ''}{problem}; {RESTORE}"
        )


def parse(text: str, source: str) -> Document:
    """Read a baseline's YAML and bring it to the present schema version.

    Raises:
        ConfigError: not YAML, not a mapping, a key twice, or a version this package cannot read.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        data = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{source}:{line}: not YAML ({error.problem}); {RESTORE}") from None
    except Exception as error:
        # PyYAML's constructors let through whatever int(), datetime or a lookup raises
        reason = str(error).splitlines() or [type(error).__name__]
        raise ConfigError(f"{source}: not YAML ({reason[0]}); {RESTORE}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: not a baseline, it holds no keys; {RESTORE}")
    document = Document(source, data, node)
    _refuse_duplicates(document, node, ())
    return Document(source, _migrate(document), node)


def _refuse_duplicates(document: Document, node: yaml.Node, loc: tuple[str | int, ...]) -> None:
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            if key.value in seen:
                raise document.error(
                    (*loc, key.value),
                    f"the key stands here and again in line {key.start_mark.line + 1}",
                )
            seen[key.value] = key.start_mark.line
            _refuse_duplicates(document, value, (*loc, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            _refuse_duplicates(document, value, (*loc, i))


def _migrate(document: Document) -> dict[str, Any]:
    data = document.data
    version = data.get("schema")
    if type(version) is not int:
        raise document.error(("schema",), f"a baseline starts with 'schema: {SCHEMA}'")
    if version > SCHEMA:
        raise ConfigError(
            f"{document.source}: schema {version} was made by a newer version of pytest-llmperf "
            f"(this one reads up to {SCHEMA}); upgrade it: pip install -U pytest-llmperf"
        )
    while version < SCHEMA:
        if version not in MIGRATIONS:
            raise document.error(("schema",), f"there is no schema {version}")
        data = MIGRATIONS[version](data)
        version += 1
        data["schema"] = version
    return data


class _Dumper(yaml.SafeDumper):
    """Quotes every string that some YAML reader takes for something else; folds long ones."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_str(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None
    tag = dumper.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    if len(text) > _LONG:
        style = _block_style(text)
    elif tag != _STR or _QUOTED.search(text):
        style = '"'
    return dumper.represent_scalar(_STR, text, style=style)


def _block_style(text: str) -> str:
    """Literal for several lines, else folded; quoted where a block would not read back alike."""
    style = "|" if "\n" in text else ">"
    block = yaml.dump({"k": {"k": text}}, default_style=style, allow_unicode=True, width=_WIDTH)
    try:
        return style if yaml.safe_load(block) == {"k": {"k": text}} else '"'
    except yaml.YAMLError:
        return '"'


_Dumper.add_representer(str, _represent_str)


def flow(value: Mapping[str, Any] | Sequence[Any]) -> str:
    """Write a mapping or list on one line."""
    return str(
        yaml.dump(
            value,
            Dumper=_Dumper,
            default_flow_style=True,
            width=sys.maxsize,
            sort_keys=False,
            allow_unicode=True,
        )
    ).rstrip("\n")


def block(value: Mapping[str, Any]) -> str:
    """Write a mapping one key a line; long strings are folded."""
    return str(
        yaml.dump(
            value,
            Dumper=_Dumper,
            default_flow_style=False,
            width=_WIDTH,
            sort_keys=False,
            allow_unicode=True,
        )
    )
