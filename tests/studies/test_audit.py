"""The audit: every judge on a small trained run, resumable, and whether they agree."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from conftest import made_once

from faithmeter import (
    AuditOptions,
    DataSpec,
    InputError,
    MeasureOptions,
    Run,
    TrainingOptions,
    audit,
    check,
    measure,
    train,
)
from faithmeter import report as write_report
from faithmeter.files import write_json
from faithmeter.importance.measure import of_function
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.judges import table as judges_table
from faithmeter.judges.fidelity import fidelity
from faithmeter.judges.judge import By, Judge, Need, SectionData, ShownColumn
from faithmeter.judges.known_token import known_token_splits
from faithmeter.judges.table import JUDGES
from faithmeter.reports import audit as sections
from faithmeter.runs import shards
from faithmeter.runs.results import find, rows_of
from faithmeter.studies import audit as auditing
from faithmeter.studies import judgement_rows
from faithmeter.studies.faithfulness_rows import pool
from faithmeter.studies.judgement_rows import drift_points, read_judgements
from faithmeter.studies.report import _repetitions, commands_of

MEASURES = ("grad-l2", "x-grad-signed", "x-grad-abs", "loo-signed", "attention")
CHEAP = AuditOptions(("erasure",), MEASURES, rows=12)


@pytest.fixture
def run(checked_toy, tmp_path):
    return Run(shutil.copytree(checked_toy, tmp_path / "run"))


def _audit_toy(path: Path) -> None:
    measure(path, MeasureOptions(measures=MEASURES, rows=20, random_runs=2))
    audit(path, AuditOptions(measures=MEASURES, rows=12, rationales="reason"))
    dear = AuditOptions(("adversarial",), measures=MEASURES, rows=12, adversary_steps=15)
    assert not (path / "audit" / "adversarial").exists()  # only where it is named
    assert not (path / "audit" / "fidelity-attacked").exists()
    audit(path, AuditOptions(("fidelity-attacked",), measures=MEASURES, rows=12, budget=0.5))
    audit(path, dear)


@pytest.fixture(scope="module")
def audited(checked_toy, tmp_path_factory):
    def copy_and_audit(folder: Path) -> None:
        _audit_toy(shutil.copytree(checked_toy, folder / "run"))

    return Run(made_once(tmp_path_factory, "audited", copy_and_audit) / "run")


def test_every_judge_judges_every_measure_that_it_can(audited):
    rows = audited.results
    for kind, judged in {
        "audit_erasure_sufficiency": {*MEASURES, "random"},
        "audit_insertion_insertion": {*MEASURES, "random"},
        "audit_sparsity_held": {*MEASURES, "random"},
        "audit_fidelity_masked_until_flip": {*MEASURES, "random"},
        "audit_fidelity-attacked_masked_until_flip": {*MEASURES, "random"},
        "audit_fidelity-attacked_flip_outside": {*MEASURES, "random"},
        "audit_known-token_overlap": {*MEASURES, "random"},
        "audit_plausibility_average_precision": {*MEASURES, "random"},
        "audit_randomisation_cascading": set(MEASURES),
        "audit_drift_drift": {*MEASURES, "random"},
        "audit_random-weights_top_overlap": set(MEASURES),
        "audit_adversarial_rank_change": {"grad-l2", "x-grad-signed", "x-grad-abs"},
    }.items():
        found = rows_of(rows, kind)
        assert {row["measure"] for row in found} >= judged, kind
        assert all(row["n"] <= 12 and row["over"] == "observations" for row in found)
    assert find(rows, "audit_known-token_accuracy")["value"] > 0.9


def test_a_faithful_measure_wins_by_the_judges_that_know_the_answer(audited):
    rows = audited.results
    for judge in ("known-token_overlap", "plausibility_average_precision", "erasure_comprehensiveness"):
        found, chance = (find(rows, f"audit_{judge}", name)["value"] for name in ("loo-signed", "random"))
        assert found > chance + 0.1, judge


def test_attacked_texts_are_explained_and_masked_as_they_are_after_the_attack(audited):
    stored = pyarrow.parquet.read_table(audited.path / "audit" / "fidelity-attacked" / "attacked.parquet").to_pylist()
    classifier, test = audited.classifier(), audited.data().test
    assert {one["row"] for one in stored} == set(read_judgements(audited, "fidelity")["loo-signed"]["row"].tolist())
    assert any(one["attacked"] != test["text"][one["row"]] for one in stored)
    share = np.mean([one["succeeded"] for one in stored])
    assert find(audited.results, "audit_fidelity-attacked_beaten")["value"] == pytest.approx(share)
    stored.sort(key=lambda one: one["row"])
    encoded = classifier.encode([one["attacked"] for one in stored])
    batch = dataclasses.replace(encoded.batch(range(12)), rows=torch.tensor([one["row"] for one in stored]))
    importance = IMPORTANCE_MEASURES["loo-signed"].explain(classifier, batch, classifier.predict(encoded).argmax(-1), 0)
    expected = fidelity(classifier, batch, importance)["masked_until_flip"]
    found = read_judgements(audited, "fidelity-attacked")["loo-signed"]["masked_until_flip"]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_attacks_of_other_settings_are_not_mixed_and_those_of_a_stopped_audit_are_kept(run, monkeypatch):
    options = AuditOptions(("fidelity-attacked",), ("grad-l2",), rows=4, budget=0.5)
    audit(run.path, options)
    with pytest.raises(InputError, match="another attacks and budget"):
        audit(run.path, dataclasses.replace(options, attacks=("delete",), budget=0.3))
    monkeypatch.setattr(auditing, "attack_texts", None)  # they are there
    audit(run.path, dataclasses.replace(options, measures=("loo-signed",)))
    assert "--attacks replace,characters --budget 0.5" in " ".join(commands_of(run))
    with pytest.raises(InputError, match="no attack 'erase'"):
        AuditOptions(attacks=("erase",))


def test_the_judges_are_compared_with_each_other_and_with_the_masking_curves(audited):
    pairs = {row["detail"]: row for row in rows_of(audited.results, "audit_agreement")}
    assert "masking: ACU | erasure: comprehensiveness" in pairs
    assert all(row["n"] >= 4 and -1 <= row["low"] <= row["high"] <= 1 for row in pairs.values())


def test_the_report_has_a_section_for_each_judge(audited, tmp_path):
    files = write_report([audited.path], tmp_path / "report", formats=("html", "csv"), examples=False)
    page = files[0].read_text()
    for title in ("Sufficiency and comprehensiveness", "A known token", "Fresh weights", "Do the judges agree?"):
        assert title in page
    assert {"erasure.csv", "agreement.csv"} <= {file.name for file in files}


def test_an_audit_that_was_stopped_goes_on_and_ends_in_the_same_rows(run, tmp_path, monkeypatch):
    other = Run(shutil.copytree(run.path, tmp_path / "other"))
    monkeypatch.setattr(auditing, "TOKENS_AT_ONCE", 32)
    whole = audit(other.path, CHEAP).results
    done = []
    write = shards.write_bytes

    def failing(path, content):
        if len(done) == 5:
            raise OSError("stopped")
        done.append(path)
        write(path, content)

    monkeypatch.setattr(shards, "write_bytes", failing)
    with pytest.raises(OSError, match="stopped"):
        audit(run.path, CHEAP)
    monkeypatch.setattr(shards, "write_bytes", write)
    times = {path: path.stat().st_mtime_ns for path in done}
    assert audit(run.path, CHEAP).results == whole
    assert {path: path.stat().st_mtime_ns for path in done} == times


def test_rows_do_not_depend_on_how_the_work_is_cut(run, tmp_path, monkeypatch):
    other = Run(shutil.copytree(run.path, tmp_path / "other"))
    whole = audit(run.path, CHEAP)
    monkeypatch.setattr(auditing, "TOKENS_AT_ONCE", 16)
    cut = audit(other.path, CHEAP)
    for name, columns in read_judgements(whole, "erasure").items():
        for column, values in columns.items():
            np.testing.assert_allclose(read_judgements(cut, "erasure")[name][column], values, atol=1e-5)


def test_other_settings_are_not_mixed_and_a_judge_can_be_added(run):
    audit(run.path, CHEAP)
    with pytest.raises(InputError, match="another rows"):
        audit(run.path, AuditOptions(("erasure",), MEASURES, rows=5))
    audit(run.path, AuditOptions(("sparsity",), MEASURES, rows=5))
    kinds = {row["kind"] for row in run.results}
    assert {"audit_erasure_sufficiency", "audit_sparsity_held", "performance"} <= kinds


def test_the_numbers_of_two_in_distribution_tests_are_not_mixed_and_other_judges_do_not_mind(run):
    audit(run.path, AuditOptions(("erasure", "sparsity"), ("grad-l2",), rows=4))
    check(run.path, rows=40)
    with pytest.raises(InputError, match="another in_distribution"):
        audit(run.path, AuditOptions(("erasure",), ("loo-signed",), rows=4))
    audit(run.path, AuditOptions(("sparsity",), ("loo-signed",), rows=4))


def test_the_known_token_model_of_an_adversarial_training_is_trained_without_attacks(run, monkeypatch):
    asked = []

    def spied(classifier, train, validation, config, **_):
        asked.append(config.robust)
        raise KeyboardInterrupt

    stored = json.loads((run.path / "config.json").read_text())
    stored["training"]["robust"] = ["vat", "adversarial"]
    (run.path / "config.json").write_text(json.dumps(stored))
    monkeypatch.setattr(auditing, "fine_tune", spied)
    with pytest.raises(KeyboardInterrupt):
        audit(run.path, AuditOptions(("known-token",), ("grad-l2",), rows=4))
    assert asked == [("vat",)]


def test_on_the_known_token_task_the_runs_own_model_is_judged_by_its_own_token(write, tmp_path, monkeypatch):
    words = np.random.default_rng(0).choice(["a", "film", "plot", "was"], size=(160, 4))
    (tmp_path / "data" / "sst2").mkdir(parents=True)
    for name, part in (("train", words[:120]), ("validation", words[120:])):
        write(f"data/sst2/{name}.jsonl", [{"sentence": " ".join(row), "label": 0} for row in part])
    data = DataSpec(task="sst2-known-token", data_dir=str(tmp_path / "data"))
    options = TrainingOptions(strategy="plain", epochs=12, learning_rate=2e-3, batch_size=8, curriculum=False)
    run = train(tmp_path / "known", data, "tiny", options)
    monkeypatch.setattr(auditing, "fine_tune", None)  # no other model is trained

    def position(_classifier, batch, _targets, _seed):
        return torch.arange(batch.maskable.shape[1]).expand(batch.maskable.shape).float()

    audit(run.path, AuditOptions(("known-token",), ("loo-signed", of_function(position)), rows=20))
    rows = run.results
    assert find(rows, "audit_known-token_accuracy")["value"] == find(rows, "performance", ratio=0.0)["value"] == 1
    assert find(rows, "audit_known-token_overlap", "position")["value"] == 1  # the last word, of each text
    # a model may read one of the two words, and answer the other where it is not there
    assert find(rows, "audit_known-token_overlap", "loo-signed")["value"] >= 0.4
    assert find(rows, "audit_known-token_overlap", "random")["value"] < 0.4
    with pytest.raises(InputError, match="at the end of each text"):
        audit(run.path, AuditOptions(("known-token",), ("loo-signed",), rows=20, place="anywhere"))


def test_a_known_token_model_that_was_begun_with_other_options_is_not_gone_on_with(run, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(auditing, "fine_tune", stopped)
    with pytest.raises(KeyboardInterrupt):
        audit(run.path, AuditOptions(("known-token",), ("grad-l2",), rows=4))
    with pytest.raises(InputError, match="another place"):
        audit(run.path, AuditOptions(("known-token",), ("grad-l2",), rows=4, place="anywhere"))


def test_changed_marks_are_not_mixed_with_what_was_judged_by_the_old_ones(run):
    audit(run.path, AuditOptions(("plausibility",), ("grad-l2",), rows=4, rationales="reason"))
    file = run.judgements / "plausibility" / "settings.json"
    write_json(file, {**json.loads(file.read_text()), "marks": "others"})
    with pytest.raises(InputError, match="another marks"):
        audit(run.path, AuditOptions(("plausibility",), ("loo-signed",), rows=4, rationales="reason"))


def test_measures_that_no_judge_can_judge_or_that_bear_a_name_of_another_are_refused(run):
    with pytest.raises(InputError, match="adversarial can judge none of these measures"):
        audit(run.path, AuditOptions(("adversarial",), ("loo-signed",)))
    ours = dataclasses.replace(IMPORTANCE_MEASURES["loo-signed"], name="grad-l2")
    with pytest.raises(InputError, match="name of another measure"):
        audit(run.path, AuditOptions(("sparsity",), (ours,)))
    for name in ("../up", "model"):
        with pytest.raises(InputError, match="cannot be the name"):
            audit(run.path, AuditOptions(("sparsity",), (dataclasses.replace(ours, name=name),)))


def test_what_is_judged_is_kept_when_a_later_judge_fails(run, monkeypatch):
    monkeypatch.setattr(auditing, "known_token_splits", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        audit(run.path, AuditOptions(("sparsity", "known-token"), ("grad-l2",), rows=4))
    assert rows_of(run.results, "audit_sparsity_held", "grad-l2")


def test_a_later_measurement_is_compared_with_what_was_judged_before(run):
    audit(run.path, CHEAP)
    assert not any("masking" in row["detail"] for row in rows_of(run.results, "audit_agreement"))
    measure(run.path, MeasureOptions(measures=MEASURES, rows=8, random_runs=1))
    assert any("masking" in row["detail"] for row in rows_of(run.results, "audit_agreement"))


def test_texts_whose_word_was_cut_away_are_not_learnt_from(run):
    given = run.data()
    texts = [f"{'film ' * 600}{text}" if row % 2 else text for row, text in enumerate(given.test["text"])]
    long = given.test.remove_columns("text").add_column("text", texts)
    long = known_token_splits(dataclasses.replace(given, test=long), place="end", seed=0).test
    kept = auditing._with_the_word(run.classifier(), long)
    assert len(kept) == -(-len(long) // 2)
    assert not kept.truncated


def test_the_report_names_the_command_of_each_judge(audited):
    commands = [line for line in commands_of(audited) if line.startswith("faithmeter audit")]
    assert len(commands) == 11
    assert any("--judges known-token" in line and "--place end" in line for line in commands)


def test_texts_in_which_nothing_is_marked_are_not_judged(run):
    audit(run.path, AuditOptions(("plausibility",), ("loo-signed",), rows=10_000, rationales="reason"))
    table = pyarrow.parquet.read_table(run.judgements / "plausibility" / "loo-signed" / "00000.parquet")
    assert not np.isnan(table["average_precision"].to_numpy()).any()


@pytest.fixture(scope="module")
def other_seed(trained_toy, tmp_path_factory):
    """The same training with another seed."""
    config = Run(trained_toy).config
    options = TrainingOptions(epochs=6, curriculum=False, learning_rate=2e-3, batch_size=16, seed=1)
    return train(tmp_path_factory.mktemp("other") / "run", config.data, config.model, options)


def test_another_seed_is_compared_where_it_is_named_and_random_weights_are_less_alike(run, other_seed):
    given = AuditOptions(("random-weights", "other-seed"), MEASURES, rows=80, other=other_seed.path)
    found = audit(run.path, given).results
    assert find(found, "audit_other-seed_same_answer", "loo-signed")["value"] > 0.8
    alike, untrained = (
        find(found, f"audit_{judge}_rank_correlation", "loo-signed", detail=detail)["value"]
        for judge, detail in (("other-seed", "same answer"), ("random-weights", None))
    )
    assert alike > untrained + 0.05
    assert f"--other {other_seed.path}" in " ".join(commands_of(run))


def test_only_another_seed_of_the_same_training_is_another_seed(run, other_seed, tmp_path):
    asked = AuditOptions(("other-seed",), ("grad-l2",), rows=4)
    with pytest.raises(InputError, match="--other RUN2"):
        audit(run.path, asked)

    def refused(change, match):
        path = Path(shutil.copytree(other_seed.path, tmp_path / match[:5].strip()))
        change(path)
        with pytest.raises(InputError, match=match):
            audit(run.path, dataclasses.replace(asked, other=path))

    def in_config(**given):
        def change(path):
            stored = json.loads((path / "config.json").read_text())
            stored["training"] |= given.pop("training", {})
            (path / "config.json").write_text(json.dumps(stored | given))

        return change

    def no_mask(path):
        file = path / "model" / "tokenizer_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "mask_token": "film"}))
        file.with_name(".tokenizer_config.json.sum").unlink()  # it was another from the start

    refused(in_config(fingerprint="0"), "data than")
    refused(in_config(labels=["negative", "positives"]), "labels than")
    refused(in_config(model="small-2"), "model than")
    refused(in_config(vectors="vectors.txt"), "word vectors than")
    refused(in_config(training={"strategy": "plain"}), "training than")
    refused(in_config(training={"seed": 0}), "same seed")
    refused(no_mask, "tokenises the texts differently")
    with pytest.raises(InputError, match="same weights"):
        audit(run.path, dataclasses.replace(asked, other=run.path))
    assert not (run.judgements / "other-seed").exists()


def test_what_two_other_runs_say_is_not_mixed_and_a_moved_one_is_still_the_same(run, other_seed, tmp_path):
    asked = AuditOptions(("other-seed",), ("grad-l2",), rows=4, other=other_seed.path)
    audit(run.path, asked)
    moved = shutil.copytree(other_seed.path, tmp_path / "moved")
    audit(run.path, dataclasses.replace(asked, measures=("loo-signed",), other=moved))
    file = run.judgements / "other-seed" / "settings.json"
    write_json(file, {**json.loads(file.read_text()), "other_weights": "others"})
    with pytest.raises(InputError, match="another other_weights"):
        audit(run.path, asked)


def test_drift_that_was_stopped_goes_on_on_the_same_map_and_the_report_needs_no_model(run, tmp_path, monkeypatch):
    other = Run(shutil.copytree(run.path, tmp_path / "other"))
    asked = AuditOptions(("drift",), ("grad-l2", "loo-signed"), rows=12)
    monkeypatch.setattr(auditing, "TOKENS_AT_ONCE", 32)
    whole, done, write = audit(other.path, asked).results, [], shards.write_bytes

    def failing(path, content):
        if len(done) == 3:
            raise OSError("stopped")
        done.append(path)
        write(path, content)

    monkeypatch.setattr(shards, "write_bytes", failing)
    with pytest.raises(OSError, match="stopped"):
        audit(run.path, asked)
    monkeypatch.setattr(shards, "write_bytes", write)
    monkeypatch.setattr(auditing, "fit_space", lambda *_, **__: pytest.fail("fitted again"))
    assert audit(run.path, asked).results == whole
    assert not [row for row in whole if "map" in row["kind"]]
    points = drift_points(run)
    assert list(points.places) == ["random", "loo-signed"]  # what would be used, as nothing was measured
    assert points.places["random"].shape[:2] == points.outside["random"].shape == (12, 11)
    # whole and fully masked texts lie where they lie, whoever masked them
    for step in (0, 10):
        np.testing.assert_allclose(*(places[:, step] for places in points.places.values()), atol=1e-5)
    shutil.rmtree(run.model_folder)
    (page,) = write_report([run.path], tmp_path / "report", examples=False)
    text = page.read_text()
    assert "How far masked texts move" in text
    assert "drift-map" in text


def test_bad_names_are_refused_with_what_there_is(run):
    with pytest.raises(InputError, match=r"no judge 'erasur'.*erasure"):
        AuditOptions(("erasur",))
    with pytest.raises(InputError, match="end or anywhere"):
        AuditOptions(place="middle")
    with pytest.raises(InputError, match="--rationales COLUMN"):
        audit(run.path, AuditOptions(("plausibility",), ("grad-l2",)))
    with pytest.raises(InputError, match="'nothing'"):
        audit(run.path, AuditOptions(("plausibility",), ("grad-l2",), rationales="nothing"))


def test_several_audited_runs_are_pooled(run, tmp_path):
    other = Run(shutil.copytree(run.path, tmp_path / "other"))
    for one in (run, other):
        measure(one.path, MeasureOptions(measures=("grad-l2", "loo-signed"), rows=8, random_runs=1))
        audit(one.path, AuditOptions(("randomisation",), ("grad-l2", "loo-signed"), rows=3))
    pooled = rows_of(pool([run, other]), "audit_randomisation_cascading", "grad-l2")
    assert len(pooled) == len(rows_of(run.results, "audit_randomisation_cascading", "grad-l2")) > 2
    assert {row["over"] for row in pooled} == {"seeds"}


def test_runs_that_were_audited_otherwise_are_not_pooled_in_a_report(run, tmp_path):
    other = Run(shutil.copytree(run.path, tmp_path / "other"))
    stored = json.loads((other.path / "config.json").read_text())
    stored["training"]["seed"] = 1
    (other.path / "config.json").write_text(json.dumps(stored))
    audit(run.path, AuditOptions(("sparsity",), ("grad-l2",), rows=4))
    audit(other.path, AuditOptions(("sparsity",), ("grad-l2",), rows=4))
    assert len(_repetitions([run, other])) == 1
    shutil.rmtree(other.judgements)
    audit(other.path, AuditOptions(("sparsity",), ("grad-l2",), rows=5))
    assert len(_repetitions([run, other])) == 2


def test_the_command_prints_tables_and_what_they_can_show(faithmeter, run):
    code, printed = faithmeter("audit", run.path, "--judges", "erasure", "--measures", "grad-l2", "--rows", 4)
    assert code == 0
    assert "Sufficiency and comprehensiveness" in printed
    assert "grad-l2" in printed
    assert "cannot" in printed
    code, printed = faithmeter("audit", run.path, "--judges", "nobody")
    assert (code, "There is no judge" in printed) == (2, True)


def test_a_row_is_all_that_a_judge_needs_to_judge_and_to_be_shown(run, monkeypatch):
    section = SectionData(
        "How many words", By.FORM, ("It counts. It cannot show more.",), (ShownColumn("words", "words counted"),),
        table="Words of the texts", caption="Words.",
    )  # fmt: skip
    counted = Judge(
        "length",
        3,
        lambda _, batch, __: {"words": batch.maskable.sum(dim=1).double().numpy()},
        {},
        section,
        settings=("place",),
    )
    for module in (judges_table, auditing, judgement_rows, sections):
        monkeypatch.setattr(module, "JUDGES", {**JUDGES, "length": counted})
    rows = audit(run.path, AuditOptions(("length",), ("grad-l2",))).results
    stored = read_judgements(run, "length")["grad-l2"]
    words = [len(run.data().test["text"][row].split()) for row in stored["row"]]  # each is one token of this model
    assert stored["words"].tolist() == words
    assert find(rows, "audit_length_words", "grad-l2")["value"] == pytest.approx(sum(words) / 3)
    (shown,) = sections.audit_sections(rows)
    assert (shown.title, shown.tables[0].columns) == ("How many words", ("measure", "words counted"))
    with pytest.raises(InputError, match="another place"):
        audit(run.path, AuditOptions(("length",), ("grad-l2",), place="anywhere"))


def test_whatever_a_row_asks_for_is_there():
    assert {*auditing._CHECKED, *auditing._MADE} == set(Need)
    for judge in JUDGES.values():
        assert judge.section.layout in sections.LAYOUTS
        assert set(judge.settings) <= {field.name for field in dataclasses.fields(AuditOptions)}
        for remark in judge.section.remarks:
            assert f"{{{remark.column}}}" in " ".join(judge.section.words)
