"""Imports point one way: read from the source, without importing anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "pytest_llmperf"

LAYERS: tuple[set[str], ...] = (
    {"__init__", "model", "stats"},
    {"config", "baseline", "client", "report"},
    {"verdict", "sim", "engines"},
    {"measure"},
    {"server", "progress"},
    {"run"},
    {"plugin", "commands"},
)
"""Lowest first. A room (a subpackage, or a module of the top level) imports from lower layers only.
A new one needs a place here."""

ONLY: dict[str, set[str]] = {
    "model": set(),
    "stats": set(),
    "config": {"model"},
    "report": {
        "__init__",
        "model.errors",
        "model.grid",
        "model.metrics",
        "model.redact",
        "model.result",
    },
    "sim": {"__init__", "baseline", "model.errors", "model.grid", "model.pipe"},
    "verdict": {
        "baseline",
        "model.grid",
        "model.keys",
        "model.limit",
        "model.metrics",
        "model.result",
        "model.settings",
        "model.state",
        "stats",
    },
    "client": {"model.errors", "model.redact", "model.result", "model.settings"},
}
"""Rooms that may use no more than these rooms and modules: pure ones, and those that must stand
alone."""

LIGHT = (
    "plugin",
    "config.options",
    "config.resolve",
    "model.errors",
    "model.grid",
    "model.metrics",
    "model.settings",
    "run.fixture",
    "run.selection",
)
"""Loaded where a test of ours is collected."""

ALWAYS = {
    "__init__",
    "config",
    "config.options",
    "model",
    "model.choices",
    "model.errors",
    "plugin",
}
"""Loaded with every pytest run, ours or not."""

HEAVY = {
    "asyncio",
    "httpx",
    "httptools",
    "jinja2",
    "msgspec",
    "numpy",
    "pydantic",
    "rich",
    "uvicorn",
    "yaml",
}


def _modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "__init__"] = path
    return found


MODULES = _modules()


def _imported(tree: ast.AST) -> Iterator[str]:
    """Full names, ``pytest_llmperf.model.grid.Cell`` for what a from-import takes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _inside(name: str) -> str | None:
    """The module of ours that an imported name is in, or None."""
    head, _, rest = name.partition(".")
    if head != PACKAGE.name:
        return None
    while rest and rest not in MODULES:
        rest = rest.rpartition(".")[0]
    return rest or "__init__"


def _dependencies() -> dict[str, set[str]]:
    return {
        module: {
            inside
            for name in _imported(ast.parse(path.read_text(encoding="utf-8")))
            if (inside := _inside(name)) and inside != module
        }
        for module, path in MODULES.items()
    }


DEPENDENCIES = _dependencies()


def _room(module: str) -> str:
    return module.partition(".")[0]


def _level(room: str) -> int:
    return next((i for i, layer in enumerate(LAYERS) if room in layer), -1)


def test_every_room_has_a_layer() -> None:
    """A new room is placed on purpose; a room that is gone leaves no name behind."""
    assert {_room(module) for module in MODULES} == set().union(*LAYERS)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_down(module: str) -> None:
    """Type annotations included: what is above is not even named."""
    room = _room(module)
    used = {other for other in DEPENDENCIES[module] if _room(other) != room}
    assert not {other for other in used if _level(_room(other)) >= _level(room)}
    if room in ONLY:
        assert not {other for other in used if not {other, _room(other)} & ONLY[room]}


def test_the_simulator_has_one_door() -> None:
    """What it lets out is named in its ``__init__``; its command line is the other way in."""
    outside = [used for module, used in DEPENDENCIES.items() if _room(module) != "sim"]
    inner = {other for other in set().union(*outside) if _room(other) == "sim"}
    assert inner == {"sim", "sim.__main__"}


def test_no_import_circle() -> None:
    """Within a subpackage too, and not by an import inside a function either."""
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path, module])
        if module in done:
            return
        for other in sorted(DEPENDENCIES[module]):
            # a package's __init__ gathers names of its modules: that is no dependency of theirs
            if not module.startswith(f"{other}."):
                visit(other, (*path, module))
        done.add(module)

    for module in sorted(MODULES):
        visit(module, ())


def _loaded(module: str, seen: set[str]) -> Iterator[str]:
    """What importing a module of ours imports from elsewhere."""
    if module in seen:
        return
    seen.add(module)
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    deferred = (ast.FunctionDef, ast.AsyncFunctionDef)
    level = [
        node
        for node in tree.body
        if not isinstance(node, deferred)
        and not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    ]
    for name in _imported(ast.Module([n for n in level if not isinstance(n, ast.ClassDef)], [])):
        inside = _inside(name)
        if inside is None:
            yield name.partition(".")[0]
        else:
            parents = [inside.rpartition(".")[0]] if "." in inside else []
            for needed in [*parents, inside]:
                yield from _loaded(needed, seen)


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_load_nothing_heavy(module: str) -> None:
    """Collecting cells imports nothing heavy: `--collect-only` answers at once."""
    assert not HEAVY & set(_loaded(module, set()))


def test_a_run_without_cells_loads_the_options_only(pytester: pytest.Pytester) -> None:
    """The plugin is in every pytest run of the environment and must cost next to nothing there."""
    pytester.makepyfile(
        """
        import sys

        def test_loaded():
            print("loaded:", *(name for name in sys.modules if name.startswith("pytest_llmperf")))
        """
    )
    run = pytester.runpytest_subprocess("-s")
    run.assert_outcomes(passed=1)
    line = next(line for line in run.outlines if "loaded:" in line)
    names = line.partition("loaded: pytest_llmperf")[2].split(" pytest_llmperf")
    assert {name.lstrip(".") or "__init__" for name in names} == ALWAYS
