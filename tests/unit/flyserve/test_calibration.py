"""Calibration without a deployment: its rules, its figures, and the preset that it writes."""

import io
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flyserve.calibration.candidate import Candidate, Gates, candidates
from flyserve.calibration.frontier import Row, choose, finalists, frontier
from flyserve.calibration.prompts import check_distinct, load_prompts
from flyserve.calibration.recording import RecordedPrompt, Recording
from flyserve.calibration.replay import Projected, place_of, project
from flyserve.calibration.shown import frontier_chart, notes, tables
from flyserve.cli.terminal import SafeConsole
from flyserve.core.errors import ConfigError
from flyserve.core.evidence import RoundEvidence
from flyserve.core.presets import EXACT, PRESETS
from flyserve.core.speculation import Speculation
from flyserve.core.types import EntropyEstimator, FlyRule, ResponseLimits
from orchestration.deployment.presets import preset_writer, with_preset
from router.speculation_config import SpeculationConfig
from services.common.config import parse
from tests.unit.flyserve.calibration_rig import PAIR, OneWaits, calibration
from tests.unit.flyserve.fake_generation import rejected_address, run

RULES = {rule.name: rule for rule in candidates()}


def test_every_rule_that_is_served_is_written_as_itself() -> None:
    assert len(RULES) == len(candidates())
    for rule in candidates()[1:]:
        if rule.is_served:
            config = parse(SpeculationConfig, {"preset": "own", "presets": {"own": rule.preset()}}, "test")
            assert config.rule == rule.rule, rule.name


def test_the_earlier_rule_of_the_default_preset_can_be_served() -> None:
    earlier = {"preset": "vllm", "tail": "carry", "guard_stops": True, "strict_prefix_tokens": 2}
    assert parse(SpeculationConfig, earlier, "test").rule == RULES["entropy 0.3"].rule
    assert RULES["flyserve"].rule == replace(RULES["gap 0.45, window 2"].rule, threshold=0.3)


