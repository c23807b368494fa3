"""What ``llmperf init`` writes into a user's repository. Nothing is ever overwritten."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_llmperf.baseline.profiles import shipped
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.options import OPTIONS

_CONFIG = "pytest.ini"
_EXAMPLE = "llmperf.ini.example"
"""Written instead where pytest is configured already: a pytest.ini would hide that."""
_CONFIGURED = {
    "pytest.toml": "",
    ".pytest.toml": "",
    "pytest.ini": "",
    ".pytest.ini": "",
    "pyproject.toml": "[tool.pytest",
    "tox.ini": "[pytest]",
    "setup.cfg": "[tool:pytest]",
}
"""Where pytest looks for its configuration, and what a file holds that has one."""

_LOOP_SCOPE = "asyncio_default_fixture_loop_scope = function"

_BASELINES_README = """\
# Baselines

One file per hardware profile. This creates `NAME.yaml`, and later accepts changes into it:

    pytest perf_tests --llm-url http://HOST:8000 --hardware NAME --update-baselines

and this compares with it:

    pytest perf_tests --llm-url http://HOST:8000 --hardware NAME

Commit the files; a change of performance is then reviewed as any other change.
"""


@dataclass(frozen=True)
class Written:
    """Files that were made, and files that were there before and stay as they are."""

    created: tuple[Path, ...]
    kept: tuple[Path, ...]


def write_project(folder: Path) -> Written:
    """Write ``perf_tests/``, an empty ``baselines/`` and a commented configuration.

    Raises:
        ConfigError: the folder cannot be written.
    """
    created, kept = [], []
    for name, text in _files(folder):
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            kept.append(path)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
        else:
            created.append(path)
    return Written(tuple(created), tuple(kept))


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    for source in sorted(shipped("perf_tests").glob("*.py")):
        yield f"perf_tests/{source.name}", source.read_text(encoding="utf-8")
    yield "baselines/README.md", _BASELINES_README
    present = {name: mark for name, mark in _CONFIGURED.items() if (folder / name).is_file()}
    configured = any(mark in _read(folder / name) for name, mark in present.items())
    ours = _read(folder / _CONFIG) == config_text()
    yield (_EXAMPLE if configured and not ours else _CONFIG), config_text()


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def config_text() -> str:
    """Every ini key of the plugin, commented out, with its help."""
    lines = ["[pytest]", "# pytest-asyncio warns without it", _LOOP_SCOPE]
    lines += ["", "# pytest-llmperf; the command line overrides these"]
    for option in OPTIONS:
        if option.ini:
            words = textwrap.wrap(option.help, 96, break_on_hyphens=False)
            lines += ["", *(f"# {line}" for line in words)]
            example = (
                "true" if option.kind == "flag" else option.metavar or "|".join(option.choices)
            )
            lines.append(f"# {option.key} = {example}")
    return "\n".join(lines) + "\n"
