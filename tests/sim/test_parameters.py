"""What a simulator spec may say, and what is said of a bad one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import pytest

from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.sim.__main__ import main
from pytest_llmperf.sim.parameters import (
    PARAMETERS,
    Band,
    Fault,
    SimParameters,
    is_spec,
    parse_spec,
)


def test_a_plain_spec_leaves_everything_to_the_profile() -> None:
    assert parse_spec("sim") == SimParameters()
    assert parse_spec("sim:h200nvl_x2") == SimParameters(profile="h200nvl_x2")
    assert parse_spec("sim?speed=0.5") == SimParameters(speed=0.5)


def test_values_are_read_by_their_kind() -> None:
    found = parse_spec(
        "sim:p?speed=0.9&kv_tokens=1M&seed=7&engine=llamacpp&slots=4&unified=0&truth=a%26b.jsonl"
    )
    assert found == SimParameters(
        profile="p",
        speed=0.9,
        kv_tokens=1 << 20,
        seed=7,
        engine="llamacpp",
        slots=4,
        unified=False,
        truth="a&b.jsonl",
    )


def test_slow_bands_hold_the_named_cells_and_not_their_neighbours() -> None:
    found = parse_spec("sim?slow_ctx=32K:0.9&slow_conc=4:0.5,16+:0.9")
    (context,) = found.slow_ctx
    assert context.factor == 0.9
    assert [c in context.band for c in (16384 + 4096, 32768, 32768 + 4096, 65536)] == [
        False, True, True, False,
    ]  # fmt: skip
    four, rest = found.slow_conc
    assert [n in four.band for n in (2, 4, 8)] == [False, True, False]
    assert [n in rest.band for n in (8, 16, 128)] == [False, True, True]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("crash@token:500", Fault("crash", token=500)),
        ("stall:2@time:1.5", Fault("stall", 2.0, time=1.5)),
        ("http:503@request:3-5", Fault("http", 503.0, requests=Band(3, 6))),
        ("error@request:2,token:5", Fault("error", requests=Band(2, 3), token=5)),
        ("truncate@request:2+", Fault("truncate", requests=Band(2))),
        ("hold", Fault("hold")),
        ("buffer:16K", None),
        ("wrong_gauges:2@total:1K", Fault("wrong_gauges", 2.0, total=1024)),
    ],
)
def test_faults_are_read(text: str, fault: Fault | None) -> None:
    if fault is None:
        with pytest.raises(ConfigError, match="fault=buffer:16K"):
            parse_spec(f"sim?fault={text}")
    else:
        assert parse_spec(f"sim?fault={text}&fault=zombie").fault == (fault, Fault("zombie"))


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("sped=1", "no parameter 'sped'; there are acceptance, api_key"),
        ("speed=fast", "speed=fast"),
        ("speed=0", "a number above 0"),
        ("speed=nan", "a number above 0"),
        ("speed=1&speed=2", "given twice"),
        ("kv_tokens=-1", "not a token count"),
        ("kv_tokens=0", "at least 1"),
        ("engine=tgi", "there are vllm and llamacpp"),
        ("unified=yes", "0 or 1"),
        ("slow_ctx=32K", "slow_ctx=32K"),
        ("fault=boom", "no fault 'boom'; there are crash, hang"),
        ("fault=stall", "stall takes a value"),
        ("fault=crash:3", "crash takes no value"),
        ("fault=http:404", "429, 500 or 503"),
        ("fault=no_metrics@request:2", "no_metrics happens at time, total"),
        ("fault=crash@tokens:5", "crash happens at request, time, token, total"),
        ("truth=", "it is empty"),
    ],
)
def test_a_bad_parameter_is_named_with_what_it_takes(query: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_spec(f"sim?{query}")
    assert words in str(caught.value)


def test_what_is_no_simulator_is_refused() -> None:
    assert not is_spec("http://sim:8000")
    assert not is_spec("simulator")
    with pytest.raises(ConfigError, match="no simulator"):
        parse_spec("http://host")


def test_every_field_can_be_said_and_the_help_explains_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {"profile", *PARAMETERS} == {field.name for field in fields(SimParameters)}
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert not [name for name, parameter in PARAMETERS.items() if parameter.text not in shown]


def test_the_key_is_in_no_repr() -> None:
    assert "hush" not in repr(parse_spec("sim?api_key=hush"))


def test_reading_a_spec_imports_nothing_heavy() -> None:
    """The plugin does it on every start."""
    code = (
        "import sys, pytest_llmperf.sim.process; "
        "print([m for m in ('numpy', 'uvicorn', 'pydantic', 'yaml', 'httpx', 'asyncio') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
