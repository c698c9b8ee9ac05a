"""Ways of training side by side: the job, and what the report says of made-up numbers."""

import json

import pytest
from conftest import sentiment_rows

from faithmeter import AuditOptions, DataSpec, InputError, MeasureOptions, Run, TrainingOptions
from faithmeter.reports.comparison import Way, ways_in_words, ways_section
from faithmeter.runs.results import CHECKED_TEXTS, Result
from faithmeter.studies.compare import compare
from faithmeter.studies.report import compared
from faithmeter.training import curriculum
from faithmeter.training.config import WAYS, way_of


def test_a_way_is_a_name_of_the_table_or_is_spelt():
    assert way_of("robust") == ("plain", ("igr", "vat"))
    assert way_of("masked+vat") == ("masked", ("vat",))
    assert way_of("only-masking") == ("only-masking", ())
    assert {strategy for strategy, _ in WAYS.values()} == {"plain", "masked"}


@pytest.mark.parametrize("name", ["masqued", "masked+igrr", "", "+vat"])
def test_an_unknown_way_is_refused_with_the_nearest(name):
    with pytest.raises(InputError, match="There is no way of training"):
        way_of(name)


@pytest.fixture
def data(tmp_path, monkeypatch, without_figures):
    monkeypatch.setattr(curriculum, "ROWS_PER_EPOCH", 64)
    monkeypatch.setattr(curriculum, "MOST_EPOCHS", 1)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sentiment_rows(200)))
    return DataSpec(data=str(tmp_path / "rows.jsonl"))


OPTIONS = {
    "options": TrainingOptions(epochs=1),
    "measured": MeasureOptions(("loo-signed", "grad-l2"), rows=10, random_runs=1),
    "audited": AuditOptions(judges=("erasure", "fidelity"), measures=("loo-signed", "grad-l2"), rows=10),
}


def test_ways_and_seeds_end_in_one_report_and_go_on_where_they_were_stopped(data, tmp_path):
    runs, page = compare(tmp_path / "ways", data, "tiny", ("plain", "masked+vat"), (0, 1), **OPTIONS)
    assert [run.path.name for run in runs] == ["plain-0", "masked+vat-0", "plain-1", "masked+vat-1"]
    assert [run.config.training.epochs for run in runs[:2]] == [1, 2]  # with masks twice as many
    assert [run.config.how for run in runs[:2]] == ["plain", "masked + vat"]
    said = page.read_text(encoding="utf-8")
    assert "What training does to explanations" in said
    weights = {run.path: (run.model_folder / "model.safetensors").stat().st_mtime_ns for run in runs}
    compare(tmp_path / "ways", data, "tiny", ("plain", "masked+vat"), (0, 1), **OPTIONS)
    assert weights == {run.path: (run.model_folder / "model.safetensors").stat().st_mtime_ns for run in runs}
    (performance, ways) = compared([run.path for run in runs])
    # so little is learnt here that some trainings have no RACU and never change an answer
    assert {"ways", "ways-comprehensiveness", "ways-sufficiency", "ways-flip"} <= {one.name for one in ways.tables}
    assert [row[0] for row in ways.tables[0].rows] == ["plain", "masked + vat"]
    assert "by how it was trained" in performance.title


def test_what_cannot_be_compared_is_refused_before_any_training(data, tmp_path):
    with pytest.raises(InputError, match="named twice"):
        compare(tmp_path / "ways", data, "tiny", ("plain", "plain"), (0,), **OPTIONS)
    with pytest.raises(InputError, match="named twice"):
        compare(tmp_path / "ways", data, "tiny", ("robust", "plain+igr+vat"), (0,), **OPTIONS)
    with pytest.raises(InputError, match="named twice"):
        compare(tmp_path / "ways", data, "tiny", ("plain",), (0, 0), **OPTIONS)
    with pytest.raises(InputError, match="2 epochs"):
        compare(tmp_path / "ways", data, "tiny", ("plain", "adversarial"), (0,), **OPTIONS)
    assert not (tmp_path / "ways").exists()


# ---------------------------------------------------------------------------------- what is said of made-up numbers


def rows_of_a_training(p_value, racu, flip, outside, accuracy=0.9, chance=0.7):
    results = [
        Result(kind="performance", value=accuracy, metric="accuracy", masking_ratio=0.0, n=100),
        Result(kind="performance", value=0.7, metric="accuracy", masking_ratio=0.5, n=100),
        Result(kind="check_p_value", value=p_value, metric="p", masking_ratio=0.5, n=100),
        Result(
            kind="acu",
            value=racu / 2,
            metric="accuracy",
            n=100,
            measure="loo-signed",
            low=racu / 2 - 0.1,
            high=racu / 2 + 0.1,
        ),
        Result(
            kind="racu", value=racu, metric="accuracy", n=100, measure="loo-signed", low=racu - 0.1, high=racu + 0.1
        ),
        Result(kind="audit_fidelity_masked_until_flip", value=flip, metric="share", n=100, measure="loo-signed"),
        Result(kind="audit_fidelity_masked_until_flip", value=chance, metric="share", n=100, measure="random"),
        Result(kind="audit_fidelity_flip_outside", value=outside, metric="share", n=100, measure="loo-signed"),
    ]
    return [result.as_row() for result in results]


def way(name, numbers, seconds=100.0, **common):
    trainings = {seed: rows_of_a_training(racu=racu, **common) for seed, racu in enumerate(numbers)}
    return Way(name, trainings[0], trainings, seconds)


