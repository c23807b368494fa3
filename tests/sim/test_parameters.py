"""What a simulator spec may say, and what is said of a bad one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import pytest

from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.sim.__main__ import main
from pytest_llmperf.sim.faults import Fault
from pytest_llmperf.sim.noise import Drift, IdleFall, SlowStart, Throttle
from pytest_llmperf.sim.parameters import (
    PARAMETERS,
    SimParameters,
    is_spec,
    parse_spec,
    with_start,
)
from pytest_llmperf.sim.values import Band, InBand


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
    assert context.value == 0.9
    assert [c in context.band for c in (16384 + 4096, 32768, 32768 + 4096, 65536)] == [
        False, True, True, False,
    ]  # fmt: skip
    four, rest = found.slow_conc
    assert [n in four.band for n in (2, 4, 8)] == [False, True, False]
    assert [n in rest.band for n in (8, 16, 128)] == [False, True, True]


def test_noise_is_read_by_its_kind() -> None:
    found = parse_spec(
        "sim?noise_run=0.02&noise_conc=1:0.1,4+:0.01&noise_cell=0.03&noise_tails=t3"
        "&slow_start=0.1:0.04&drift=0.02:600&idle_fall=0.4:90:30&throttle=0.1:0.2:5"
    )
    assert (found.noise_run, found.noise_tails) == (0.02, "t3")
    assert [s.value for s in found.noise_conc] == [0.1, 0.01]
    assert found.noise_cell == (InBand(Band(0), 0.03),)
    assert found.slow_start == SlowStart(share=0.1, fraction=0.04)
    assert found.drift == Drift(spread=0.02, seconds=600)
    assert found.idle_fall == IdleFall(fraction=0.4, idle=90, seconds=30)
    assert found.throttle == Throttle(share=0.1, fraction=0.2, seconds=5)


def test_a_further_start_is_counted_from_the_one_that_the_spec_names() -> None:
    """Another draw of the same session; the rest of the spec stays."""
    spec = "sim:h200nvl_x2?noise=0.02&seed=7&slow_conc=16+:0.9"
    assert with_start(spec, 1) == spec
    second = parse_spec(with_start(spec, 2))
    assert (second.seed, second.start, second.noise) == (7, 2, 0.02)
    assert second.slow_conc == parse_spec(spec).slow_conc
    assert parse_spec(with_start("sim", 3)).start == 3
    assert parse_spec(with_start("sim?start=10&speed=2", 3)).start == 12


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
        ("sped=1", "no parameter 'sped'; there are acceptance, acceptance_spread, api_key"),
        ("speed=fast", "speed=fast"),
        ("speed=0", "a number above 0"),
        ("speed=nan", "a number above 0"),
        ("speed=1&speed=2", "given twice"),
        ("kv_tokens=-1", "not a token count"),
        ("kv_tokens=0", "at least 1"),
        ("engine=tgi", "there are vllm and llamacpp"),
        ("unified=yes", "0 or 1"),
        ("slow_ctx=32K", "slow_ctx=32K"),
        ("noise_tails=cauchy", "there are normal and t3"),
        ("slow_start=0.1", "SHARE:FRACTION is wanted"),
        ("slow_start=1.5:0.1", "between 0 and 1"),
        ("idle_fall=0.4:0:30", "a number above 0"),
        ("start=0", "at least 1"),
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