@pytest.mark.parametrize(
    "text, part",
    [
        ("", "has no prompt"),
        ("\n \n", "has no prompt"),
        ('{"prompt": ""}', ":1: has no prompt: it must be such as"),
        (
            '{"prompt": "a"}\n{"prompt": "b", "anwser": "c"}',
            ":2: has the key 'anwser', must be prompt, answer",
        ),
        ('{"prompt": "a", "answer": null}', ":1: answer is null, must be a string"),
        ('{"prompt": "a"}\n{"prompt": "a"}', ":2: has the prompt of .*:1 again"),
        ("[" * 100_000, ":1: is no JSON"),
    ],
)
def test_a_bad_file_of_prompts_is_named(tmp_path: Path, text: str, part: str) -> None:
    (path := tmp_path / "prompts.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=part):
        check_distinct(load_prompts(path))


@pytest.mark.parametrize(
    "name, part",
    [
        ("typo", "is 'typo', must be one of 'official', "),
        ("budget 2", "no deployment"),
        ("exact", "is a mode"),
    ],
)
def test_a_rule_that_cannot_be_chosen_is_named_before_any_work(name: str, part: str) -> None:
    client = OneWaits()
    with pytest.raises(ConfigError, match=f"--rule: .*{part}"):
        calibration(client, Recording(PAIR, {"b": RecordedPrompt((2,))})).run(candidates(), (name,), 1)
    assert not client.has_begun.is_set()


def row(name: str, speed: float, kept: float, divergence: float = 0.0) -> Row:
    accuracy = {"": kept, "hard": kept}
    return Row(RULES[name], speed, divergence, 0.1, 0.5, accuracy, accuracy)


ROWS = [
    row("exact", 5, 1.0),
    row("flyserve", 9, 0.6),
    row("gap 0.45", 8, 0.99),
    row("gap 0.25", 6, 1.0),
    row("budget 2", 8.5, 0.985),
    row("official", 7, 0.9),
]


def test_the_frontier_has_what_nothing_else_beats() -> None:
    names = [each.candidate.name for each in frontier(ROWS)]
    assert names == ["gap 0.25", "gap 0.45", "budget 2", "flyserve"]


@pytest.mark.parametrize("keep, name", [(1.0, "gap 0.25"), (0.98, "gap 0.45"), (0.5, "flyserve")])
def test_the_fastest_rule_that_keeps_the_accuracy_and_is_served_is_chosen(keep: float, name: str) -> None:
    assert choose(ROWS, keep).candidate.name == name


@pytest.mark.parametrize(
    "rows, name, part",
    [
        (ROWS, "nothing", "--rule: is 'nothing', must be one of 'official', "),
        (ROWS, "budget 2", "no deployment serves it"),
        ([replace(each, kept={}) for each in ROWS], None, "exact has no response right"),
        ([ROWS[0], row("flyserve", 9, 0.6)], None, "no faster rule keeps 0.98 of the accuracy of exact"),
        (ROWS, "exact", "is a mode, and no preset"),
        (ROWS, "gap 0.7", "--rule: 'gap 0.7' is not recorded: run once without --offline"),
    ],
)
def test_a_choice_that_cannot_be_made_is_named(rows: list[Row], name: str | None, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        choose(rows, 0.98, name)


def test_a_choice_without_judgements_is_refused_before_anything_is_recorded(tmp_path: Path) -> None:
    (prompts := tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}')
    writing = ("--write", "own", "--deployment", str(tmp_path / "fly.yaml"))
    shown = run("calibrate", str(prompts), *writing, "--address", rejected_address()).stderr
    assert "--write: no prompt has an answer, and there is no --verifier" in " ".join(shown.split())


def test_rules_that_are_replayed_anyway_take_no_place_of_the_finalists() -> None:
    rules = candidates()[:5]
    projections = {rule: Projected(10, 20 + place, float(place)) for place, rule in enumerate(rules)}
    assert finalists(projections, 2, beside=(rules[0], rules[2])) == [rules[1], rules[4]]
    assert finalists(projections, 3, beside=(rules[0], rules[2])) == [rules[1], rules[3], rules[4]]


def test_a_projected_budget_is_spent_once_for_the_whole_response() -> None:
    limits, rule = ResponseLimits(6, frozenset()), FlyRule(threshold=0.0, window=1, min_following=1)
    top = ((5, 9, 8, 6, 7, 8, 7, 8, 4), (-0.5, -0.9, -3.0) * 3)
    round_ = RoundEvidence((9, 6), (5, 6, 7), (1.0,) * 3, (0.4, 0.0), *top)
    places = (place_of(Speculation((), EXACT, limits, received=(5,) * count)) for count in range(6))
    rounds = dict.fromkeys(places, round_)
    spent = {
        budget: project(rounds, Candidate("budget", rule, Gates(budget=budget)), limits, 15).divergence
        for budget in (0.3, 0.5, 1.0)
    }
    assert spent == pytest.approx({0.3: 0.0, 0.5: 0.4, 1.0: 0.8})


def test_table_notes_and_chart_show_every_rule() -> None:
    chart = frontier_chart(ROWS)
    assert [table.row_count for table in tables(ROWS, 3)] == [len(ROWS), len(ROWS)]
    assert all(each.candidate.name in chart for each in ROWS) and chart.endswith("</svg>\n")
    assert any("'budget 2'" in note for note in notes(ROWS)), "names have commas"


def test_no_figure_is_cropped_on_a_narrow_console() -> None:
    accuracy = {"": 1.0, "extraction": 1.0, "arithmetic": 1.0, "paraphrase": 0.5}
    rows = [replace(each, accuracy=accuracy, kept=accuracy, lost=10, gained=12) for each in ROWS]
    console = SafeConsole(file=(shown := io.StringIO()))
    console.width = 40
    for table in tables(rows, 3):
        console.print(table)
    found = shown.getvalue()
    assert "…" not in found and found.count("100.0%") == 3 * len(rows) and found.count("10 / 12") == len(rows)


def test_a_chart_shows_nats_where_all_rules_keep_the_same_accuracy() -> None:
    assert "accuracy" in frontier_chart(ROWS)
    alike = [replace(row, accuracy=ROWS[0].accuracy, kept=ROWS[0].kept) for row in ROWS]
    assert "accuracy" not in frontier_chart(alike) and "nats" in frontier_chart(alike)


PRESET = RULES["gap 0.45"].preset()


@pytest.mark.parametrize(
    "text",
    [
        "target: {model: x}\n",
        "# top\ntarget:\n  model: x  # mine\nspeculation:\n  # why\n  mode: exact\n# end\n",
        "target: {model: x}\nspeculation: {mode: exact}",
        "target: {model: x}\nspeculation:\n  presets:\n    own:\n      window: 3\n      # after\n    b: {}\n",
        "target: {model: x}\nspeculation:\n    presets: {}\n",
        "{target: {model: x}}",
    ],
)
def test_a_preset_is_written_and_the_rest_of_the_file_stays(tmp_path: Path, text: str) -> None:
    (path := tmp_path / "deployment.yaml").write_text(text)
    path.chmod(0o640)
    preset_writer(path, "own")(PRESET)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640, "those who could read the file still can"
    before, after = yaml.safe_load(text), yaml.safe_load(path.read_text())
    assert after["speculation"]["presets"].pop("own") == PRESET
    earlier = (before.get("speculation") or {}).get("presets") or {}
    assert after["speculation"].pop("presets") == {k: v for k, v in earlier.items() if k != "own"}
    others = {k: v for k, v in (before.pop("speculation", None) or {}).items() if k != "presets"}
    assert after.pop("speculation") == others and after == before
    kept = path.read_text()
    path.write_bytes(text.replace("\n", "\r\n").encode())
    preset_writer(path, "own")(PRESET)
    assert path.read_bytes().decode() == kept.replace("\n", "\r\n")
    assert all(line.partition("#")[2] in kept for line in text.splitlines() if "#" in line)


@pytest.mark.parametrize("name", ["null", "1", "true", "yes", "1e3", "0x1f"])
def test_a_name_that_yaml_takes_for_another_value_is_quoted(tmp_path: Path, name: str) -> None:
    (path := tmp_path / "deployment.yaml").write_text("target: {model: x}\nspeculation: {mode: exact}\n")
    for preset in (PRESET, {"window": 3}):
        preset_writer(path, name)(preset)
        assert yaml.safe_load(path.read_text())["speculation"]["presets"] == {name: preset}


def test_a_mapping_that_cannot_be_changed_is_named_and_stays(tmp_path: Path) -> None:
    (path := tmp_path / "deployment.yaml").write_text(
        text := "target: {model: x}\nspeculation: &s {mode: fly}\n"
    )
    with pytest.raises(ConfigError, match="write speculation as a plain mapping, without anchors"):
        preset_writer(path, "own")
    assert path.read_text() == text


@pytest.mark.parametrize(
    "text, name, part",
    [
        ("target: {model: x}\n", "flyserve", "another name than those of the presets"),
        ("target: {model: x}\n", "A name", "must match pattern"),
        ("targets: {model: x}\n", "own", "targets"),
        ("target: [\n", "own", "deployment.yaml"),
        ("target: {model: x}\nname: 2026-02-30\n", "own", "deployment.yaml: is not YAML"),
        ("target: " + "[" * 3000, "own", "deployment.yaml: is not YAML: it is nested too deep"),
        ("target: {model: x}\ntarget: {model: y}\n", "own", "key 'target' is in line 1 and again"),
        ("- 1\n", "own", "deployment.yaml"),
        ("", "own", "deployment.yaml"),
        ("target: {model: x}\nspeculation: [1]\n", "own", "speculation"),
    ],
)
def test_a_file_or_a_name_that_does_not_fit_is_named_before_any_work(
    tmp_path: Path, text: str, name: str, part: str
) -> None:
    (path := tmp_path / "deployment.yaml").write_text(text)
    with pytest.raises(ConfigError, match=part):
        preset_writer(path, name)
    assert path.read_text() == text


@given(st.integers(1, 3), st.sampled_from(EntropyEstimator))
def test_a_shorter_draft_is_the_beginning_of_the_recorded_one(
    length: int, estimator: EntropyEstimator
) -> None:
    recorded = RoundEvidence(
        (1, 2, 3), (1, 9, 3, 4), (0.1, 0.2, 0.3, 0.4), (0.0, 0.5, 0.0), (1, 2, 3) * 4, (-0.5, -1.5, -2.5) * 4
    )
    whole, cut = recorded.for_rule(estimator, 3), recorded.for_rule(estimator, length)
    assert cut.positions == whole.positions[:length]
    assert cut.extra_choice == recorded.choices[length]


def test_rules_are_presets_with_names_that_help() -> None:
    assert [rule.name for rule in candidates()[:5]] == ["exact", *PRESETS]
    assert isinstance(candidates()[0], Candidate) and with_preset("a: 1\n", "n", {}).endswith("a: 1\n")
