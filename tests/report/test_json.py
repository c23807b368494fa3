"""``results.json``: strict, atomic, and described by its published schema."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import jsonschema
import pytest

from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.result import RunResult
from pytest_llmperf.report import json as results
from pytest_llmperf.report.files import write_atomically
from pytest_llmperf.report.publish import publish
from tests.support.results import SECRET, published_run, troubled_run

SCHEMA_FILE = Path(results.__file__).with_name("results.schema.json")


@pytest.mark.parametrize("run", [published_run(), troubled_run()], ids=["green", "troubled"])
def test_a_run_comes_back_as_it_was_but_for_its_secrets(run: RunResult, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.json"
    publish(run, "json", path)
    assert SECRET not in path.read_text(encoding="utf-8")
    back = results.read(path)
    assert back.cells == run.cells
    assert back.model_copy(update={"run_info": {}}) == run.model_copy(update={"run_info": {}})


def test_the_published_schema_is_in_step_with_the_models() -> None:
    """Run ``python -m pytest_llmperf.report.json`` into the file after changing a model."""
    assert SCHEMA_FILE.read_text(encoding="utf-8") == results.schema_text()


def test_results_satisfy_the_published_schema_and_a_stray_field_does_not() -> None:
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    document = json.loads(results.dumps(troubled_run()))
    jsonschema.Draft202012Validator(schema).validate(document)
    document["cells"][0]["speed"] = 1
    with pytest.raises(jsonschema.ValidationError, match="speed"):
        jsonschema.Draft202012Validator(schema).validate(document)


def test_a_number_that_is_none_never_reaches_the_file(tmp_path: Path) -> None:
    """Also one that slipped past validation: the old file stays whole."""
    path = tmp_path / "results.json"
    publish(published_run(), "json", path)
    before = path.read_bytes()
    run = published_run()
    broken = run.settings.model_copy(update={"duration_s": float("nan")})
    with pytest.raises(ValueError, match="JSON"):
        publish(run.model_copy(update={"settings": broken}), "json", path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.json"
    path.write_text("old")

    def fail(self: Path, target: Path) -> None:
        raise OSError("disk gone")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk gone"):
        publish(published_run(), "json", path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_or_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """As /dev/stdout is, which would be gone for everybody."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(path, "text")
        assert os.read(reader, 10) == b"text"
    finally:
        os.close(reader)
    assert path.is_fifo()


def test_a_link_stays_one_and_a_folder_is_an_error(tmp_path: Path) -> None:
    """The file that a link names is replaced; a folder is left alone."""
    (tmp_path / "link").symlink_to("file")
    write_atomically(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text"
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path, "text")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{\n  nonsense", r"line 2: not JSON"),
        ('{"schema_version": NaN}', "NaN, which is no number"),
        ("[]", "not a results file of pytest-llmperf"),
        ('{"results": []}', "no schema_version"),
        ('{"schema_version": 99}', r"schema_version is 99, this release reads 1; read it with"),
        ('{"schema_version": 1, "date": 3}', r"results.json: "),
        ("[" * 100_000, "not a results file"),
    ],
)
def test_a_bad_file_is_one_clear_error(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as error:
        results.read(path)
    assert "results.json" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_bad_field_is_named_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    document = json.loads(results.dumps(published_run()))
    document["cells"][3]["measurement"]["ttft_ms"] = "fast"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"cells\[3\]\.measurement\.ttft_ms: "):
        results.read(path)


def test_a_cell_that_is_none_is_a_bad_field(tmp_path: Path) -> None:
    """Not a traceback later, whose exit status 1 would say that something got slower."""
    path = tmp_path / "results.json"
    document = json.loads(results.dumps(published_run()))
    document["cells"][0]["cell"] = "decode[<b>]"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"cells\[0\]\.cell: .*is not a cell"):
        results.read(path)


def test_a_cell_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    """Two files pasted into one: the last would win in some reports and the first in others."""
    path = tmp_path / "results.json"
    document = json.loads(results.dumps(published_run()))
    document["cells"].append(document["cells"][2])
    path.write_text(json.dumps(document), encoding="utf-8")
    name = re.escape(document["cells"][2]["cell"])
    with pytest.raises(ConfigError, match=rf"cells: .*{name} is there twice"):
        results.read(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*gone\.json: No such file"):
        results.read(tmp_path / "gone.json")
