"""What of a run goes into its profile, and what never does."""

from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.baseline.file import Loaded, loads
from pytest_llmperf.baseline.update import Decision, Plan, apply, plan
from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import (
    Capacity,
    CellRecord,
    Comparison,
    Measurement,
    Notice,
    Outcome,
    RunResult,
    RunSettings,
    ServerInfo,
    Status,
)
from tests.baseline.samples import SMALL

LAB = Loaded(Path("lab.yaml"), SMALL, loads(SMALL, "x"))
DATE = "2026-11-30T18:21:59+00:00"
RUN_ID = "2026-11-30T182159"


def measured(cell_id: str, status: Status = Status.VALID, **values: Any) -> Measurement:
    cell = Cell.parse(cell_id)
    return Measurement(
        phase=cell.phase, context=cell.context, concurrency=cell.concurrency,
        status=status, started=DATE, method=1, **values,
    )  # fmt: skip


def record(
    cell_id: str, verdict: str | None = None, status: Status = Status.VALID, **values: Any
) -> CellRecord:
    comparison = {"metric": "total_tok_s", "baseline": 1, "measured": 1, "delta": 0,
                  "tolerance": 0.1, "gated": True, "verdict": verdict}  # fmt: skip
    return CellRecord(
        cell=cell_id,
        outcome=Outcome.PASS,
        measurement=measured(cell_id, status, **values),
        comparisons=[Comparison.model_validate(comparison)] if verdict else [],
    )


def over(cell_id: str, needs: int, budget: int | None) -> CellRecord:
    capacity = Capacity(needs=needs, budget=budget, reason="too much")
    return record(cell_id, status=Status.OVER_CAPACITY, capacity=capacity)


def run(*records: CellRecord, **changes: Any) -> RunResult:
    settings = RunSettings(
        duration_s=5, max_tokens=256, method=1, endpoint="chat", prompts="shared", sampling="t1",
        text_hash="abc", capacity="reserved", contexts=[1000, 8192], concurrency=[1, 16],
        prefill_contexts=[8192],
    )  # fmt: skip
    server = ServerInfo(engine="vllm", version="0.12", model="m", kv_tokens=0)
    base = RunResult(
        llmperf_version="1.0", date=DATE, profile="lab", server=server, settings=settings,
        cells=list(records),
    )  # fmt: skip
    return base.model_copy(update=changes)


def again(made: Plan) -> Loaded:
    return Loaded(Path("lab.yaml"), made.after, loads(made.after, "x"))


def decision(made: Plan) -> tuple[str, str]:
    assert len(made.decisions) == 1
    return made.decisions[0].action, made.decisions[0].why


C1 = "decode[8K-c1]"
FAST = {"total_tok_s": 200.0, "itl_ms": 5.0}


@pytest.mark.parametrize(
    ("mode", "verdict", "taken"),
    [
        ("moved", "ok", False), ("moved", "observed", False), ("moved", "better", True),
        ("all", "ok", True), ("all", "better", True), ("add", "ok", True),
        ("new", "better", False), ("better", "better", True), ("better", "ok", False),
    ],
)  # fmt: skip
def test_modes_on_a_cell_the_baseline_has(mode: Any, verdict: str, taken: bool) -> None:
    made = plan(LAB, run(record(C1, verdict, **FAST)), mode=mode)
    assert made.accepted == ({C1} if taken else set())
    assert made.changed == taken


def moved_by(cell_id: str, delta: float, tolerance: float, metric: str) -> CellRecord:
    """A cell whose metric moved so far; more is better."""
    inside = abs(delta) <= tolerance
    verdict = "ok" if inside else "worse" if delta < 0 else "better"
    one = record(cell_id, verdict, **{metric: 100 * (1 + delta)})
    figures = {"metric": metric, "baseline": 100.0, "measured": 100 * (1 + delta), "delta": delta,
               "tolerance": tolerance}  # fmt: skip
    comparison = one.comparisons[0].model_copy(update=figures)
    return one.model_copy(update={"comparisons": [comparison]})


