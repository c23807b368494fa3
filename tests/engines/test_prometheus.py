"""Metrics text: labels as they are, ranks summed, bad lines and bad bodies harmless."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from pytest_llmperf.engines.prometheus import MAX_LINE, MAX_SAMPLES, parse
from tests.engines.fake import capture

VLLM = ("vllm:",)


def test_labels_with_quotes_commas_and_braces_are_read() -> None:
    """Escaped quotes and braces inside a label value, and an exponent."""
    text = (
        'vllm:prompt_tokens_by_source_total{engine="0",model_name="deepseek \\"beast } one",'
        'source="local_compute"} 1.2e4\n'
        'vllm:vllm_config_info{additional_config="{}",attention_config="AttentionConfig('
        'backend=None, flash_attn_version=None)",cache_config_block_size="8576"} 1.0\n'
    )
    scrape = parse(text, VLLM)
    assert scrape.total("vllm:prompt_tokens_by_source_total") == 12_000
    assert scrape.labels("vllm:vllm_config_info")[0]["cache_config_block_size"] == "8576"
    assert scrape.labels("vllm:vllm_config_info")[0]["attention_config"].startswith("Attention")


def test_ranks_are_summed_and_the_fullest_is_the_peak() -> None:
    """A timestamped sample counts, NaN does not."""
    text = (
        'vllm:kv_cache_usage_perc{engine="0"} 0.45\n'
        'vllm:kv_cache_usage_perc{engine="1",model_name="my model"} 0.5 1234\n'
        'vllm:kv_cache_usage_perc{engine="2"} NaN\n'
    )
    scrape = parse(text, VLLM)
    assert scrape.peak("vllm:kv_cache_usage_perc") == 0.5
    assert scrape.total("vllm:kv_cache_usage_perc") == pytest.approx(0.95)


@pytest.mark.parametrize("label", ["pid", "tp_rank", "pp_rank"])
def test_e13_one_rank_seen_by_two_processes_counts_once(label: str) -> None:
    text = f'vllm:r{{engine="0",{label}="1"}} 5\nvllm:r{{engine="0",{label}="2"}} 4\n'
    assert parse(text + 'vllm:r{engine="1"} 2\n', VLLM).total("vllm:r") == 7


def test_a_total_is_not_summed_with_its_parts_by_priority() -> None:
    text = 'vllm:q{priority=""} 3\nvllm:q{priority="1"} 2\nvllm:q{priority="2"} 1\n'
    assert parse(text, VLLM).total("vllm:q") == 3


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "None", ""])
def test_a_value_that_counts_nothing_is_unknown_not_zero(value: str) -> None:
    assert parse(f"vllm:r {value}\n", VLLM).count("vllm:r") is None


def test_bad_lines_do_not_hide_good_ones() -> None:
    text = 'vllm:a{b="\nvllm:a 1\nvllm:a{{{{ 2\r\nvllm:b 3\r\n'
    scrape = parse(text, VLLM)
    assert (scrape.total("vllm:a"), scrape.total("vllm:b")) == (1, 3)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "<html>502 Bad Gateway</html>",
        '{"error": "x"}',
        "Service Unavailable",
        "\0\xff",
        "a b c",
    ],
)
def test_e11_a_body_that_is_no_metrics_is_an_empty_scrape(body: str) -> None:
    assert not parse(body, ("vllm:", "process_start_time_seconds")).samples


def test_a_real_scrape_of_a_real_server() -> None:
    scrape = parse(capture("vllm/get_metrics_during.txt")[1], VLLM)
    assert scrape.count("vllm:num_requests_running") == 8
    assert scrape.count("vllm:num_requests_waiting") == 4
    assert scrape.total("vllm:generation_tokens_created") is None


@given(st.text(alphabet='vllm:a{b="\\",=} \n#1.5eNI\r\t\0é', max_size=400))
@settings(max_examples=300, deadline=None)
def test_no_text_crashes_the_reader(text: str) -> None:
    for line in ("", "vllm:", "vllm:a{"):
        scrape = parse(line + text, VLLM)
        for name in scrape.samples:
            value = scrape.total(name)
            assert value is None or value >= 0


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_no_bytes_crash_the_reader(data: bytes) -> None:
    scrape = parse("vllm:" + data.decode("utf-8", "replace"), VLLM)
    assert all(name.startswith("vllm:") for name in scrape.samples)


@given(st.text(max_size=40), st.floats(0, 1e12))
def test_what_the_real_writer_writes_is_read_back(label: str, value: float) -> None:
    registry = CollectorRegistry()
    Gauge("vllm:g", "d", ["model_name"], registry=registry).labels(label).set(value)
    scrape = parse(generate_latest(registry).decode(), VLLM)
    assert scrape.total("vllm:g") == value
    assert scrape.labels("vllm:g") == [{"model_name": label}]


@pytest.mark.parametrize(
    "text",
    [
        "vllm:a 1\n" * (3 * MAX_SAMPLES),
        "vllm:a{" + ",".join(f'l{i}="x"' for i in range(20_000)) + "} 1",
        'vllm:a{b="' + '\\"' * 200_000 + '"} 1',
        ("vllm:a{" + "b={" * 15_000 + "\n") * 20,
        ('vllm:a{b="' + '\\"' * 8_000 + '"} 1\n') * 1_000,
    ],
    ids=["many samples", "many labels", "a long line", "braces", "many long lines"],
)
def test_a_hostile_page_costs_bounded_time(text: str) -> None:
    """Far below the interval between two scrapes of a slow machine."""
    began = time.process_time()
    scrape = parse(text, VLLM)
    assert time.process_time() - began < 5
    assert sum(len(samples) for samples in scrape.samples.values()) <= MAX_SAMPLES


def test_ranks_that_add_up_to_more_than_a_float_holds_are_no_number() -> None:
    page = 'vllm:a{engine="0"} 1e308\nvllm:a{engine="1"} 1e308\nvllm:b 3\n'
    scrape = parse(page, VLLM)
    assert (scrape.total("vllm:a"), scrape.count("vllm:a"), scrape.count("vllm:b")) == (
        None,
        None,
        3,
    )


def test_a_line_longer_than_the_limit_is_left_out() -> None:
    long = 'vllm:a{b="' + "x" * MAX_LINE + '"} 1\n'
    assert parse(long + "vllm:b 2\n", VLLM).samples.keys() == {"vllm:b"}