PLAIN = way("plain", (0.2, 0.3, 0.25), p_value=0.001, flip=0.2, outside=0.8)
MASKED = way("masked", (0.5, 0.52, 0.51), p_value=0.6, flip=0.4, outside=0.03)


def test_the_report_says_which_of_two_fidelities_may_be_believed():
    said = " ".join(ways_in_words([PLAIN, MASKED]))
    assert "in-distribution for masked" in said
    assert "out-of-distribution for plain" in said
    assert (
        "the prediction of plain changes when 0.20 of the tokens are masked, and that of masked when 0.40 are" in said
    )
    assert "80 % and 3 % of the texts are out-of-distribution" in said
    assert "that of masked can be trusted" in said
    strange = way("masked", (0.5,), p_value=0.6, flip=0.4, outside=0.6)
    assert "neither number can be trusted" in " ".join(ways_in_words([PLAIN, strange]))


def test_what_surely_helped_and_what_surely_harmed_is_named_with_its_price():
    better = way("masked + vat", (0.7, 0.73, 0.71), seconds=250.0, p_value=0.4, flip=0.4, outside=0.03, accuracy=0.89)
    said = ways_in_words([PLAIN, MASKED, better])[-1]
    # +0.20, +0.21, +0.20: Student's interval of three is 0.203 ± 0.014
    assert said.startswith("masked + vat against masked")
    assert "RACU better for loo-signed" in said
    assert "performance -1.0 points (-1.0 to -1.0)" in said
    assert "masked until the prediction changes not significantly changed for any measure" in said
    assert "2.5 times as long" in said
    worse = way("masked + igr", (0.3, 0.33, 0.31), p_value=0.4, flip=0.5, outside=0.03)
    assert "RACU worse for loo-signed" in ways_in_words([MASKED, worse])[-1]
    wandering = way("masked + igr", (0.3, 0.8, 0.6), p_value=0.4, flip=0.4, outside=0.03)
    assert "RACU not significantly changed for any measure" in ways_in_words([MASKED, wandering])[-1]


def test_a_model_that_is_harder_to_move_is_not_said_to_have_worse_explanations():
    steady = way("masked + vat", (0.5, 0.52, 0.51), p_value=0.4, flip=0.6, outside=0.03, chance=0.9)
    assert "masked until the prediction changes not significantly changed" in ways_in_words([MASKED, steady])[-1]
    # as hard to move by chance as before, and harder by the measure: that is worse
    worse = way("masked + vat", (0.5, 0.52, 0.51), p_value=0.4, flip=0.6, outside=0.03, chance=0.7)
    assert "masked until the prediction changes worse for loo-signed" in ways_in_words([MASKED, worse])[-1]


def test_trainings_are_compared_seed_by_seed():
    shifted = way("masked + vat", (0.6, 0.62, 0.61), p_value=0.4, flip=0.4, outside=0.03)
    turned = Way("masked + vat", shifted.rows, dict(reversed(shifted.trainings.items())), 100.0)
    assert ways_in_words([MASKED, turned]) == ways_in_words([MASKED, shifted])


def test_one_training_each_cannot_tell():
    one = way("masked", (0.5,), p_value=0.6, flip=0.4, outside=0.03)
    other = way("masked + vat", (0.7,), p_value=0.6, flip=0.4, outside=0.03)
    assert "better way of training from chance" in ways_in_words([one, other])[-1]


def test_no_number_of_a_model_that_does_not_understand_masks_counts_as_help():
    robust = way("plain + vat", (0.9, 0.91, 0.92), p_value=0.001, flip=0.1, outside=0.9)
    assert not any("against" in sentence for sentence in ways_in_words([PLAIN, MASKED, robust]))


def test_the_tables_say_of_whom_the_numbers_may_not_be_believed():
    section = ways_section([PLAIN, MASKED])
    overall, racu = section.tables[:2]
    assert [row[4] for row in overall.rows] == ["no", "yes"]
    assert list(racu.columns) == ["measure", "plain (masks not understood)", "masked"]
    assert [drawn.name for drawn in section.figures] == ["ways"]


def test_a_way_that_was_not_checked_is_named():
    rows = [row for row in MASKED.rows if row["kind"] != "check_p_value"]
    assert "masked (masks not checked)" in ways_section([PLAIN, Way("masked", rows, {0: rows}, None)]).tables[1].columns
    assert "was not checked for masked" in " ".join(ways_in_words([Way("masked", rows, {0: rows}, None)]))


def test_a_way_that_was_checked_on_too_few_texts_is_named():
    few = [Result(kind=kind, value=64.0, metric="texts", n=64).as_row() for kind in CHECKED_TEXTS]
    masked = Way("masked", [*MASKED.rows, *few], {0: MASKED.rows}, None)
    overall, racu = ways_section([PLAIN, masked]).tables[:2]
    assert [row[4] for row in overall.rows] == ["no", "checked on too few texts"]
    assert racu.columns[2] == "masked (masks checked on too few texts)"
    assert "too few texts for a verdict for masked" in " ".join(ways_in_words([PLAIN, masked]))


def test_the_command_prints_tables_and_words(data, tmp_path, faithmeter):
    options = ("--ways", "plain,masked", "--epochs", 1, "--rows", 5, "--measures", "grad-l2", "--judges", "fidelity")
    code, said = faithmeter("compare", tmp_path / "ways", "--data", data.data, "--model", "tiny", *options)
    assert code == 0, said
    assert "What training does to explanations" in said
    assert "Ways of training" in said
    assert Run(tmp_path / "ways" / "plain-0").config.how == "plain"
