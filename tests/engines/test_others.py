"""The engines known from recorded shapes, and the endpoint of which nothing is known."""

from __future__ import annotations

import pytest

from pytest_llmperf.engines.cards import Card
from pytest_llmperf.engines.generic import Generic
from pytest_llmperf.engines.lmstudio import LmStudio
from pytest_llmperf.engines.ollama import Ollama
from pytest_llmperf.engines.tensorrt_llm import TensorRtLlm
from pytest_llmperf.engines.tgi import Tgi
from pytest_llmperf.engines.transformers_serve import TransformersServe
from tests.engines.fake import describe, make, run

TRT_JSON = (
    '[{"gpuMemUsage":2000000000,"iterLatencyMS":7,"numActiveRequests":1,'
    '"kvCacheStats":{"usedNumBlocks":4,"maxNumBlocks":10,"cacheHitRate":0.2}}]'
)


def test_tgi_tells_its_limits() -> None:
    told = (
        '{"model_id":"m","model_dtype":"torch.bfloat16","max_concurrent_requests":128,'
        '"max_input_length":4096,"max_total_tokens":8192,"waiting_served_ratio":1.2,'
        '"max_batch_prefill_tokens":4096,"max_batch_total_tokens":16384,"version":"2.0.4"}'
    )
    info = describe(Tgi, {"/info": told})
    assert (info.version, info.max_model_len, info.max_num_seqs) == ("2.0.4", 8192, 128)
    assert info.kv_tokens == 16_384


def test_tgi_without_a_batch_limit_has_the_limit_of_its_queue() -> None:
    told = {"max_batch_size": None, "max_concurrent_requests": 64, "max_input_tokens": 4095}
    assert describe(Tgi, {"/info": told}).max_num_seqs == 64


def test_tgi_gauges_and_counts() -> None:
    metrics = "tgi_batch_current_size 4\ntgi_queue_size 7\ntgi_request_generated_tokens_sum 8123\n"
    engine = make(
        Tgi,
        {
            "/metrics": metrics,
            "POST /tokenize": '[{"id":1},{"id":2}]',
            "POST /chat_tokenize": {"tokenize_response": [{"id": 1}] * 5, "templated_text": "x"},
        },
    )
    gauges = run(engine.gauges())
    assert gauges is not None
    # its sum moves when a request ends: no rate of a window
    assert (gauges.running, gauges.waiting, gauges.generated_tokens) == (4, 7, None)
    assert run(engine.count_tokens("a b")) == 2
    assert run(engine.count_tokens([{"role": "user", "content": "a"}])) == 5


def test_tensorrt_llm_iterations_in_json() -> None:
    engine = make(TensorRtLlm, {"/metrics": TRT_JSON, "/version": {"version": "1.1.0"}})
    info, gauges = run(engine.describe()), run(engine.gauges())
    assert info.version == "1.1.0"
    assert info.kv_tokens is None
    assert gauges is not None
    assert (gauges.running, gauges.waiting, gauges.kv_use) == (1, None, 0.4)


def test_tensorrt_llm_budget_needs_the_block_size_too() -> None:
    told = TRT_JSON.replace('"maxNumBlocks":10', '"maxNumBlocks":1000,"tokensPerBlock":32')
    assert describe(TensorRtLlm, {"/metrics": told}).kv_tokens == 32_000


def test_tensorrt_llm_prometheus_text_elsewhere_is_found() -> None:
    """Iterations are listed once: an empty list is no load, not no server."""
    text = "trtllm_num_requests_running 3\ntrtllm_kv_cache_utilization 0.62\n"
    engine = make(TensorRtLlm, {"/metrics": "[]", "/prometheus/metrics": text})
    run(engine.describe())
    gauges = run(engine.gauges())
    assert gauges is not None
    assert (gauges.running, gauges.kv_use) == (3, 0.62)


def test_tensorrt_llm_without_a_new_iteration_has_no_gauges_now() -> None:
    engine = make(TensorRtLlm, {"/metrics": [TRT_JSON, "[]", TRT_JSON]})
    run(engine.describe())
    assert run(engine.gauges()) is None
    assert run(engine.gauges()) is not None


def test_ollama_tells_the_context_of_a_loaded_model() -> None:
    answers = {
        "/api/version": {"version": "0.12.3"},
        "/api/ps": {
            "models": [
                {"name": "other", "context_length": 1},
                {
                    "name": "qwen3:8b",
                    "context_length": 4096,
                    "details": {"quantization_level": "Q4_K_M"},
                },
            ]
        },
    }
    info = describe(Ollama, answers, Card("qwen3:8b"))
    assert (info.version, info.max_model_len, info.quantization) == ("0.12.3", 4096, "Q4_K_M")
    assert info.kv_tokens is None
    assert not any("not loaded" in note for note in info.notes)
    assert any("not loaded" in note for note in describe(Ollama, answers, Card("x")).notes)


LM_STUDIO = (
    '{"object":"list","data":[{"id":"qwen3-8b","object":"model","type":"llm","quantization":'
    '"Q4_K_M","state":"loaded","max_context_length":131072,"loaded_context_length":8192},'
    '{"id":"gemma-3-4b","state":"not-loaded","max_context_length":32768}]}'
)


def test_lm_studio_tells_the_loaded_context_not_the_largest() -> None:
    info = describe(LmStudio, {"/api/v0/models": LM_STUDIO}, Card("qwen3-8b"))
    assert (info.max_model_len, info.quantization) == (8192, "Q4_K_M")


def test_lm_studio_model_that_is_not_loaded_has_no_context_yet() -> None:
    info = describe(LmStudio, {"/api/v0/models": LM_STUDIO}, Card("gemma-3-4b"))
    assert info.max_model_len is None
    assert "not loaded" in info.notes[-1]


@pytest.mark.parametrize("kind", [Generic, TransformersServe, Ollama, LmStudio])
def test_an_engine_without_metrics_is_never_asked_for_them(kind: type[Generic]) -> None:
    engine = make(kind, {"/metrics": "vllm:num_requests_running 3\n"})
    run(engine.describe())
    assert run(engine.gauges()) is None
    assert run(engine.count_tokens("x")) is None
    assert "/metrics" not in engine.api.asked


def test_a_plain_endpoint_says_what_its_card_says() -> None:
    info = describe(Generic, {}, Card("gpt", max_model_len=32_768))
    assert (info.engine, info.model, info.max_model_len) == ("openai", "gpt", 32_768)
    assert "no metrics" in info.notes[0]
