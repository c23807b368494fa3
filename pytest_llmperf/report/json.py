"""``results.json``: a run as strict JSON, its reader, and its published schema.

``python -m pytest_llmperf.report.json`` prints the schema that ``results.schema.json`` holds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.redact import redact_all
from pytest_llmperf.model.result import SCHEMA, RunResult


def dumps(run: RunResult) -> str:
    """Write a run as JSON, free of secrets.

    Raises:
        ValueError: when a number is NaN or infinite; no report may hold one.
    """
    document = redact_all(run.model_dump(mode="json"))
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read(path: Path) -> RunResult:
    """Read a results file.

    Raises:
        ConfigError: when it is missing, not strict JSON, of another schema version, or not a run.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}, line {error.lineno}: not JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not a results file: {error}") from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version is None:
        raise ConfigError(f"{path}: not a results file of pytest-llmperf: no schema_version")
    if version != SCHEMA:
        raise ConfigError(
            f"{path}: schema_version is {version}, this release reads {SCHEMA}; "
            "read it with the release that wrote it"
        )
    try:
        return RunResult.model_validate_json(json.dumps(document))
    except ValidationError as error:
        raise ConfigError(f"{path}: {_explain(error.errors()[0])}") from error


def schema() -> dict[str, Any]:
    """Return the JSON Schema of ``results.json``, generated from the models."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **RunResult.model_json_schema(mode="serialization"),
        "title": f"pytest-llmperf results, version {SCHEMA}",
    }


def schema_text() -> str:
    """Return the schema as ``results.schema.json`` holds it."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def _refuse(constant: str) -> float:
    raise ValueError(f"it holds {constant}, which is no number")


def _explain(error: ErrorDetails) -> str:
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"])
    return f"{where.lstrip('.')}: {error['msg']}"


if __name__ == "__main__":
    print(schema_text(), end="")
