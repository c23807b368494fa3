"""Whether a server may be compared with a baseline."""

from typing import Any

import pytest

from pytest_llmperf.baseline.file import load, loads
from pytest_llmperf.baseline.match import Matching, compare
from pytest_llmperf.baseline.profiles import shipped
from pytest_llmperf.baseline.schema import Baseline
from pytest_llmperf.engines.generic import Generic
from pytest_llmperf.model.result import RunSettings, ServerInfo
from tests.baseline.samples import SMALL

BASELINE = loads(
    SMALL.replace(
        "max_tokens: 256,",
        "max_tokens: 256, method: 1, endpoint: chat, prompts: shared, sampling: t1, "
        'extra_body: "", text_hash: abc,',
    ),
    "x",
)
SETTINGS = RunSettings(
    duration_s=5, max_tokens=256, method=1, endpoint="chat", prompts="shared", sampling="t1",
    text_hash="abc", capacity="try", contexts=[1], concurrency=[1], prefill_contexts=[],
)  # fmt: skip
FACTS = {"gpu": "NVIDIA H200 NVL", "gpu_count": "2"}


def judge(
    baseline: Baseline = BASELINE, facts: Any = FACTS, settings: Any = None, **server: Any
) -> Matching:
    info = ServerInfo.model_validate({"engine": "vllm", "model": "m", **server})
    return compare(baseline, info, SETTINGS.model_copy(update=settings or {}), facts)


def fields(facts: Any) -> set[str]:
    return {fact.field for fact in facts}


def test_all_agrees_though_duration_capacity_mode_and_grid_differ() -> None:
    assert judge() == Matching((), ())
    assert judge().describe_unverified() == ""


@pytest.mark.parametrize(
    "server",
    [
        {"model": "m"},
        {"model": "org/model"},
        {"model": "alias", "model_root": "org/model"},
        {"model": "m", "model_root": "/models/copy"},
    ],
)
def test_a_model_agrees_by_root_id_or_served_name(server: dict[str, str]) -> None:
    assert not judge(**server).mismatches


def test_other_models_of_the_server_do_not_count() -> None:
    """A router serves many; the requests go to one."""
    matching = judge(model="other", models=["m", "other"])
    assert [str(fact) for fact in matching.mismatches] == [
        "model: baseline org/model or m, here other"
    ]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"max_tokens": 4096}, "max_tokens"),
        ({"method": 2}, "method"),
        ({"endpoint": "completions"}, "endpoint"),
        ({"prompts": "distinct"}, "prompts"),
        ({"sampling": "t0"}, "sampling"),
        ({"text_hash": "def"}, "text_hash"),
        ({"extra_body": '{"a": 1}'}, "extra_body"),
    ],
)
def test_settings_that_must_agree(settings: dict[str, Any], field: str) -> None:
    assert fields(judge(settings=settings).mismatches) == {field}


def test_engine_and_hardware_must_agree() -> None:
    matching = judge(facts={"gpu": "H100", "gpu_count": 4}, engine="sglang")
    assert fields(matching.mismatches) == {"gpu", "gpu_count", "engine"}
    text = matching.explain("lab")
    assert "gpu: baseline H200 NVL, here H100" in text
    assert "gpu_count: baseline 2, here 4" in text
    assert "--llm-allow-mismatch" in text


def test_what_cannot_be_seen_is_unverified() -> None:
    """A GPU over HTTP, and an engine behind a plain proxy."""
    matching = judge(facts={}, engine=Generic.name)
    assert not matching.mismatches
    assert fields(matching.unverified) == {"gpu", "gpu_count", "engine"}
    assert matching.describe_unverified() == (
        "GPU, number of GPUs, engine (not seen; --llm-run-info tells it)"
    )
    assert fields(judge(facts={"engine": "sglang"}, engine=Generic.name).mismatches) == {"engine"}


def test_what_the_baseline_does_not_know_is_unverified_and_shown() -> None:
    """The shipped profiles were made by another tool: its sampling and text are not known."""
    baseline = load(shipped("baselines") / "rtxpro6k_x4.yaml")
    matching = judge(baseline, {}, {"max_tokens": 4096}, model="deepseek")
    assert not matching.mismatches
    settings = {"endpoint", "sampling", "extra_body", "text_hash"}
    assert fields(matching.unverified) == {"gpu", "gpu_count", *settings}
    assert "text_hash: baseline unknown, here abc" in map(str, matching.unverified)
    assert matching.describe_unverified() == (
        "GPU, number of GPUs (not seen; --llm-run-info tells it); "
        "endpoint, sampling, extra body, reference text (not in the baseline)"
    )


def test_what_the_baseline_does_not_ask_for_is_not_mentioned() -> None:
    bare = BASELINE.model_copy(update={"match": BASELINE.match.model_copy(update={"gpu": None})})
    assert judge(bare, {"gpu": "H100", "gpu_count": 2}) == Matching((), (), vouched=False)


def of_cpu(cpu: str) -> Baseline:
    wanted = {"gpu": None, "gpu_count": None, "cpu": cpu}
    return BASELINE.model_copy(update={"match": BASELINE.match.model_copy(update=wanted)})


def test_a_host_without_a_gpu_is_told_by_its_cpu() -> None:
    """The commonest mistake: a laptop's baseline, committed, in CI."""
    laptop = of_cpu("Core i7, 8 cores")
    assert judge(laptop, {"cpu": "Core i7, 8 cores"}) == Matching((), ())
    runner = judge(laptop, {"cpu": "AMD EPYC, 4 cores"})
    assert "cpu: baseline Core i7, 8 cores, here AMD EPYC, 4 cores" in runner.explain("laptop")
    assert "CPU (not seen" in judge(laptop, {}).describe_unverified()


@pytest.mark.parametrize(
    ("baseline", "facts", "vouched"),
    [
        (BASELINE, FACTS, True),
        (BASELINE, {}, False),
        (BASELINE, {"gpu_count": "2"}, False),
        (of_cpu("Core i7, 8 cores"), {"cpu": "Core i7, 8 cores"}, True),
        (of_cpu("Core i7, 8 cores"), {"gpu": "H100"}, False),
    ],
)
def test_what_vouches_for_the_hardware(baseline: Baseline, facts: Any, vouched: bool) -> None:
    """A number of GPUs alone does not: most hosts have one."""
    assert judge(baseline, facts).vouched is vouched


@pytest.mark.parametrize(("plays", "differing"), [("other", {"simulated machine"}), ("x", set())])
def test_another_simulated_machine_is_refused(plays: str, differing: set[str]) -> None:
    """The simulator has no GPU to be seen, but says whose profile it plays. A baseline that was
    itself simulated has no name that it could be."""
    real = BASELINE.model_copy(
        update={"hardware": BASELINE.hardware.model_copy(update={"profile": "x"})}
    )
    assert fields(judge(real, plays=plays).mismatches) == differing
    assert not judge(real.model_copy(update={"simulated": True}), plays=plays).mismatches