@pytest.mark.parametrize(
    ("certain", "delta", "metric", "taken"),
    [
        (-0.15, -0.13, "total_tok_s", True),
        (-0.15, -0.06, "total_tok_s", False),
        (-0.15, 0.13, "total_tok_s", False),
        (0.15, 0.08, "total_tok_s", True),
        (-0.02, -0.13, "total_tok_s", False),
        (-0.15, -0.13, "steps_s", False),
    ],
)
def test_a_noisy_cell_does_not_stay_behind_when_the_others_moved(
    certain: float, delta: float, metric: str, taken: bool
) -> None:
    """Within its own tolerance of 14 %, but by more than half of it, the way that another cell
    moved for certain; in the mode ``moved`` only, and never where no cell moved."""
    moving = run(
        moved_by("decode[8K-c16]", certain, 0.05, "total_tok_s"),
        moved_by(C1, delta, 0.14, metric),
    )
    old = again(plan(None, run(record(C1, **FAST), record("decode[8K-c16]", **FAST))))
    made = plan(old, moving, reason="new kernel")
    assert (C1 in made.accepted) == taken
    assert ("moved as others did" in {d.why for d in made.decisions}) == taken
    assert C1 not in plan(old, moving, mode="better", reason="x").accepted
    assert C1 not in plan(old, moving).accepted or certain > 0


def test_a_new_level_speaks_for_itself_and_old_runs_for_the_noise() -> None:
    """Nothing that told how far runs differ is thrown away."""
    made = loads(plan(LAB, run(record(C1, "better", **FAST))).after, "x").cells[C1]
    assert made.runs == ["first", "second", RUN_ID]
    assert made.levels == [RUN_ID]
    assert made.values("total_tok_s") == [200.0]
    assert [level for _, _, level in made.history("total_tok_s")] == [0, 0, 1]


def test_a_run_added_later_does_not_shift_the_level() -> None:
    """Five runs speak for it, and stay; of those beyond ten the oldest others go."""
    old = LAB
    for n in range(12):
        later = run(record(C1, "ok", total_tok_s=100.0 + n), date=f"2026-12-{n + 1:02}T00:00:00")
        old = again(plan(old, later, mode="add"))
    cell = old.baseline.cells[C1]
    assert cell.total_tok_s == [153.7, 150.25, 100.0, 101.0, 102.0, *(107.0 + n for n in range(5))]
    assert cell.values("total_tok_s") == [153.7, 150.25, 100.0, 101.0, 102.0]
    assert set(old.baseline.runs) == {"first", *cell.runs}


def test_of_two_levels_the_newer_keeps_its_runs() -> None:
    """Ten in all: the five that speak, the newest, and what is left of the level before."""
    old = LAB
    for n, mode in enumerate(["add"] * 5 + ["all"] + ["add"] * 6):
        later = run(record(C1, "ok", total_tok_s=100.0 + n), date=f"2026-12-{n + 1:02}T00:00:00")
        old = again(plan(old, later, mode=mode))
    cell = old.baseline.cells[C1]
    assert cell.total_tok_s == [102.0 + n for n in range(10)]
    assert cell.values("total_tok_s") == [105.0 + n for n in range(5)]


@pytest.mark.parametrize("mode", ["add", "all"])
def test_cells_that_are_worse_together_are_not_added_unseen(mode: Any) -> None:
    """Though none is by itself: the ratchet of 1 % a release."""
    slow = run(record(C1, "ok", total_tok_s=149.0)).model_copy(
        update={"matrix": "The cells together are worse than their baseline:"}
    )
    with pytest.raises(ConfigError, match="together are worse"):
        plan(LAB, slow, mode=mode)
    assert plan(LAB, slow, mode=mode, reason="new kernel").changed


@pytest.mark.parametrize(
    ("state", "gone"),
    [
        ({"ttft_warm": False}, {"ttft_ms"}),
        ({"warnings": [Notice(code="buffered", text="x")]}, {"ttft_ms", "itl_ms"}),
        ({"warnings": [Notice(code="metrics-late", text="x")]}, {"steps_s"}),
    ],
)
def test_a_value_of_another_state_is_never_stored(state: dict[str, Any], gone: set[str]) -> None:
    """TTFT of a cold prompt beside those of warm ones, ITL of a buffered stream."""
    figures = {"total_tok_s": 200.0, "itl_ms": 5.0, "ttft_ms": 90.0, "steps_s": 50.0}
    made = plan(None, run(record("decode[1000-c1]", **figures, **state)))
    cell = loads(made.after, "x").cells["decode[1000-c1]"]
    assert {name for name, _ in cell.lists()} == set(figures) - gone


@pytest.mark.parametrize(
    ("mode", "taken"),
    [("moved", True), ("all", True), ("add", True), ("new", True), ("better", False)],
)
def test_modes_on_a_cell_the_baseline_has_not(mode: Any, taken: bool) -> None:
    made = plan(LAB, run(record("decode[1000-c1]", **FAST)), mode=mode)
    assert made.changed == taken


