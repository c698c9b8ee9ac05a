"""Check, measure and explain on a small trained run."""

import dataclasses
import gc
import json
import shutil
import weakref

import pyarrow.parquet
import pytest
import torch
from safetensors.torch import load_file

from faithmeter import ExplainOptions, InputError, Run, TrainingOptions, train
from faithmeter.files import write_json, write_jsonl
from faithmeter.importance.table import IMPORTANCE_MEASURES, as_measure
from faithmeter.models.classifier import Classifier
from faithmeter.progress import Silent
from faithmeter.reports import sentences
from faithmeter.reports.sentences import trusted
from faithmeter.runs import settings
from faithmeter.runs.results import VALIDATION_TEXTS, Result, find, most_faithful, rejected
from faithmeter.runs.run import chosen_device
from faithmeter.runs.timing import duration, estimated_seconds
from faithmeter.studies import check as checking
from faithmeter.studies import faithfulness_rows as summarising
from faithmeter.studies import measure as measuring
from faithmeter.studies.check import check
from faithmeter.studies.explain import explain, within_budget
from faithmeter.studies.faithfulness_rows import pool
from faithmeter.studies.measure import MeasureOptions, Stopwatch, measure

pytestmark = pytest.mark.usefixtures("without_figures")
CHEAP = ("grad-l2", "loo-signed", "loo-abs")


@pytest.fixture
def run(trained_toy, tmp_path):
    return Run(shutil.copytree(trained_toy, tmp_path / "run"))


@pytest.fixture(scope="module")
def measured(checked_toy, tmp_path_factory):
    path = shutil.copytree(checked_toy, tmp_path_factory.mktemp("measured") / "run")
    return measure(path, MeasureOptions(measures=CHEAP, rows=40, random_runs=3))


def test_a_run_without_its_check_is_not_measured_unless_told(run):
    with pytest.raises(InputError, match=r"no in-distribution test.*faithmeter check .*--without-check"):
        measure(run.path)
    measure(run.path, MeasureOptions(measures=("loo-signed",), rows=5, random_runs=1, without_check=True))
    assert any(row["kind"] == "acu" for row in run.results)


def test_check_judges_every_ratio_and_warns_of_few_rows(run):
    said = []
    reporter = Silent()
    reporter.warn = said.append
    verdicts = check(run.path, reporter=reporter)
    assert [verdict.step for verdict in verdicts] == list(range(11))
    assert "64 validation texts" in said[0]
    assert {row["masking_ratio"] for row in run.results if row["kind"] == "check_p_value"} == {
        k / 10 for k in range(11)
    }
    assert run.checked


def test_check_says_when_validation_and_test_are_not_of_one_source(run):
    said = []
    reporter = Silent()
    reporter.warn = said.append
    classifier = run.classifier()
    short, long = (classifier.encode([text] * 9) for text in ("good", "good film story plot good film story plot"))
    assert checking._of_two_sources(short, short) is None
    assert "median of 3 tokens and test texts of 10" in checking._of_two_sources(short, long)
    check(run.path, reporter=reporter)
    assert not any("one source" in line for line in said)


def test_check_fits_on_as_many_rows_as_told(run):
    check(run.path, rows=20)
    assert run.in_distribution_test().rows == 20


def declared_plain(run):
    """The run as if its model had been trained without masks: it is judged against its unmasked rows."""
    config = json.loads((run.path / "config.json").read_text())
    config["training"]["strategy"] = "plain"
    (run.path / "config.json").write_text(json.dumps(config))


def test_a_check_on_four_rows_calls_nothing_trusted_that_a_check_on_more_rejects(run, faithmeter):
    declared_plain(run)
    code, printed = faithmeter("check", run.path, "--rows", "4")
    assert code == 0, printed
    assert "may be trusted" not in printed
    assert "Too few texts for a verdict: the test was fitted on 4 and applied to 80" in printed
    assert "misses most texts with half of their tokens random words" in printed
    assert trusted(run.results) is None
    card = (run.model_folder / "README.md").read_text()
    assert "Too few texts for a verdict" in card
    assert "texts are in-distribution" not in card
    code, printed = faithmeter("measure", run.path, "--measures", "loo-signed", "--rows", "5", "--random-runs", "1")
    assert "Too few texts for a verdict" in printed
    code, printed = faithmeter("report", run.path, "--format", "markdown", "--no-examples")
    page = (run.path / "report" / "report.md").read_text()
    assert "the comparison may not be fair" in page
    assert "speaks against" not in page
    assert page.count("Too few texts for a verdict") == 2  # where the reader is warned, and beside the p-values
    shutil.rmtree(run.measurements)
    check(run.path)
    assert trusted(run.results) is False  # 64 validation rows are enough to reject


def test_the_fewest_texts_of_several_runs_decide_whether_they_give_a_verdict(measured, tmp_path):
    runs = []
    for name, texts in (("few", 20.0), ("many", 6000.0)):
        run = Run(shutil.copytree(measured.path, tmp_path / name))
        rows = [{**row, "value": texts} if row["kind"] == VALIDATION_TEXTS else row for row in run.results]
        write_jsonl(run.path / "results.jsonl", rows)
        runs.append(run)
    assert find(pool(runs), VALIDATION_TEXTS)["value"] == 20


def test_explanations_that_find_the_telling_word_are_more_faithful_than_random(measured):
    racu = {row["measure"]: row["value"] for row in measured.results if row["kind"] == "racu"}
    assert racu["loo-abs"] > 0.3
    assert racu["loo-signed"] > 0.3


def test_every_observation_has_a_number_of_its_own(measured):
    table = pyarrow.parquet.read_table(measured.path / "observations.parquet").to_pandas()
    assert set(table["measure"]) == set(CHEAP)
    assert (table.groupby("measure").size() == 40).all()
    assert table["row"].isin(range(80)).all()


def alive(references):
    gc.collect()
    return sum(reference() is not None for reference in references)


