"""Where profiles are, and the grid one declares. Needs only yaml: collection stays light."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

from pytest_llmperf.baseline.yamltext import Document, parse
from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.grid import parse_tokens

_PACKAGE = Path(__file__).resolve().parent.parent
_AXES = ("contexts", "concurrency", "prefill_contexts")
_DECLARED = (*_AXES, "max_tokens", "endpoint", "prompts", "capacity")
_NAME = re.compile(r"\w[\w.+-]{,99}")


def shipped(folder: str) -> Path:
    """A folder shipped with the package, ``baselines`` or ``perf_tests``; in a checkout its own."""
    packaged = _PACKAGE / "shipped" / folder
    return packaged if packaged.is_dir() else _PACKAGE.parent / folder


def profile_path(name: str, baselines_dir: Path) -> Path:
    """Where a profile of the user's is, or would be written.

    Raises:
        ConfigError: when the name cannot be a file's.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"--hardware {name!r}: a profile is named by up to 100 letters, digits and . _ + -"
        )
    return baselines_dir / f"{name}.yaml"


def find_profile(name: str, baselines_dir: Path) -> Path:
    """The file of a profile: the user's own, else the shipped one.

    Raises:
        ConfigError: when there is none; the message lists the profiles that exist.
    """
    for folder in (baselines_dir, shipped("baselines")):
        path = profile_path(name, folder)
        if path.is_file():
            return path
    known = available_profiles(baselines_dir)
    near = difflib.get_close_matches(name, known, 1)
    raise ConfigError(
        f"--hardware {name}: no {baselines_dir / name}.yaml, and no profile of that name is "
        f"shipped. {f'Did you mean {near[0]}? ' if near else ''}There are: "
        f"{', '.join(known) or 'none'}. To create it from this run, add --update-baselines."
    )


def available_profiles(baselines_dir: Path) -> list[str]:
    """Names of the user's profiles and the shipped ones, sorted."""
    folders = (baselines_dir, shipped("baselines"))
    found = (path for folder in folders for path in folder.glob("*.yaml"))
    return sorted({path.stem for path in found if path.is_file()})


def read_text(path: Path) -> str:
    """Read a baseline file as it is.

    Raises:
        ConfigError: when it cannot be read or is not UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error.reason} at {error.start})") from None


def read_declared(path: Path) -> dict[str, Any]:
    """What a profile declares of a run, by option name: its matrix, and settings it knows.

    The duration is left out: it may differ. The rest of the file is not checked.

    Raises:
        ConfigError: when the file or its matrix cannot be read.
    """
    document = parse(read_text(path), str(path))
    settings = document.data.get("settings")
    if not isinstance(settings, dict):
        problem = "settings with contexts and concurrency are missing"
        raise _missing(document, document.data, ("settings",), problem)
    for name in _AXES:
        _read_axis(document, settings, name)
    return {name: settings[name] for name in _DECLARED if settings.get(name) is not None}


def _missing(
    document: Document, data: dict[str, Any], loc: tuple[str, ...], problem: str
) -> ConfigError:
    """The error for a field that is not there, or there under a name with a slip in it."""
    near = difflib.get_close_matches(loc[-1], map(str, data), 1, cutoff=0.8)
    if loc[-1] in data or not near:
        return document.error(loc, problem)
    return document.error((*loc[:-1], near[0]), f"unknown field; did you mean {loc[-1]}?")


def _read_axis(document: Document, settings: dict[str, Any], name: str) -> None:
    loc = ("settings", name)
    values = settings.get(name)
    if not isinstance(values, list):
        raise _missing(document, settings, loc, f"{name} must be a list such as [8K, 16K]")
    try:
        for value in values:
            parse_tokens(str(value))
    except ValueError as error:
        raise document.error(loc, str(error)) from None