@pytest.mark.parametrize("mode", ["moved", "all", "add"])
def test_worse_needs_a_reason_which_is_kept_with_the_run(mode: Any) -> None:
    slow = run(record(C1, "worse", total_tok_s=100.0))
    refused = plan(LAB, slow, mode=mode)
    assert decision(refused)[0] == "refused"
    assert "--llm-update-reason" in decision(refused)[1]
    assert not refused.changed
    made = plan(LAB, slow, mode=mode, reason="new kernel, token=abc123secret")
    assert made.accepted == {C1}
    note = loads(made.after, "x").runs[RUN_ID].note
    assert note == "accepted: new kernel, token=<redacted>"


def test_better_with_one_metric_worse_is_no_improvement() -> None:
    mixed = record(C1, "better", **FAST)
    worse = mixed.comparisons[0].model_copy(update={"verdict": "worse"})
    mixed = mixed.model_copy(update={"comparisons": [*mixed.comparisons, worse]})
    assert not plan(LAB, run(mixed), mode="better", reason="x").changed
    assert decision(plan(LAB, run(mixed), mode="moved"))[0] == "refused"


def test_cells_not_accepted_stay_byte_for_byte() -> None:
    made = plan(LAB, run(record(C1, "better", **FAST)))
    changed = [line for line in made.diff("lab.yaml").splitlines() if line[0] in "+-"]
    assert changed == [
        "--- a/lab.yaml",
        "+++ b/lab.yaml",
        f"+  {RUN_ID}:",
        f'+    date: "{DATE}"',
        "+    engine: vllm",
        '+    engine_version: "0.12"',
        "+    served_model: m",
        "+    bench: pytest-llmperf 1.0",
        "-    runs: [first, second]",
        "-    total_tok_s: [153.7, 150.25]",
        "-    itl_ms: [6.3, null]",
        f"+    runs: [first, second, {RUN_ID}]",
        f"+    levels: [{RUN_ID}]",
        "+    total_tok_s: [153.7, 150.25, 200.0]",
        "+    itl_ms: [6.3, null, 5.0]",
    ]


@pytest.mark.parametrize("mode", ["moved", "all", "new", "better", "add"])
def test_the_same_update_twice_writes_nothing_the_second_time(mode: Any) -> None:
    """Though the record still says how it compared with the baseline before."""
    records = run(
        record(C1, "better", **FAST),
        record("prefill[8K]", "worse", prefill_tok_s=17000.123456, ttft_ms=480.0),
        record("decode[1000-c16]", total_tok_s=1234567.8),
        over("decode[8K-c16]", 135168, 100000),
    )
    once = plan(LAB, records, mode=mode, reason="known")
    assert once.changed
    twice = plan(again(once), records, mode=mode, reason="known")
    assert not twice.changed
    assert twice.after == once.after
    assert twice.diff("lab.yaml") == ""


def test_a_run_within_its_noise_writes_nothing_at_all() -> None:
    made = plan(LAB, run(record(C1, "ok", **FAST), record("prefill[8K]", prefill_tok_s=18500)))
    assert not made.changed
    assert made.after == SMALL


def test_add_puts_the_run_behind_the_others() -> None:
    added = plan(LAB, run(record(C1, "ok", total_tok_s=151.0, steps_s=50.0)), mode="add")
    cell = loads(added.after, "x").cells[C1]
    assert cell.runs == ["first", "second", RUN_ID]
    assert cell.total_tok_s == [153.7, 150.25, 151.0]
    assert cell.itl_ms == [6.3, None, None]
    assert cell.steps_s == [None, None, 50.0]


def test_two_runs_of_one_second_are_two_runs() -> None:
    first = plan(LAB, run(record(C1, "ok", total_tok_s=151.0)), mode="add")
    other = run(record(C1, "ok", total_tok_s=152.0), date=DATE[:19] + ".5+00:00")
    second = again(plan(again(first), other, mode="add")).baseline
    assert second.cells[C1].runs == ["first", "second", RUN_ID, f"{RUN_ID}-2"]


@pytest.mark.parametrize("mode", ["moved", "all", "new", "better", "add"])
@pytest.mark.parametrize(
    "bad",
    [
        record(C1, "better", Status.INVALID, total_tok_s=200.0, reason="2 requests failed"),
        record(C1, "better", total_tok_s=0.0),
        record(C1, "better", total_tok_s=-1.0),
        record(C1, "better"),
    ],
    ids=["invalid", "zero", "negative", "nothing"],
)
def test_what_is_not_a_valid_measurement_is_never_stored(mode: Any, bad: CellRecord) -> None:
    made = plan(LAB, run(bad), mode=mode, reason="please")
    assert decision(made)[0] == "refused"
    assert not made.changed