@pytest.mark.usefixtures("small_heap")
def test_check_keeps_the_features_of_one_pass_at_a_time(run, monkeypatch):
    kept, most = [], []
    found = Classifier.predict_with_features

    def watched(classifier, batch):
        most.append(alive(kept))
        logits, features = found(classifier, batch)
        kept.append(weakref.ref(features))
        return logits, features

    check(run.path)
    masf, classifier = run.in_distribution_test(), run.classifier()
    test = classifier.encode(run.data().test["text"])
    whole = checking.judge(classifier, [masf], test, seed=0)
    monkeypatch.setattr(classifier, "tokens_per_batch", 60)
    monkeypatch.setattr(Classifier, "predict_with_features", watched)
    assert checking.judge(classifier, [masf], test, seed=0) == whole
    assert len(most) > 5 * 11  # several passes at each ratio
    assert max(most) <= 1  # that of the pass before, until its place is taken


@pytest.mark.usefixtures("small_heap")
def test_measure_keeps_one_whole_measurement_at_a_time_and_no_explanation_longer_than_needed(run, monkeypatch):
    tables, most, waiting = [], [], []
    read, keep = summarising.read_measurement, measuring.Known.keep

    def watched_read(*asked):
        most.append(alive(tables))
        table = read(*asked)
        if "held" in table:  # of an explanation, all of it
            tables.append(weakref.ref(table["held"]))
        return table

    def watched_keep(known, *said):
        keep(known, *said)
        waiting.append(known)

    monkeypatch.setattr(summarising, "read_measurement", watched_read)
    monkeypatch.setattr(measuring.Known, "keep", watched_keep)
    measures = ("loo-signed", "loo-abs", "x-grad-signed", "grad-l2", "grad-l1")
    measure(run.path, MeasureOptions(measures=measures, rows=10, random_runs=2, without_check=True))
    assert len(tables) == len(measures)
    assert max(most) <= 1
    assert waiting[0].asked >= {"loo-signed"}
    assert not waiting[0].said


class Told(Silent):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


class StopAfter(Silent):
    """Interrupts after so many texts were measured; what is read or tokenised before does not count."""

    def __init__(self, texts):
        self.left = texts

    def bar(self, title, total):
        from contextlib import contextmanager

        @contextmanager
        def bar():
            measured = title.split(".")[0] in IMPORTANCE_MEASURES
            yield self.advance if measured else lambda done: None

        return bar()

    def advance(self, done):
        self.left -= done
        if self.left <= 0:
            raise KeyboardInterrupt


def test_an_interrupted_measurement_ends_in_the_same_rows(run, monkeypatch):
    monkeypatch.setattr("faithmeter.studies.measure.TOKENS_AT_ONCE", 30)
    options = MeasureOptions(measures=CHEAP, rows=15, random_runs=2, without_check=True)
    other = shutil.copytree(run.path, run.path.with_name("other"))

    def untimed(results):
        return [row for row in results if row["kind"] != "seconds_per_text"]

    measure(other, options)
    with pytest.raises(KeyboardInterrupt):
        measure(run.path, options, reporter=StopAfter(37))
    assert not any(row["kind"] == "acu" for row in run.results)
    measure(run.path, options)
    assert untimed(run.results) == untimed(Run(other).results)
    files = [(path / "observations.parquet") for path in (run.path, other)]
    assert pyarrow.parquet.read_table(files[0]).equals(pyarrow.parquet.read_table(files[1]))


def test_other_settings_are_not_mixed_with_stored_measurements(run):
    measure(run.path, MeasureOptions(measures=("loo-abs",), rows=5, random_runs=1, without_check=True))
    with pytest.raises(InputError, match="another target"):
        measure(run.path, MeasureOptions(measures=("loo-abs",), rows=5, target="predicted", without_check=True))


def test_one_more_measure_stands_beside_those_that_were_measured_before(run):
    options = {"rows": 20, "without_check": True}
    measure(run.path, MeasureOptions(measures=("loo-signed",), random_runs=3, **options))
    before = {row["measure"]: row for row in run.results if row["kind"] == "acu"}
    alone = [row for row in run.results if row["measure"] == "loo-signed"]
    measure(run.path, MeasureOptions(measures=("grad-l2",), random_runs=2, **options))
    compared = ("acu_behind_best", "acu_difference", "best_set", "acu_cross_fitted")
    assert [row for row in alone if row["kind"] not in compared] == [
        row for row in run.results if row["measure"] == "loo-signed" and row["kind"] not in compared
    ]
    after = {row["measure"]: row for row in run.results if row["kind"] == "acu"}
    assert list(after) == ["loo-signed", "grad-l2"]
    assert after["loo-signed"] == before["loo-signed"]  # its baseline of three random runs stays, too
    assert run.measurement_settings["asked"]["random_runs"] == 3  # so that the report's command makes all of it again
    assert {row["measure"] for row in run.results if row["kind"] == "acu_behind_best"} == set(after)
    assert run.measure_to_use == "loo-signed"
    together = run.results
    other = Run(shutil.copytree(run.path, run.path.with_name("other")))
    measure(other.path, MeasureOptions(measures=("loo-signed", "grad-l2"), random_runs=3, **options))
    assert other.results == together


def test_a_measure_that_was_begun_and_not_finished_is_left_out_and_told_of(run, monkeypatch):
    monkeypatch.setattr("faithmeter.studies.measure.TOKENS_AT_ONCE", 60)
    options = MeasureOptions(measures=("loo-signed",), rows=30, random_runs=1, without_check=True)
    with pytest.raises(KeyboardInterrupt):
        measure(run.path, options, reporter=StopAfter(40))
    told = Told()
    measure(run.path, dataclasses.replace(options, measures=("grad-l2",)), reporter=told)
    assert [row["measure"] for row in run.results if row["kind"] == "acu"] == ["grad-l2"]
    assert any(note.startswith("loo-signed is unfinished") for note in told.notes)
    measure(run.path, options)
    assert {row["measure"] for row in run.results if row["kind"] == "acu"} == {"loo-signed", "grad-l2"}


def test_measurements_that_lost_their_settings_are_not_taken_over(run):
    options = MeasureOptions(measures=("loo-abs",), rows=5, random_runs=1, without_check=True)
    measure(run.path, options)
    (run.measurements / "settings.json").unlink()
    with pytest.raises(InputError, match=r"results without their settings.json.*remove"):
        measure(run.path, dataclasses.replace(options, target="predicted", seed=1))
    shutil.rmtree(run.measurements)
    measure(run.path, dataclasses.replace(options, target="predicted", seed=1))


def test_another_release_goes_on_with_what_is_stored_and_another_format_does_not(run, monkeypatch):
    options = MeasureOptions(measures=("loo-abs",), rows=5, random_runs=1, without_check=True)
    measure(run.path, options)
    with monkeypatch.context() as patched:
        patched.setattr(settings.metadata, "version", lambda _: "0.9.9")
        measure(run.path, dataclasses.replace(options, measures=("grad-l2",)))
    assert run.measurement_settings["faithmeter"] == "0.9.9"  # kept for whoever reads
    monkeypatch.setattr(measuring, "FORMAT", measuring.FORMAT + 1)
    with pytest.raises(InputError, match="another format"):
        measure(run.path, options)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_model_that_changed_in_a_byte_does_not_go_on_under_old_results(run, file):
    options = MeasureOptions(measures=("loo-abs",), rows=5, random_runs=1, without_check=True)
    measure(run.path, options)
    changed = run.model_folder / file
    changed.write_bytes(changed.read_bytes().rstrip() + b" ")
    for use in (lambda: measure(run.path, options), lambda: explain(run.path, ["good film"])):
        with pytest.raises(InputError, match=rf"{file} is damaged: its checksum does not match"):
            use()
    for sum_ in run.model_folder.glob(".*.sum"):  # as versions before wrote it
        sum_.unlink()
    with pytest.raises(InputError, match="another tokenizer_and_config"):
        measure(run.path, options)


def test_a_run_of_a_version_that_kept_no_hash_of_the_tokenizer_is_measured_further(run):
    options = MeasureOptions(measures=("loo-abs",), rows=5, random_runs=1, without_check=True)
    measure(run.path, options)
    file = run.measurements / "settings.json"
    stored = json.loads(file.read_text())
    del stored["tokenizer_and_config"], stored["asked"]["functions"]
    write_json(file, stored)
    measure(run.path, dataclasses.replace(options, measures=("grad-l2",)))
    assert {row["measure"] for row in run.results if row["kind"] == "acu"} == {"loo-abs", "grad-l2"}
    assert run.measurement_settings["tokenizer_and_config"] == run.tokenizer_and_config


def test_a_function_of_the_users_own_is_measured_like_any_other(run):
    def longest_first(classifier, batch, targets, seed):
        return torch.arange(batch.maskable.shape[1]).expand(batch.maskable.shape).float()

    options = MeasureOptions(measures=(longest_first, "loo-abs"), rows=20, random_runs=2, without_check=True)
    measure(run.path, options)
    acu = {row["measure"]: row["value"] for row in run.results if row["kind"] == "acu"}
    assert acu["loo-abs"] > acu["longest_first"]


def test_a_form_of_the_users_own_does_not_answer_for_the_measure_of_its_name(run):
    def least_first(classifier, batch, targets, seed):
        return 1 / (1 + as_measure("loo-abs").explain(classifier, batch, targets, seed))

    def found(path, *measures):
        measure(path, MeasureOptions(measures=measures, rows=20, random_runs=1, without_check=True))
        return [row["value"] for row in Run(path).results if (row["kind"], row["measure"]) == ("sparsity", "loo-abs")]

    other = shutil.copytree(run.path, run.path.with_name("other"))
    backwards = dataclasses.replace(as_measure("loo-signed"), explain=least_first)
    assert found(run.path, backwards, "loo-abs") == found(other, "loo-abs")


def test_a_function_that_changed_under_its_name_is_measured_anew(run):
    def found(sign):
        def mine(classifier, batch, targets, seed):
            return sign * as_measure("loo-signed").explain(classifier, batch, targets, seed)

        measure(run.path, MeasureOptions(measures=(mine,), rows=20, random_runs=2, without_check=True))
        return next(row["value"] for row in run.results if row["kind"] == "acu")

    assert found(1) > 0 > found(-1)


def test_measurements_by_other_units_are_refused_and_the_units_are_kept_with_them(run):
    options = {"measures": ("loo-signed",), "rows": 5, "random_runs": 1, "without_check": True}
    measure(run.path, MeasureOptions(**options, by="chunk", chunk=4))
    stored = (run.path / "results.jsonl").read_bytes()
    for other in ({}, {"by": "word"}, {"by": "chunk", "chunk": 5}):
        with pytest.raises(InputError, match=r"another (by|chunk)"):
            measure(run.path, MeasureOptions(**options, **other))
    measure(run.path, MeasureOptions(**options, by="chunk", chunk=4))
    rows = [json.loads(line) for line in stored.splitlines()]
    assert [row for row in run.results if row["kind"] == "acu"] == [row for row in rows if row["kind"] == "acu"]
    (found,) = explain(run.path, ["good film great story bad plot"])
    assert found.by == "chunk of 4"  # as the run was measured
    (found,) = explain(run.path, ["good film great story bad plot"], options=ExplainOptions(by="token"))
    assert (found.by, found.units) == ("token", ())


def test_a_run_that_was_measured_before_there_were_units_was_measured_by_token(run):
    options = MeasureOptions(measures=("loo-signed",), rows=5, random_runs=1, without_check=True)
    measure(run.path, options)
    file = run.measurements / "settings.json"
    stored = json.loads(file.read_text())
    write_json(file, {key: value for key, value in stored.items() if key not in ("by", "chunk")})
    assert run.measurement_settings["by"] == "token"
    measure(run.path, options)
    with pytest.raises(InputError, match="another by"):
        measure(run.path, dataclasses.replace(options, by="word"))