def test_a_cell_without_a_measurement_is_kept() -> None:
    nothing = CellRecord(cell=C1, outcome=Outcome.INVALID)
    assert decision(plan(LAB, run(nothing), mode="all")) == ("kept", "not measured")


def test_capacity_lost_needs_a_reason() -> None:
    lost = run(over(C1, 8448, 8000))
    assert decision(plan(LAB, lost))[0] == "refused"
    made = plan(LAB, lost, reason="smaller card")
    cell = loads(made.after, "x").cells[C1]
    assert cell.over_capacity is not None
    assert (cell.over_capacity.needs, cell.over_capacity.budget) == (8448, 8000)
    assert cell.total_tok_s is None


def test_capacity_gained_is_a_new_cell() -> None:
    made = plan(LAB, run(record("decode[8K-c16]", **FAST)), mode="new")
    assert decision(made) == ("accepted", "new")
    assert loads(made.after, "x").cells["decode[8K-c16]"].over_capacity is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"interrupted": "Ctrl-C"}, "the run was interrupted"),
        ({"simulated": True}, "a simulated run cannot go into the real profile lab"),
        ({"server": None}, "needs a server"),
        ({"server": ServerInfo(engine="vllm", model="other")}, "model: baseline org/model or m"),
        ({"server": ServerInfo(engine="vllm", model="m", simulated=True)}, "a simulated run"),
        ({"run_info": {"gpu": "H100"}}, "gpu: baseline H200 NVL, here H100"),
    ],
)
def test_runs_that_may_not_update_at_all(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(LAB, run(record(C1, "better", **FAST), **changes), mode="all")


def test_simulated_and_real_never_mix() -> None:
    text = SMALL.replace("hardware:", "simulated: true\nhardware:", 1)
    marked = Loaded(Path("x"), text, loads(text, "x"))
    fast = record(C1, "better", **FAST)
    made = plan(marked, run(fast, simulated=True))
    assert loads(made.after, "x").runs[RUN_ID].simulated
    with pytest.raises(ConfigError, match="a real run cannot go into the simulated profile"):
        plan(marked, run(fast))


def test_prune_deletes_only_stale_cells_and_only_when_asked() -> None:
    stale = run(record("prefill[8K]", "ok", prefill_tok_s=18500.0), stale=[C1, "decode[8K-c16]"])
    assert not plan(LAB, stale).changed
    made = plan(LAB, stale, prune=True)
    pruned = loads(made.after, "x")
    assert list(pruned.cells) == ["prefill[8K]"]
    assert Decision(C1, "pruned", "the declared grid has it no more") in made.decisions
    assert pruned.settings.grid == LAB.baseline.settings.grid, "what is declared stays so"
    with pytest.raises(ConfigError, match="every cell"):
        plan(LAB, run(stale=list(LAB.baseline.cells)), prune=True)


def test_the_declared_grid_grows_to_hold_new_cells() -> None:
    """Else the next run would call the new cell stale."""
    made = plan(LAB, run(record("decode[4K-c64]", **FAST), record("prefill[2K]", ttft_ms=9.0)))
    grid = loads(made.after, "x").settings.grid
    assert grid.contexts == (1000, 4096, 8192)
    assert grid.concurrency == (1, 16, 64)
    assert grid.prefill_contexts == (2048, 8192)


def test_settings_become_known_once_every_cell_is_of_this_run() -> None:
    part = plan(LAB, run(record(C1, "better", **FAST)))
    assert loads(part.after, "x").settings == LAB.baseline.settings
    whole = plan(
        LAB,
        run(
            record(C1, "ok", **FAST),
            record("prefill[8K]", "ok", ttft_ms=9.0),
            record("decode[8K-c16]", **FAST),
        ),
        mode="all",
    )
    settings = loads(whole.after, "x").settings
    assert (settings.sampling, settings.text_hash, settings.duration_s) == ("t1", "abc", 5)
    assert settings.contexts == LAB.baseline.settings.contexts


def test_a_new_profile_holds_the_facts_of_the_run() -> None:
    info = {
        "gpu": "H100", "gpu_count": "8", "vram_gb": "640", "type": "Discrete GPU",
        "quantization": "FP8", "launch_command": "serve m --api-key sk-verysecret99 --port 1",
        "rack": "12:30", "note": "quiet night",
    }  # fmt: skip
    records = (
        record(C1, token_source="usage", completed=0, active_avg=1.0, **FAST),
        record("prefill[8K]", prefill_tok_s=18500.0, ttft_ms=442.0),
        over("decode[8K-c16]", 135168, None),
        record("decode[1000-c1]", None, Status.INVALID, reason="stalled"),
    )
    made = plan(None, run(*records, run_info=info))
    assert "sk-verysecret99" not in made.after
    assert made.diff("lab.yaml").startswith("--- /dev/null\n+++ b/lab.yaml\n")
    new = loads(made.after, "x")
    assert new.hardware.model_dump(exclude_none=True) == {
        "profile": "lab", "gpu": "H100", "gpu_count": 8, "vram_gb": 640.0, "type": "Discrete GPU",
    }  # fmt: skip
    assert new.match.model_dump(exclude_none=True) == {
        "gpu": "H100", "gpu_count": 8, "model": "m", "served_model": "m", "engine": "vllm",
    }  # fmt: skip
    assert list(new.cells) == ["prefill[8K]", C1, "decode[8K-c16]"]
    facts = new.runs[RUN_ID]
    assert (facts.quantization, facts.kv_tokens, facts.note) == ("FP8", None, "quiet night")
    assert facts.launch_command == "serve m --api-key <redacted> --port 1"
    assert (facts.token_source, facts.info) == ("usage", {"rack": "12:30"})
    assert new.settings.grid.contexts == (1000, 8192)
    assert not new.simulated
    assert not plan(again(made), run(*records, run_info=info), mode="all").changed


def test_a_new_profile_of_a_host_without_a_gpu_asks_for_its_cpu() -> None:
    made = plan(None, run(record(C1, **FAST), run_info={"cpu": "AMD EPYC, 2 cores"}))
    new = loads(made.after, "x")
    assert new.hardware.cpu == new.match.cpu == "AMD EPYC, 2 cores"
    assert "cpu" not in new.runs[RUN_ID].info


def test_a_new_profile_of_the_simulator_is_marked() -> None:
    made = plan(None, run(record(C1, **FAST), simulated=True))
    assert loads(made.after, "x").simulated


def test_no_profile_is_made_of_nothing() -> None:
    made = plan(None, run(record(C1, None, Status.INVALID, reason="stalled")))
    assert (made.changed, made.after) == (False, "")


@pytest.mark.parametrize("info", [{"gpu_count": "two"}, {"vram_gb": "-1"}, {"x" * 65: "y"}])
def test_run_info_that_cannot_be_stored_is_named(info: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="--llm-run-info"):
        plan(None, run(record(C1, **FAST), run_info=info))


def test_apply_writes_once_and_only_a_change(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(SMALL)
    old = Loaded(path, SMALL, loads(SMALL, "x"))
    assert not apply(plan(old, run()), path, old)
    made = plan(old, run(record(C1, "better", **FAST)))
    assert apply(made, path, old)
    assert path.read_text() == made.after
    with pytest.raises(ConfigError, match="changed since"):
        apply(made, path, old)


def test_a_shipped_profile_becomes_a_file_of_the_users_own(tmp_path: Path) -> None:
    shipped = tmp_path / "shipped" / "lab.yaml"
    shipped.parent.mkdir()
    shipped.write_text(SMALL)
    old = Loaded(shipped, SMALL, loads(SMALL, "x"))
    made = plan(old, run(record(C1, "better", **FAST)))
    assert apply(made, tmp_path / "baselines" / "lab.yaml", old)
    assert shipped.read_text() == SMALL
    assert (tmp_path / "baselines" / "lab.yaml").read_text() == made.after


@pytest.mark.parametrize("mode", ["moved", "all", "better", "add"])
def test_a_metric_that_the_baseline_had_is_not_given_up_unseen(mode: Any) -> None:
    """Faster, and without the ITL that was judged: it needs a reason."""
    gone = record(C1, "better", total_tok_s=200.0)
    lacks = gone.comparisons[0].model_copy(update={"metric": "itl_ms", "verdict": "missing"})
    gone = gone.model_copy(update={"comparisons": [*gone.comparisons, lacks]})
    assert not plan(LAB, run(gone), mode=mode).changed


def test_levels_are_runs_in_their_order() -> None:
    for levels in ("[second, second]", "[third]"):
        text = SMALL.replace(
            "runs: [first, second]", f"runs: [first, second]\n    levels: {levels}"
        )
        assert text != SMALL
        with pytest.raises(ConfigError, match="levels"):
            loads(text, "x")