@pytest.mark.parametrize("by", ["token", "chunk"])
def test_p_values_of_units_judged_at_the_walks_step_are_not_mixed_with_new_ones(run, by):
    check(run.path)
    options = MeasureOptions(measures=("loo-signed",), rows=5, random_runs=1, by=by, chunk=3)
    measure(run.path, options)
    file = run.measurements / "settings.json"
    stored = json.loads(file.read_text())
    del stored["judged_at"]  # as earlier versions left it
    write_json(file, stored)
    if by == "token":  # nothing has changed
        measure(run.path, options)
        return
    with pytest.raises(InputError, match=r"another judged_at.*remove .*measurements first"):
        measure(run.path, options)


def test_masking_by_larger_units_costs_fewer_passes(run):
    passes = {}
    for by in ("token", "chunk"):
        shutil.rmtree(run.measurements, ignore_errors=True)
        options = MeasureOptions(("loo-signed", "grad-l2"), rows=5, random_runs=1, without_check=True, by=by, chunk=3)
        results = measure(run.path, options).results
        passes[by] = [find(results, "token_passes", name)["value"] for name in ("loo-signed", "grad-l2")]
    assert passes["chunk"][0] < passes["token"][0]
    assert passes["chunk"][1] == passes["token"][1]  # gradients cost the same whatever they are added up over


@pytest.mark.parametrize("wrong", [{"by": "sentences"}, {"by": "chunk", "chunk": 0}])
def test_units_that_there_are_not_are_refused_before_any_work(run, wrong):
    with pytest.raises(InputError, match=r"no unit 'sentences'|at least 1 token"):
        MeasureOptions(**wrong)
    with pytest.raises(InputError, match=r"no unit 'sentences'|at least 1 token"):
        explain(run.path, ["good film"], options=ExplainOptions(**wrong))


def test_the_command_line_masks_explains_and_reports_by_unit(run, faithmeter):
    asked = ("--measures", "loo-signed", "--rows", "5", "--random-runs", "1", "--without-check")
    code, printed = faithmeter("measure", run.path, *asked, "--by", "chunk", "--chunk", "4")
    assert code == 0, printed
    assert (run.measurement_settings["by"], run.measurement_settings["chunk"]) == ("chunk", 4)
    text = "Good film. Bad plot."
    code, printed = faithmeter("explain", run.path, text, "--by", "sentence", "--json")
    assert code == 0, printed
    (found,) = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert [piece["text"] for piece in found["units"]] == ["Good film.", "Bad plot."]
    code, printed = faithmeter("explain", run.path, text, "--by", "sentence")
    assert "Good film. +" in printed or "Good film. -" in printed
    code, printed = faithmeter("measure", run.path, *asked, "--by", "phrase")
    assert code == 2
    assert "There is no unit 'phrase'" in printed
    code, printed = faithmeter("report", run.path, "--format", "markdown")
    assert code == 0, printed
    page = (run.path / "report" / "report.md").read_text()
    assert "--by chunk --chunk 4" in page
    assert "whole chunks of at most 4 tokens" in page


def test_measures_of_one_name_are_refused_and_random_is_only_the_baseline(run):
    options = {"rows": 5, "random_runs": 1, "without_check": True}
    with pytest.raises(InputError, match="Two importance measures are named 'loo-abs'"):
        measure(run.path, MeasureOptions(measures=("loo-abs", "loo-abs"), **options))
    with pytest.raises(InputError, match="nothing to compare"):
        measure(run.path, MeasureOptions(measures=("random",), **options))
    measure(run.path, MeasureOptions(measures=("random", "loo-abs"), **options))
    assert {row["measure"] for row in run.results if row["kind"] == "acu"} == {"loo-abs"}


def test_what_repeats_another_measure_is_compared_only_where_it_is_named(run):
    classifier = run.classifier()
    every = {one.name for one in measuring.distinct(None, classifier)}
    assert {"loo-signed", "beam", "kernel-shap", "attention-rollout"} <= every
    assert not every & {"loo-sampled", "ensemble-top3", "ensemble-all", "ig-mask-signed", "ig-mask-abs"}
    assert [one.name for one in measuring.distinct(("loo-sampled",), classifier)] == ["loo-sampled"]


def test_an_absolute_measure_does_not_explain_again_what_its_signed_form_has_explained():
    calls = []

    def explain(*given):
        calls.append(given)
        return torch.tensor([[7.0]])

    one = dataclasses.replace(as_measure("loo-abs"), explain=explain)
    watch = Stopwatch(one, (torch.tensor([[-2.0]]), 5.0))
    first, second = (watch.measure.explain(None, None, None, 0) for _ in range(2))
    assert (first.item(), second.item(), len(calls)) == (2.0, 7.0, 1)
    assert 5 < watch.seconds < 6  # as if it had been measured alone


def test_measures_say_the_same_together_as_alone(run):
    options = {"rows": 20, "random_runs": 1, "without_check": True}
    measure(run.path, MeasureOptions(measures=("loo-signed", "loo-abs"), **options))
    together = {row["measure"]: row["value"] for row in run.results if row["kind"] == "acu"}
    shutil.rmtree(run.measurements)
    measure(run.path, MeasureOptions(measures=("loo-abs",), **options))
    assert together["loo-abs"] == next(row["value"] for row in run.results if row["kind"] == "acu")


def test_long_work_is_foretold(run, monkeypatch):
    said = []
    reporter = Silent()
    reporter.note = said.append
    monkeypatch.setattr(measuring, "WORTH_SAYING", -1)
    options = MeasureOptions(measures=("beam", "loo-abs"), rows=4, beam_rows=2, random_runs=1, without_check=True)
    measure(run.path, options, reporter=reporter)
    assert any(line.startswith("beam on 2 texts will take about") for line in said)
    # the two are compared on the same two texts, and the winner of four is not chosen by the two
    assert find(run.results, "acu_difference", "beam", detail="loo-abs")["n"] == 2
    assert {row["measure"]: row["n"] for row in run.results if row["kind"] == "best_set"} == {"beam": 2, "loo-abs": 4}


def test_the_estimate_counts_what_beam_and_leave_one_out_evaluate(run):
    test = run.classifier().encode(["good film story plot", "bad"])
    counts = {name: estimated_seconds(as_measure(name), test, [0], pace=1.0) for name in ("beam", "loo-abs", "random")}
    tokens = int(test.lengths[0])
    assert counts["random"] == 11 * tokens
    assert counts["beam"] == (10 * 4 * 3 / 2 + 1 + 11) * tokens
    # floor(4·k/10) of the 4 words are masked at step k, and each explanation needs one pass more for the whole
    assert counts["loo-abs"] == (sum(4 - 4 * k // 10 + 1 for k in range(10)) + 11) * tokens
    assert estimated_seconds(as_measure(lambda *_: None), test, [0], pace=1.0) is None


def test_lengths_of_time_are_said_in_the_unit_that_fits():
    assert [duration(seconds) for seconds in (32.4, 100, 9000)] == ["32 s", "2 min", "2.5 h"]


def test_runs_are_pooled_into_means_with_intervals_over_them(measured, tmp_path):
    runs = []
    for seed, shift in enumerate((0.0, 0.1, 0.5)):
        run = Run(shutil.copytree(measured.path, tmp_path / str(seed)))
        rows = [{**row, "value": row["value"] + (shift if row["kind"] == "acu" else 0)} for row in run.results]
        write_jsonl(run.path / "results.jsonl", rows)
        runs.append(run)
    pooled = {(row["kind"], row["measure"]): row for row in pool(runs) if row["masking_ratio"] is None}
    original = {row["measure"]: row["value"] for row in measured.results if row["kind"] == "acu"}
    for name in CHEAP:
        acu = pooled["acu", name]
        assert acu["value"] == pytest.approx(original[name] + 0.2)
        # Student's: ± 4.303 · 0.2646 / √3, which no ACU of accuracy exceeds beyond −1 and 1
        ends = original[name] + 0.2 - 0.6572, min(1, original[name] + 0.2 + 0.6572)
        assert (acu["low"], acu["high"]) == pytest.approx(ends, abs=1e-4)
        assert (acu["over"], acu["n"]) == ("seeds", 3)
        behind = pooled["acu_behind_best", name]
        assert behind["value"] == pytest.approx(max(original.values()) - original[name])


def changed(run, file, **values):
    """Change what a JSON file of a run says; names of inner tables are joined by two underscores."""
    stored = json.loads((run.path / file).read_text())
    for name, value in values.items():
        *outer, last = name.split("__")
        inner = stored
        for table in outer:
            inner = inner[table]
        inner[last] = value
    write_json(run.path / file, stored)


def two_of(measured, tmp_path):
    return [Run(shutil.copytree(measured.path, tmp_path / name)) for name in ("one", "two")]


@pytest.mark.parametrize(
    ("file", "values", "says"),
    [
        ("config.json", {"metric": "macro-f1"}, r"in metric \(accuracy; macro-f1\)"),
        ("config.json", {"labels": ["ham", "spam"]}, r"in classes \(negative, positive; ham, spam\)"),
        ("config.json", {"fingerprint": "0" * 16}, r"in fingerprint of the data \(\w+; 0{16}\)"),
        ("config.json", {"model": "tiny"}, r"in model \(small; tiny\)"),
        ("config.json", {"max_length": 8}, r"in longest text \(512; 8\)"),
        ("config.json", {"training__strategy": "plain"}, r"in way of training \(masked; plain\), .*strategy"),
        ("config.json", {"training__learning_rate": 0.1}, r"in learning rate \(0\.002; 0\.1\)"),
        ("config.json", {"training": None, "masked_before": True}, r"in way of training \(masked; trained elsewhere\)"),
        ("measurements/settings.json", {"target": "predicted"}, r"in target of the measurement \(gold; predicted\)"),
        ("measurements/settings.json", {"rows": 20}, r"in rows of the measurement \(40; 20\)"),
        ("measurements/settings.json", {"by": "word"}, r"in by of the measurement \(token; word\)"),
    ],
)
def test_runs_that_differ_in_more_than_the_seed_are_not_pooled(measured, tmp_path, file, values, says):
    runs = two_of(measured, tmp_path)
    changed(runs[1], file, **values)
    with pytest.raises(
        InputError, match=rf"one and .*two differ in more than the training seed, .*cannot be pooled: {says}"
    ):
        pool(runs)


def test_runs_of_other_seeds_are_pooled_wherever_their_files_are(measured, tmp_path):
    runs = two_of(measured, tmp_path)
    moved = str(shutil.copy(measured.config.data.data, tmp_path / "elsewhere.jsonl"))
    changed(runs[1], "config.json", training__seed=1, training__tracker="wandb", training__igr_weight=0.5)
    changed(runs[1], "config.json", data__data=moved)
    rows = pool(runs)
    assert find(rows, "acu", "loo-signed")["n"] == 2
    for number, run in enumerate(runs):  # models that came trained, a folder for each seed
        changed(run, "config.json", training=None, model=f"/models/seed-{number}")
    assert pool(runs) == rows


def test_the_command_line_refuses_to_pool_before_it_measures(run, tmp_path, faithmeter):
    other = Run(shutil.copytree(run.path, tmp_path / "other"))
    changed(other, "config.json", labels=["ham", "spam"])
    code, printed = faithmeter("measure", run.path, other.path, "--without-check", "--rows", "5")
    assert (code, "differ in more than the training seed" in printed) == (2, True)
    assert not run.measurements.exists()


def test_what_other_judges_say_of_few_trainings_has_an_interval_that_holds(measured, tmp_path):
    runs = []
    for seed, value in enumerate((0.01, 0.02, 0.09)):
        run = Run(shutil.copytree(measured.path, tmp_path / str(seed)))
        kinds = {"audit_erasure_sufficiency": "sufficiency", "audit_fidelity_never_flips": "never_flips"}
        run.store_results(
            (), [Result(kind="transfer", value=1 - 2 * value / 10, metric="accuracy", n=5, detail="here")]
        )
        correlated = Result(
            kind="audit_randomisation_cascading", value=1 - value, metric="cascading", n=5, measure="loo-signed"
        )
        run.store_results((), [correlated])
        run.store_results(
            (), [Result(kind=k, value=value, metric=metric, n=5, measure="loo-signed") for k, metric in kinds.items()]
        )
        runs.append(run)
    row = find(pool(runs), "audit_erasure_sufficiency", "loo-signed")
    # Student's: 0.04 ± 4.303 · 0.04359 / √3, where the bootstrap says 0.013 to 0.090
    assert (row["low"], row["high"]) == pytest.approx((-0.0683, 0.1483), abs=1e-4)
    share = find(pool(runs), "audit_fidelity_never_flips", "loo-signed")
    assert (share["low"], share["high"]) == pytest.approx((0, 0.1483), abs=1e-4)  # no share is below 0
    # no accuracy and no correlation is above 1: 0.992 ± 4.303 · 0.008718 / √3, and 0.96 ± 0.1083
    reached = find(pool(runs), "transfer", detail="here")
    assert (reached["low"], reached["high"]) == pytest.approx((0.9703, 1), abs=1e-4)
    agreed = find(pool(runs), "audit_randomisation_cascading", "loo-signed")
    assert (agreed["low"], agreed["high"]) == pytest.approx((0.8517, 1), abs=1e-4)


def test_every_measure_lies_some_way_behind_the_most_faithful_one(measured):
    behind = {row["measure"]: row for row in measured.results if row["kind"] == "acu_behind_best"}
    acu = {row["measure"]: row["value"] for row in measured.results if row["kind"] == "acu"}
    best = most_faithful(measured.results)
    assert behind[best]["value"] == 0
    for name in CHEAP:
        assert behind[name]["value"] == pytest.approx(acu[best] - acu[name])
        assert behind[name]["low"] <= behind[name]["value"] <= behind[name]["high"]


def test_pairs_are_compared_on_the_same_texts_and_the_best_set_holds_the_winner(measured):
    rows = measured.results
    acu = {row["measure"]: row["value"] for row in rows if row["kind"] == "acu"}
    best = most_faithful(rows)
    for first in CHEAP:
        for second in set(CHEAP) - {first}:
            pair = find(rows, "acu_difference", first, detail=second)
            assert pair["value"] == pytest.approx(acu[first] - acu[second])
            assert pair["n"] == 40
            back = find(rows, "acu_difference", second, detail=first)
            assert (pair["low"], pair["high"]) == pytest.approx((-back["high"], -back["low"]))
            if first == best:
                behind = find(rows, "acu_behind_best", second)
                assert (behind["value"], behind["low"], behind["high"]) == (pair["value"], pair["low"], pair["high"])
    may_be = {row["measure"]: row["value"] for row in rows if row["kind"] == "best_set"}
    assert set(may_be) == set(CHEAP)
    assert may_be[best] == 1
    (winner,) = [row for row in rows if row["kind"] == "acu_cross_fitted"]
    rivals = [name for name in CHEAP if not rejected(rows, name)] or CHEAP
    if winner["detail"] is None:  # all parts chose the same measure, of which accuracy's area is a mean over texts
        assert winner["value"] == pytest.approx(acu[winner["measure"]])
    assert winner["value"] <= max(acu[name] for name in rivals) + 1e-12
    assert winner["low"] < winner["value"] < winner["high"]


def test_a_measured_walk_has_a_p_value(measured):
    p_values = {row["measure"]: row["value"] for row in measured.results if row["kind"] == "walk_p_value"}
    assert set(p_values) == {*CHEAP, "random"}
    assert all(0 <= value <= 1 for value in p_values.values())


def test_a_plain_model_is_told_to_train_on_and_can_be(run, tmp_path):
    declared_plain(run)
    head = load_file(run.model_folder / "model.safetensors")["classifier.out_proj.weight"]
    assert len(check(run.path)) == 11
    options = TrainingOptions(epochs=1, learning_rate=1e-9)
    onward = train(tmp_path / "onward", run.config.data, str(run.model_folder), options)
    kept = load_file(onward.model_folder / "model.safetensors")["classifier.out_proj.weight"]
    torch.testing.assert_close(kept, head, atol=1e-6, rtol=0)


def test_explain_takes_the_most_faithful_measure_and_tests_it(measured):
    (found,) = explain(measured.path, ["good film story plot"])
    surely = {row["measure"]: row["low"] for row in measured.results if row["kind"] == "acu"}
    assert found.measure == max(surely, key=surely.get)
    assert found.predicted == "positive"
    assert max(found.words, key=lambda word: abs(word.importance)).text == "good"
    assert 0 <= found.p_value <= 1


def test_pooled_trainings_beat_the_majority_only_where_each_of_them_does(measured, tmp_path):
    def one(name, p_value):
        run = Run(shutil.copytree(measured.path, tmp_path / name))
        run.store_results(("majority_p_value",), [Result(kind="majority_p_value", value=p_value, metric="p", n=60)])
        return run

    assert find(pool([one("a", 0.001), one("b", 0.4), one("c", 0.01)]), "majority_p_value")["value"] == 0.4


def test_of_pooled_p_values_the_smallest_counts_times_the_number_of_runs(measured, tmp_path):
    def one(name, walk, check):
        run = Run(shutil.copytree(measured.path, tmp_path / name))
        rows = [Result(kind="walk_p_value", value=walk, metric="p", n=60, measure="loo-signed")]
        rows += [Result(kind="check_p_value", value=check, metric="p", masking_ratio=0.5, n=60)]
        run.store_results(("walk_p_value", "check_p_value"), rows)
        return run

    rows = pool([one("a", 0.01, 0.6), one("b", 0.9, 0.5), one("c", 0.8, 0.7)])
    # one training that is led astray is not made good by two that are not: 3 · 0.01, where the mean is 0.57
    assert find(rows, "walk_p_value", "loo-signed")["value"] == pytest.approx(0.03)
    assert find(rows, "check_p_value", ratio=0.5)["value"] == 1  # 3 · 0.5 is no probability


class Listening(Silent):
    """Remembers what it is told."""

    def __init__(self):
        self.said = []

    def warn(self, text):
        self.said.append(text)


def test_explain_says_first_that_the_run_does_not_stand_behind_it(run, measured, faithmeter, tmp_path):
    listener = Listening()
    nothing = "Nothing has been measured, so no importance measure can be recommended"
    (found,) = explain(run.path, ["good film"], reporter=listener)
    assert listener.said == [found.doubt]
    assert found.doubt.startswith(nothing)
    assert found.as_row()["doubt"] == found.doubt
    _, printed = faithmeter("explain", run.path, "good film story")
    assert printed.index(nothing) < printed.index("good film story")
    strange = shutil.copytree(measured.path, tmp_path / "strange")
    rows = [{**row, "value": 0.0} if row["kind"] == "check_p_value" else row for row in measured.results]
    write_jsonl(strange / "results.jsonl", rows)
    assert explain(strange, "good film")[0].doubt == sentences.verdict(rows)[0]
    # a run that recommends a measure stands behind that one alone
    assert explain(measured.path, "good film")[0].doubt is None
    assert "was not measured on this model" in explain(measured.path, "good film", measure="ig-signed")[0].doubt


def test_explain_says_what_of_a_long_text_was_not_read(measured, faithmeter):
    text = "good " * 600  # and two special tokens, of which 512 are read
    _, printed = faithmeter("explain", measured.path, text, "--measure", "grad-l2", "--by", "sentence")
    said = "The text is too long: 90 of 602 tokens were cut off"
    assert printed.index(said) < printed.index("good good")
    _, printed = faithmeter("explain", measured.path, text, "--measure", "grad-l2", "--by", "sentence", "--json")
    (row,) = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert row["unread"] == 90
    assert row["cut"].startswith(said)


def test_a_run_explains_a_string_as_one_text(measured):
    (found,) = explain(measured.path, "good film story plot")
    assert found == explain(measured.path, ["good film story plot"])[0]
    assert len(explain(measured.path, "good film", budget=1000.0)) == 1


def test_explain_refuses_what_does_not_fit_the_model(measured):
    with pytest.raises(InputError, match="takes single texts"):
        explain(measured.path, ["good"], ["a film"])
    with pytest.raises(InputError, match=r"no class 'positve'.*Did you mean 'positive'"):
        explain(measured.path, ["good"], options=ExplainOptions(target="positve"))
    with pytest.raises(InputError, match="Did you mean 'loo-signed'"):
        explain(measured.path, ["good"], measure="loo-sined")


def test_the_command_line_explains_for_people_and_machines(measured, faithmeter, tmp_path):
    _, printed = faithmeter("explain", measured.path, "good film [bold]story")
    assert "good film [bold]story" in printed
    assert "ACU" in printed
    (tmp_path / "texts.txt").write_text("good film\n\nbad plot\n")
    _, printed = faithmeter("explain", measured.path, "--file", tmp_path / "texts.txt", "--json")
    rows = [json.loads(line) for line in printed.splitlines()]
    assert [row["predicted"] for row in rows] == ["positive", "negative"]
    assert {"text", "start", "end", "importance"} == set(rows[0]["words"][0])


def test_the_command_line_checks_and_measures(run, faithmeter):
    code, printed = faithmeter("measure", run.path)
    assert (code, "faithmeter check" in printed) == (2, True)
    code, printed = faithmeter("check", run.path)
    assert code == 0
    assert "Too few texts for a verdict: the test was fitted on 64 and applied to 80" in printed
    code, printed = faithmeter(
        "measure", run.path, "--measures", "grad-l2, loo-abs", "--rows", "10", "--random-runs", "2"
    )
    assert code == 0, printed
    assert printed.index("RACU") < printed.index("loo-abs")
    code, printed = faithmeter("check", run.path)
    assert (code, "was measured with the in-distribution test it has" in printed) == (2, True)


def test_a_run_that_was_measured_without_a_test_is_told_so_when_it_is_checked(run):
    measure(run.path, MeasureOptions(measures=("loo-abs",), rows=5, random_runs=1, without_check=True))
    with pytest.raises(
        InputError, match=r"was measured without an in-distribution test.*Remove .*measurements first, then check"
    ):
        check(run.path)
    shutil.rmtree(run.measurements)
    assert check(run.path)


def test_the_papers_form_gives_shares_but_no_verdict(run, faithmeter):
    code, printed = faithmeter("check", run.path, "--form", "paper")
    assert code == 0
    assert "may be trusted" not in printed
    assert "Out-of-distribution" not in printed
    kinds = {row["kind"] for row in run.results}
    assert "check_share_atypical" in kinds
    assert "check_p_value" not in kinds
    measure(run.path, MeasureOptions(measures=("loo-abs",), rows=5, random_runs=1))
    assert not any(row["kind"] == "walk_p_value" for row in run.results)


def test_a_check_that_was_interrupted_does_not_count(run, monkeypatch):
    check(run.path)

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checking, "judge", killed)
        with pytest.raises(KeyboardInterrupt):
            check(run.path)
    assert not run.checked
    with pytest.raises(InputError, match="has no in-distribution test"):
        measure(run.path)
    check(run.path)
    assert run.checked


def test_files_of_another_format_are_refused_in_words(run):
    check(run.path)
    header = run.in_distribution_folder / "masf.json"
    write_json(header, {**json.loads(header.read_text()), "format": 1})
    with pytest.raises(InputError, match="run `faithmeter check` again"):
        explain(run.path, ["good film"])


def test_explain_does_not_choose_a_function_that_it_does_not_have(run):
    def mine(classifier, batch, targets, seed):
        return as_measure("loo-signed").explain(classifier, batch, targets, seed)

    measure(run.path, MeasureOptions(measures=(mine, "grad-l2"), rows=20, random_runs=2, without_check=True))
    assert explain(run.path, ["good film"])[0].measure == "grad-l2"
    assert 'measure="grad-l2"' in (run.model_folder / "README.md").read_text()


def test_a_measure_of_a_built_in_name_that_is_another_is_measured_anew(run):
    options = {"rows": 20, "random_runs": 2, "without_check": True}
    measure(run.path, MeasureOptions(measures=("loo-signed",), **options))
    honest = next(row["value"] for row in run.results if row["kind"] == "acu")
    reversed_ = dataclasses.replace(
        as_measure("loo-signed"), explain=lambda *given: -as_measure("loo-signed").explain(*given)
    )
    measure(run.path, MeasureOptions(measures=(reversed_,), **options))
    assert next(row["value"] for row in run.results if row["kind"] == "acu") < 0 < honest
    measure(run.path, MeasureOptions(measures=("loo-signed",), **options))
    assert next(row["value"] for row in run.results if row["kind"] == "acu") == honest


def test_the_same_run_twice_is_not_two_runs(measured):
    with pytest.raises(InputError, match="named twice"):
        pool([measured, Run(measured.path)])


def test_options_about_data_that_is_not_named_are_not_swallowed(run, faithmeter):
    code, printed = faithmeter("check", run.path, "--validation-data", "better.csv")
    assert (code, "--validation-data describes data, but no data is named" in printed) == (2, True)


# ------------------------------------------------------------------------- explain within a budget


def rows_with(costs):
    """Result rows of measures: name → (ACU, seconds a text, tokens through the model a text)."""
    kinds = ("acu", "seconds_per_text", "token_passes")
    empty = {"masking_ratio": None, "detail": None, "low": None, "high": None, "n": 100}
    return [
        {"kind": kind, "measure": name, "value": value, **empty}
        for name, values in costs.items()
        for kind, value in zip(kinds, values, strict=True)
    ]


def test_a_budget_takes_the_most_faithful_measure_that_fits_by_the_texts_length(run):
    # 4 words and 2 special tokens; each curve is 11 predictions, and five random ones stand beside the text's own.
    # leave-one-out takes Σ (4 − floor(4·k/10) + 1) = 36 passes along the curve, grad-l2 30, beam 10·4·3/2 + 1 = 61.
    texts = run.classifier().encode(["good", "good film story plot"])
    rows = rows_with({"loo-signed": (0.5, 0.2, 100), "grad-l2": (0.3, 0.1, 100), "beam": (0.6, 1.0, 100)})
    tokens = int(texts.lengths[1])
    cost = {"loo-signed": 0.002 * (36 + 66) * tokens, "grad-l2": 0.001 * (30 + 66) * tokens}
    cost["beam"] = 0.01 * (61 + 66) * tokens
    for budget, expected in ((cost["beam"], "beam"), (cost["loo-signed"], "loo-signed"), (cost["grad-l2"], "grad-l2")):
        chosen, why = within_budget(rows, texts, budget * 1.0001, "run")
        assert chosen == expected
        assert why.startswith(f"{expected} explains each text in about {cost[expected]:.2g} s")
        passed_over = f"beam is more faithful but would take about {cost['beam']:.2g} s."
        assert (why.endswith("it is the most faithful measure.")) == (expected == "beam")
        assert (passed_over in why) == (expected != "beam")
    with pytest.raises(InputError, match=rf"fastest, grad-l2, takes about {cost['grad-l2']:.2g} s .*{tokens} tokens"):
        within_budget(rows, texts, cost["grad-l2"] * 0.999, "run")


def test_a_budget_without_measurements_or_beside_a_measure_is_refused_with_advice(run):
    with pytest.raises(InputError, match=r"Run `faithmeter measure .*` first.*--measure"):
        explain(run.path, ["good film"], budget=1.0)
    with pytest.raises(InputError, match="a budget or a measure, not both"):
        explain(run.path, ["good film"], budget=1.0, measure="loo-signed")


def test_the_command_line_says_what_a_budget_chose(measured, faithmeter):
    works = {row["measure"]: row["value"] for row in measured.results if row["kind"] == "token_passes"}
    # four words and two special tokens, 36 and 30 passes as above
    assert works["loo-abs"] == works["loo-signed"] == 36 * 6
    assert works["grad-l2"] == 30 * 6
    code, printed = faithmeter("explain", measured.path, "good film story plot", "--budget", "1000")
    assert (code, "it is the most faithful measure" in printed) == (0, True)
    code, printed = faithmeter("explain", measured.path, "good film story plot", "--budget", "1e-9")
    assert (code, "No measure fits into 1e-09 s" in printed) == (2, True)
    explained = explain(measured.path, ["good film story plot"], budget=1000.0)[0]
    assert explained.measure == explain(measured.path, ["good film story plot"])[0].measure


def test_a_runs_model_computes_where_the_environment_says(run, monkeypatch):
    assert run.classifier().device == chosen_device()
    monkeypatch.setenv("FAITHMETER_DEVICE", "meta")
    assert run.classifier().device.type == "meta"
    monkeypatch.setenv("FAITHMETER_DEVICE", "cpu")
    assert run.classifier().device.type == "cpu"


def test_a_gpu_is_taken_where_there_is_one(monkeypatch):
    monkeypatch.delenv("FAITHMETER_DEVICE", raising=False)
    for there, device in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert chosen_device().type == device


@pytest.mark.parametrize("named", ["nowhere", "cuda:99"])
def test_a_device_that_torch_does_not_have_is_refused(named, monkeypatch):
    monkeypatch.setenv("FAITHMETER_DEVICE", named)
    with pytest.raises(InputError, match=rf"FAITHMETER_DEVICE is '{named}'.*such as cpu"):
        chosen_device()
