"""Reports: what they say follows from the rows, and nothing in them can do anything."""

import csv
import html
import json
import shlex
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from conftest import read, sentiment_rows
from scipy import stats

from faithmeter import DataSpec, InputError, Run, TrainingOptions, check, measure, report, train
from faithmeter.explaining.explanation import explain_text
from faithmeter.explaining.options import ExplainOptions
from faithmeter.files import write_jsonl
from faithmeter.importance.table import IMPORTANCE_MEASURES, as_measure
from faithmeter.reports import card, figures, sentences
from faithmeter.reports.card import model_card
from faithmeter.reports.evidence import conclusion, evidence, trusted
from faithmeter.reports.formats import as_csv, as_html, as_latex, as_markdown, render_page
from faithmeter.reports.parts import Table
from faithmeter.reports.ranked import ranked_table
from faithmeter.reports.roar import Retrained, leaks, retrained_sections
from faithmeter.reports.roar import verdict as retraining_verdict
from faithmeter.runs import run as run_module
from faithmeter.runs.results import CHECKED_TEXTS, Result, find, most_faithful
from faithmeter.studies.measure import MeasureOptions
from faithmeter.studies.report import _examples, commands_of
from faithmeter.studies.roar.roar import RoarOptions, roar, synthetic_roar
from faithmeter.training import config as config_of_training
from faithmeter.training.strategy import STRATEGIES, Strategy

NASTY = "</script><img src=x onerror=alert(1)>\u202e"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    rows = sentiment_rows(400)
    for row in rows:
        row["label"] = f"{row['label']}<i>"
        row["text"] = f"{row['text']} {NASTY}"
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = TrainingOptions(epochs=6, curriculum=False, learning_rate=2e-3, batch_size=16)
    run = train(folder / "run", DataSpec(data=str(folder / "rows.jsonl")), "small", options)
    check(run.path)
    return measure(run.path, MeasureOptions(measures=("grad-l2", "loo-signed", "loo-abs"), rows=30, random_runs=2))


def row(kind, value, measure=None, ratio=None, low=None, high=None, over="observations", n=200):
    ends = {"low": low, "high": high, "over": over, "n": n}
    return {"kind": kind, "value": value, "metric": "", "measure": measure, "masking_ratio": ratio, **ends}


def rows_of(areas, p_value=1.0):
    """Rows of measures: name -> (ACU, low, high, distance behind the best with its interval)."""
    found = [row("check_p_value", p_value, ratio=k / 10) for k in range(11)]
    for name, (acu, low, high, behind) in areas.items():
        found += [row("acu", acu, name, low=low, high=high), row("racu", 2 * acu, name, low=2 * low, high=2 * high)]
        found += [row("acu_behind_best", behind[0], name, low=behind[1], high=behind[2])]
        found += [row("seconds_per_text", 0.1, name), row("walk_p_value", 1.0, name)]
    return found


BEST = {"loo-signed": (0.4, 0.3, 0.5, (0, 0, 0)), "beam": (0.39, 0.29, 0.5, (0.01, -0.02, 0.03))}
WORSE = {"grad-l2": (0.2, 0.1, 0.3, (0.2, 0.15, 0.25))}


def test_the_verdict_names_the_best_its_equals_and_those_behind():
    found = sentences.verdict(rows_of(BEST | WORSE))
    assert found[0] == "Use loo-signed to explain this model."
    assert any(line.startswith("beam cannot be told apart from it") for line in found)
    assert any("more faithful than grad-l2" in line and "0.20 (0.15–0.25)" in line for line in found)
    assert found[-1].startswith("Nothing that was tested speaks against judging loo-signed by masking here")


def lettered(letters, differences, cross_fitted=()):
    """Rows of comparisons: measure -> letters, and (first, second) -> the first's lead."""
    found = [{**row("best_set", float("a" in own), name), "detail": own} for name, own in letters.items()]
    for (first, second), lead in differences.items():
        found.append({**row("acu_difference", lead, first, low=lead - 0.05, high=lead + 0.05), "detail": second})
        found.append({**row("acu_difference", -lead, second, low=-lead - 0.05, high=-lead + 0.05), "detail": first})
    return found + [
        {**row("acu_cross_fitted", 0.37, name, low=0.28, high=0.46), "detail": None} for name in cross_fitted
    ]


PAIRS = {("loo-signed", "beam"): 0.01, ("loo-signed", "grad-l2"): 0.2, ("beam", "grad-l2"): 0.19}


def test_the_verdict_names_the_set_that_may_be_best_and_what_the_winner_does_elsewhere():
    rows = rows_of(BEST | WORSE) + lettered({"loo-signed": "a", "beam": "a", "grad-l2": "b"}, PAIRS, ["loo-signed"])
    said = " ".join(sentences.verdict(rows))
    assert "Measures that may be the best: loo-signed and beam; the other one is surely not (with 95 %" in said
    assert "on texts that did not, ACU is 0.37 (0.28–0.46), beside the 0.40 above." in said
    # ACU is a mean over the ratios, and a point a hundredth
    assert (
        "averaged over all masking ratios, masking what it calls important costs about 40 points of performance more"
        in said
    )
    assert sentences.alike(rows) == ["beam"]
    table = ranked_table(rows)
    assert table.columns[1] == "alike"
    assert [cells[:2] for cells in table.rows] == [["loo-signed", "a"], ["beam", "a"], ["grad-l2", "b"]]
    assert table.title.endswith("measures that share a letter cannot be told apart")


def test_letters_decide_what_is_alike_and_a_sole_best_is_said_to_be_one():
    rows = rows_of(BEST | WORSE) + lettered({"loo-signed": "a", "beam": "b", "grad-l2": "c"}, PAIRS)
    assert sentences.alike(rows) == []  # although the interval of the difference to beam holds 0
    assert any("is more cautious than the test of pairs" in line for line in sentences.verdict(rows))
    said = " ".join(sentences.verdict(rows))
    assert "It is the only one of 3 measures that may be the best (with 95 % confidence)." in said
    assert "did not choose" not in said
    overlapping = rows_of(BEST | WORSE) + lettered({"loo-signed": "a", "beam": "ab", "grad-l2": "b"}, PAIRS)
    assert sentences.alike(overlapping) == ["beam"]


def test_measures_that_were_rejected_are_not_among_those_that_may_be_best():
    rows = [r for r in rows_of(BEST | WORSE) if (r["kind"], r["measure"]) != ("walk_p_value", "loo-signed")]
    rows += [row("walk_p_value", 0.001, "loo-signed")]
    rows += lettered({"loo-signed": "a", "beam": "b", "grad-l2": "c"}, PAIRS)
    said = " ".join(sentences.verdict(rows))
    assert "Use beam" in said
    assert "It is the only one of 2 measures that may be the best, of those that were not rejected" in said
    assert "Not to be used: loo-signed. The texts that it masks are out-of-distribution" in said
    table = ranked_table(rows)
    assert [cells[0] for cells in table.rows] == ["beam", "grad-l2", "loo-signed"]  # the rejected one last
    assert [cells[-2] for cells in table.rows] == ["not rejected (p 1.000)"] * 2 + ["rejected (p 0.001)"]


def test_an_older_run_has_no_letters_and_no_sentence_about_them():
    table = ranked_table(rows_of(BEST | WORSE))
    assert "alike" not in table.columns
    assert "letter" not in table.title
    assert not any("may be the best" in line for line in sentences.verdict(rows_of(BEST | WORSE)))


def test_a_model_that_does_not_understand_masks_gets_no_recommendation():
    found = sentences.verdict(rows_of(BEST, p_value=0.0001))
    assert found[0].startswith("No explanation of this model can be judged")


@pytest.mark.parametrize(
    ("validation", "tested", "p_value", "expected"),
    [(100, 100, 1.0, True), (99, 500, 1.0, None), (500, 99, 1.0, None), (20, 20, 0.0001, False)],
)
def test_few_texts_may_speak_against_masking_but_not_for_it(validation, tested, p_value, expected):
    texts = zip(CHECKED_TEXTS, (validation, tested), strict=True)
    rows = rows_of(BEST, p_value) + [row(kind, value) for kind, value in texts]
    assert trusted(rows) is expected
    assert trusted(rows_of(BEST, p_value)) is (p_value == 1.0)  # of earlier runs the numbers are not known
    assert any(line.startswith("Nothing that was tested speaks") for line in sentences.verdict(rows)) == (
        expected is True
    )
    few = [line for line in sentences.cautions(rows, 3000) if line.startswith("Too few texts for a verdict")]
    assert len(few) == (expected is None)
    assert conclusion(rows).startswith(
        {True: "Masking may be trusted", None: "Too few texts", False: "Masking cannot be trusted"}[expected]
    )


def test_measures_that_lead_out_of_distribution_are_named_where_the_check_gives_no_verdict_too():
    rows = [r for r in rows_of(BEST) if (r["kind"], r["measure"]) != ("walk_p_value", "beam")]
    rows += [row("walk_p_value", 0.001, "beam"), row("share_out_of_distribution", 0.2, "beam", 0.5)]
    rows += [row(kind, 64) for kind in CHECKED_TEXTS]
    assert any("beam up to 20 % (at 50 % masked)" in line for line in sentences.cautions(rows, 64))


def test_a_measure_that_may_be_no_better_than_random_is_not_recommended():
    found = sentences.verdict(rows_of({"grad-l2": (0.02, -0.01, 0.05, (0, 0, 0))}))
    assert found[0].startswith("No importance measure beats random masking")
    assert sentences.verdict([])[0].startswith("Nothing has been measured")


def test_cautions_say_what_may_mislead():
    rows = rows_of(BEST)
    rows = [r for r in rows if (r["kind"], r["measure"]) != ("walk_p_value", "loo-signed")]
    rows += [row("walk_p_value", 0.001, "loo-signed"), row("share_out_of_distribution", 0.12, "loo-signed", 0.7)]
    rows += [row("performance", 0.5, ratio=0.0), row("majority", 0.6)]
    found = " ".join(sentences.cautions([{**r, "n": 10} if r["measure"] == "beam" else r for r in rows], 500))
    for expected in (
        "loo-signed up to 12 % (at 70 % masked)",
        "another training may rank differently",
        "few texts: beam on 10.",
        "no better than the class majority",
        "fitted on 500 texts",
    ):
        assert expected in found
    assert not any(
        "another training" in line for line in sentences.cautions([{**r, "over": "seeds"} for r in rows], 2000)
    )


def test_a_lead_over_the_majority_that_may_be_chance_is_cautioned_and_an_older_run_is_not_accused():
    rows = [*rows_of(BEST), row("performance", 0.6, ratio=0.0), row("majority", 0.55)]
    said = "on so few test texts"
    assert not any(said in line for line in sentences.cautions(rows, 2000))  # not known of an older run
    for p_value, expected in ((0.04, False), (0.06, True)):
        found = sentences.cautions([*rows, row("majority_p_value", p_value)], 2000)
        assert any(said in line for line in found) == expected


def test_of_equals_the_fastest_is_named():
    rows = rows_of(BEST)
    assert any(line.endswith("It is the fastest of them.") for line in sentences.verdict(rows))
    slower = [
        {**r, "value": 0.2} if (r["kind"], r["measure"]) == ("seconds_per_text", "loo-signed") else r for r in rows
    ]
    assert any(line.endswith("beam is the fastest of them.") for line in sentences.verdict(slower))


def test_what_does_not_itself_beat_random_is_not_called_as_good_however_fast_it_is():
    # on the few texts that both were measured on the difference may be 0, but its own area is surely below 0
    rows = rows_of(BEST | WORSE | {"x-grad-signed": (-0.03, -0.05, -0.001, (0.1, -0.3, 0.4))})
    rows = [
        {**r, "value": 0.01} if (r["kind"], r["measure"]) == ("seconds_per_text", "x-grad-signed") else r for r in rows
    ]
    assert sentences.equals(rows) == ["beam"]
    said = sentences.verdict(rows)
    (same,) = [line for line in said if "the difference may be chance" in line]
    assert same.startswith("beam cannot be told apart")
    assert same.endswith("It is the fastest of them.")
    (unproven,) = [line for line in said if "x-grad-signed" in line]
    assert unproven.endswith("was not shown to beat random masking: do not use in its place.")
    (ahead,) = [line for line in said if line.startswith("It is more faithful than")]
    assert ahead.startswith("It is more faithful than grad-l2;")


@pytest.mark.parametrize(("low", "beats"), [(0.01, False), (0.1, True)])
def test_each_of_the_equals_must_beat_random_as_one_of_all_that_were_tried(low, beats):
    # of three tried, 1.96 standard errors become 2.39: 0.2 − 2.39 / 1.96 · 0.19 < 0, and 0.2 − 1.22 · 0.1 > 0
    rows = rows_of(BEST | {"grad-l2": (0.2, low, 0.4, (0.2, -0.1, 0.5))})
    assert sentences.equals(rows) == (["beam", "grad-l2"] if beats else ["beam"])


def test_the_best_absolute_measure_is_named_only_where_it_beats_random():
    rows = rows_of({"loo-signed": BEST["loo-signed"], "grad-l2": (-0.02, -0.04, -0.01, (0.4, 0.3, 0.5))})
    rows += [row("masked_performance", value, "loo-signed", at) for at, value in ((0.0, 1), (0.5, 0.02), (1.0, 0.2))]
    (said,) = [line for line in sentences.verdict(rows) if "wrong classes" in line]
    assert said.endswith("Of the absolute measures, none was shown to beat random masking.")


def test_the_noise_of_the_baseline_is_told_of_the_measure_to_use():
    rows = [*rows_of(BEST), row("random_spread", 0.03, "random")]
    assert sentences.baseline_in_words(rows).endswith("one draw varies by 0.030 in ACU (standard deviation).")
    rows += [
        row("baseline_share", 0.9, "beam"),
        row("baseline_share", 0.4, "loo-signed"),
        row("draws_needed", 31, "loo-signed"),
    ]
    assert sentences.baseline_in_words(rows).endswith(
        "it is 40 % of the variance of loo-signed's ACU; with 31 draws (--random-runs) it would be less than a tenth."
    )
    assert "a single random draw" in sentences.baseline_in_words(rows_of(BEST))


def test_no_rejected_measure_is_called_the_best_of_the_absolute_ones():
    areas = {"loo-signed": BEST["loo-signed"], "grad-l2": WORSE["grad-l2"], "ig-abs": (0.15, 0.1, 0.2, (0.2, 0.1, 0.3))}
    fall = [row("masked_performance", value, "loo-signed", at) for at, value in ((0.0, 1), (0.5, 0.02), (1.0, 0.2))]
    for outside, end in (
        ((), "Of the absolute measures, grad-l2 is the most faithful: ACU 0.20 (0.10–0.30)."),
        (
            ("grad-l2",),
            "Of the absolute measures, ig-abs is the most faithful, of those not rejected: ACU 0.15 (0.10–0.20).",
        ),
        (
            ("grad-l2", "ig-abs"),
            "all that beat random masking were rejected: the texts that they mask are out-of-distribution.",
        ),
    ):
        rows = [
            {**r, "value": 0.001} if r["kind"] == "walk_p_value" and r["measure"] in outside else r
            for r in rows_of(areas)
        ]
        (said,) = [line for line in sentences.verdict(rows + fall) if "wrong classes" in line]
        assert said.endswith(end)


NOTHING = {"grad-l2": (0.02, -0.01, 0.05, (0, 0, 0)), "loo-abs": (0.03, -0.02, 0.08, (0, 0, 0))}


def test_explanations_are_doubted_in_the_words_of_the_verdict():
    for rows in ([], rows_of({}), rows_of({}, p_value=0.0001), rows_of(BEST, p_value=0.0001), rows_of(NOTHING)):
        assert sentences.recommended(rows) is None
        assert sentences.doubt(rows) == sentences.doubt(rows, "loo-signed") == sentences.verdict(rows)[0]
    # what the check has found counts before there is anything measured, and then no numbers are below
    assert sentences.verdict(rows_of({}, p_value=0.0001))[0].startswith("No explanation of this model can be judged")
    assert not any("numbers below" in line for line in sentences.verdict(rows_of({}, p_value=0.0001)))
    rows = rows_of(BEST | {"grad-l2": NOTHING["grad-l2"]})
    assert sentences.recommended(rows) == "loo-signed"
    assert sentences.doubt(rows) is sentences.doubt(rows, "loo-signed") is sentences.doubt(rows, "beam") is None
    assert sentences.doubt(rows, "grad-l2").startswith(
        "grad-l2 was not shown to beat random masking on this model (ACU 0.02"
    )
    assert sentences.doubt(rows, "ig-abs").startswith("ig-abs was not measured on this model")


def test_a_signed_winner_that_pushes_to_wrong_classes_is_shown_beside_the_best_absolute_measure():
    rows = rows_of(BEST | WORSE)
    assert not any("wrong classes" in line for line in sentences.verdict(rows))
    rows += [
        row("masked_performance", value, "loo-signed", ratio) for ratio, value in ((0.0, 1), (0.5, 0.02), (1.0, 0.2))
    ]
    (said,) = [line for line in sentences.verdict(rows) if "wrong classes" in line]
    assert "falls to 0.02, below the 0.20 with everything masked" in said
    assert "grad-l2 is the most faithful: ACU 0.20" in said


def walked(rows, **p_values):
    """The same rows with other p-values of the texts that these measures mask."""
    return [
        {**r, "value": p_values[r["measure"]]} if r["kind"] == "walk_p_value" and r["measure"] in p_values else r
        for r in rows
    ]


def test_a_rejected_measure_is_not_recommended_and_is_said_to_be_so_first():
    rows = walked(rows_of(BEST | WORSE), **{"loo-signed": 0.001})
    assert sentences.recommended(rows) == "beam"
    first, second = sentences.verdict(rows)[:2]
    assert first.startswith("loo-signed has a larger ACU, but its masked texts are out-of-distribution")
    assert second == "Use beam to explain this model."
    assert "out-of-distribution" in sentences.doubt(rows, "loo-signed")
    # one that is rejected and behind changes nothing
    assert sentences.verdict(walked(rows_of(BEST | WORSE), **{"grad-l2": 0.001}))[0].startswith("Use loo-signed")


def test_where_every_measure_is_rejected_none_is_recommended_and_what_can_be_said_is():
    rows = walked(rows_of(BEST), **{"loo-signed": 0.001, "beam": 0.05})
    assert sentences.recommended(rows) is None
    first, second = sentences.verdict(rows)
    assert first.startswith("No importance measure can be recommended: the texts that each of them masks are out-of-")
    assert "loo-signed lowers performance most (ACU 0.40" in second


def masks(detail):
    return {**row("trained_on_masks", float(detail == "masked")), "detail": detail}


def test_the_check_of_a_model_trained_on_masks_is_said_to_be_a_check_of_the_test():
    rows = [*rows_of(BEST), masks("masked"), row("all_masked_p_value", 0.4), row("all_masked_excess_loss", 0.0)]
    rows.append(row("share_out_of_distribution", 0.04, "loo-signed", 0.5))
    lines = dict(evidence(rows, "loo-signed"))
    assert "the record of that training is complete" in lines["Known by construction"]
    assert "it checks the test, not the model" in lines["Tested, random masking"]
    assert "are out-of-distribution (unlike texts of any ratio) than by chance" in lines["Tested, this measure"]
    assert trusted(rows) is True
    # what it does with everything masked can contradict the record
    sure = {**row("all_masked_excess_loss", 2.0, low=1.5, high=2.5)}
    assert trusted([*rows_of(BEST), masks("masked"), sure]) is False
    assert trusted([*rows_of(BEST), masks("plain"), sure]) is True  # of a plain model nothing else is expected
    unsure = {**row("all_masked_excess_loss", 2.0, low=0.01, high=4.0)}
    assert trusted([*rows_of(BEST), masks("masked"), unsure]) is True
    assert trusted([*rows_of(BEST), masks("masked"), row("all_masked_p_value", 0.024)]) is False


def test_a_claim_makes_no_verdict():
    unmasked = [row("check_unmasked_p_value", 0.0001, ratio=0.1)]
    unmasked += [row("check_unmasked_share_out_of_distribution", 0.998, ratio=0.1)]
    rows = [*rows_of(BEST), masks("claimed"), *unmasked]
    assert trusted(rows) is None
    assert sentences.recommended(rows) is None
    assert "is a claim (--masked-before), and nothing that was tested bears it out" in sentences.verdict(rows)[0]
    lines = dict(evidence(rows))
    assert "its owner's claim" in lines["Known by construction"]
    assert "up to 99.8 % of the texts are out-of-distribution (at 10 % masked)" in lines["Tested, random masking"]
    assert sentences.recommended([*rows_of(BEST), masks("claimed")]) is None  # without that test as well
    like = [{**r, "value": 1.0 if r["kind"].endswith("p_value") else 0.03} for r in unmasked]
    assert sentences.recommended([*rows_of(BEST), masks("claimed"), *like]) == "loo-signed"


def test_what_the_test_can_find_stands_beside_what_it_found():
    rows = [*rows_of(BEST), masks("masked"), row("check_power_words", 0.99), row("check_power_shuffled", 0.4)]
    assert dict(evidence(rows))["What the test can find"] == (
        "The same test finds 99 % of texts with random words in half of the places, 40 % of texts with shuffled words."
    )


def test_every_measure_of_the_table_is_said_in_a_line():
    rows = [row("acu", 0.1, name) for name in IMPORTANCE_MEASURES if name != "random"]
    assert [name for name, _ in sentences.terms(rows)] == [name for name in IMPORTANCE_MEASURES if name != "random"]
    assert all(meaning.endswith(".") for _, meaning in sentences.terms(rows))
    assert sentences.terms([row("acu", 0.1, "my_own")]) == []


def test_the_front_holds_what_nothing_cheaper_beats():
    rows = []
    for name, seconds, acu in (("a", 1, 0.1), ("b", 2, 0.3), ("c", 3, 0.2), ("d", 4, 0.4)):
        rows += [row("seconds_per_text", seconds, name), row("acu", acu, name)]
    assert figures.cheapest_best(rows) == ["a", "b", "d"]


def test_tables_keep_their_cells_in_every_form():
    table = Table("t", "100 % & more", ("measure", "RACU_1"), [["a|b<i>", "=1+1"], ["x_y", "50 %"]])
    assert read(as_html(table)).text == "100 % & moremeasureRACU_1a|b<i>=1+1x_y50 %"
    lines = as_markdown(table).splitlines()
    assert lines == [
        "100 % & more",
        "",
        r"| measure | RACU\_1 |",
        "| --- | --- |",
        r"| a\|b\<i\> | =1+1 |",
        r"| x\_y | 50 % |",
    ]
    assert r"x\_y & 50 \% \\" in as_latex(table)
    assert r"\caption{100 \% \& more}" in as_latex(table)
    # a spreadsheet must not compute what a file brought
    assert list(csv.reader(as_csv(table).splitlines()))[1] == ["a|b<i>", "'=1+1"]


def test_the_page_is_whole_quiet_and_says_the_verdict_first(measured, tmp_path):
    (file,) = report([measured.path], tmp_path / "out")
    html = file.read_text()
    found = read(html)
    assert found.text.index("In short") < found.text.index("Which measure is faithful") < found.text.index("p-value")
    # nothing is fetched and nothing runs
    assert not {"script", "img", "link", "iframe", "object", "form"} & set(found.tags)
    assert not {name for name in found.attributes if name.startswith("on") or name in ("src", "srcset", "action")}
    assert "default-src 'none'" in html
    assert "<img src=x onerror=alert(1)>⟨U+202E⟩" in found.text  # the texts' own markup, as text
    assert "positive<i>" in found.text
    assert "\u202e" not in html
    assert len(html) < 2_000_000
    for term, _ in sentences.TERMS:
        assert term in found.text
    ids = [part.split('"')[0] for part in html.split(' id="')[1:]]
    assert len(ids) == len(set(ids))
    for part in html.split('href="')[1:]:
        assert part[0] == "#"
        assert part[1:].split('"')[0] in ids


def without_verdict(measured, path, change):
    """A copy of a measured run whose rows allow no verdict."""
    shutil.copytree(measured.path, path)
    write_jsonl(path / "results.jsonl", [{**row, **change.get(row["kind"], {})} for row in measured.results])
    return path


UNTRUSTED, CHANCE = {"check_p_value": {"value": 0.0}}, {"acu": {"value": 0.01, "low": -0.02, "high": 0.04}}


@pytest.mark.parametrize("change", [UNTRUSTED, CHANCE], ids=["not trusted", "no better than random"])
def test_a_report_that_judges_nothing_names_no_winner_and_warns(measured, tmp_path, change):
    path = without_verdict(measured, tmp_path / "run", change)
    for paths in ([path], [path, without_verdict(measured, tmp_path / "other", change)]):
        if len(paths) > 1:
            config = json.loads((paths[1] / "config.json").read_text())
            config["training"] |= {"strategy": "plain"}
            (paths[1] / "config.json").write_text(json.dumps(config))
        (page, *_) = report(paths, tmp_path / "out", formats=("html", "csv"), examples=len(paths) == 1)
        said = page.read_text()
        assert said.count('<div class="verdict warns">') == (1 if len(paths) == 1 else 3)
        assert '<div class="verdict">' not in said
        text = read(said).text
        for winner in (
            "to use,",
            "behind the best",
            "most faithful:",
            "No cheaper measure is more faithful",
            "by the measure to use",
        ):
            assert winner not in text
        assert "none of them was shown to be faithful here" in text
    ways = list(csv.DictReader((tmp_path / "out" / "ways.csv").read_text().splitlines()))
    assert [way["most faithful, RACU"] for way in ways] == ["none", "none"]
    card = model_card(Run(path))
    assert card.index(sentences.doubt(Run(path).results)) < card.index("```python")
    assert card.rindex(sentences.doubt(Run(path).results)) > card.index("## How to explain with it")
    (page,) = report([measured.path], tmp_path / "judged", examples=False)
    assert '<div class="verdict">' in page.read_text()
    assert "verdict warns" not in page.read_text()


def test_every_format_is_written_and_can_be_read(measured, tmp_path):
    files = report([measured.path], tmp_path, formats=("markdown", "latex", "csv", "svg", "png", "pdf"), examples=False)
    by_suffix = {
        suffix: [f for f in files if f.suffix == suffix] for suffix in (".svg", ".png", ".pdf", ".tex", ".csv")
    }
    assert all(by_suffix.values())
    for file in by_suffix[".svg"]:
        ET.fromstring(file.read_text())
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in by_suffix[".png"])
    assert all(file.read_bytes().startswith(b"%PDF") for file in by_suffix[".pdf"])
    assert "| loo-signed |" in (tmp_path / "report.md").read_text()
    again = tmp_path / "again"
    report([measured.path], again, formats=("svg",), examples=False)
    assert all((again / file.name).read_bytes() == file.read_bytes() for file in by_suffix[".svg"])


def test_runs_of_other_seeds_are_pooled_and_other_models_compared(measured, tmp_path):
    paths = [measured.path]
    for name, change in (("seed", {"seed": 7}), ("plain", {"strategy": "plain"})):
        path = shutil.copytree(measured.path, tmp_path / name)
        config = json.loads((path / "config.json").read_text())
        config["training"] |= change
        (path / "config.json").write_text(json.dumps(config))
        paths.append(path)
    (file,) = report(paths[:2], tmp_path / "pooled", examples=False)
    assert "2 trainings" in read(file.read_text()).text
    files = report(paths, tmp_path / "compared", formats=("html", "csv"), examples=False)
    header = next(csv.reader((tmp_path / "compared" / "racu.csv").read_text().splitlines()))
    assert header == ["measure", "small on rows, masked", "small on rows, plain"]
    ids = [part.split('"')[0] for part in files[0].read_text().split(' id="')[1:]]
    assert len(ids) == len(set(ids))


def test_a_run_that_was_not_measured_is_reported_as_far_as_it_goes(measured, tmp_path):
    path = shutil.copytree(measured.path, tmp_path / "run")
    kept = [line for line in (path / "results.jsonl").read_text().splitlines() if '"performance"' in line.split(",")[0]]
    write_jsonl(path / "results.jsonl", map(json.loads, kept))
    (file,) = report([path], tmp_path / "out")
    assert "Nothing has been measured" in read(file.read_text()).text
    (path / "results.jsonl").unlink()
    with pytest.raises(InputError, match="has no results yet"):
        report([path], tmp_path / "out")


@pytest.mark.usefixtures("without_figures")
def test_the_command_line_writes_a_report_into_the_run(measured, faithmeter):
    code, printed = faithmeter("report", measured.path, "--no-examples")
    assert code == 0, printed
    assert (measured.path / "report" / "report.html").exists()
    assert "report.html" in printed
    code, printed = faithmeter("report", measured.path, "--format", "docx")
    assert (code, "There is no format 'docx'" in printed) == (2, True)


def test_the_commands_in_a_report_make_the_same_run_again(measured, tmp_path, faithmeter):
    train_again, check_again, measure_again = (shlex.split(line) for line in commands_of(measured))
    for line in (train_again, check_again, measure_again):
        assert line[0] == "faithmeter"
        line[2] = str(tmp_path / "again")
        code, printed = faithmeter(*line[1:])
        assert code == 0, printed
    weights = [
        (Run(path).model_folder / "model.safetensors").read_bytes() for path in (measured.path, tmp_path / "again")
    ]
    assert weights[0] == weights[1]


def test_the_model_folder_has_a_card_that_grows_with_what_is_known(measured, tmp_path):
    card = (measured.model_folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    for expected in ("## Performance", "## What the verdict rests on", "## Which explanation to use", "| loo-signed |"):
        assert expected in card
    assert r"positive\<i\>" in card  # a label's own markup, as text
    fresh = shutil.copytree(measured.path, tmp_path / "fresh")
    trained = [row for row in measured.results if row["kind"] in ("performance", "majority")]
    write_jsonl(fresh / "results.jsonl", trained)
    assert "Which explanation" not in model_card(Run(fresh))
    # the snippet runs
    code = card.split("```python\n")[1].split("```")[0].replace("THIS_MODEL", str(measured.model_folder))
    found = {"text": "good film"}
    exec(code.replace("print", "found ="), found)
    assert found["found"].predicted == "positive<i>"


def test_the_card_names_the_strategy_and_the_optimiser_that_were_used(measured, tmp_path, monkeypatch):
    fresh = shutil.copytree(measured.path, tmp_path / "fresh")
    config = json.loads((fresh / "config.json").read_text())
    rows = {**STRATEGIES, "alternating": Strategy(3, "a classifier of which every third text was masked", "both")}
    for module in (card, config_of_training, run_module):
        monkeypatch.setattr(module, "STRATEGIES", rows)
    for strategy, row in rows.items():
        config["training"] |= {"strategy": strategy, "optimizer": "amsgrad"}
        (fresh / "config.json").write_text(json.dumps(config))
        assert f"{row.makes}. Trained from small with AMSGrad," in model_card(Run(fresh))


def test_the_best_of_many_measures_that_are_all_random_is_rarely_recommended_nor_called_better():
    """Nine measures, none better than random: what a verdict claims must hold in 95 of 100 reports."""
    random = np.random.default_rng(0)
    recommended, better, reports, texts, count = 0, 0, 60, 200, 9
    half = stats.norm.ppf(0.975) / np.sqrt(texts)
    pairs = stats.norm.ppf(1 - 0.025 / 36) * np.sqrt(2 / texts)  # 36 pairs of nine
    for _ in range(reports):
        areas = random.normal(size=count) / np.sqrt(texts)
        best = areas.max()
        found = [row("check_p_value", 1.0)]
        for number, area in enumerate(areas):
            found.append(row("acu", area, f"m{number}", low=area - half, high=area + half))
            behind = best - area
            found.append(row("acu_behind_best", behind, f"m{number}", low=behind - pairs, high=behind + pairs))
        said = sentences.verdict(found)
        recommended += said[0].startswith("Use")
        better += len(sentences.alike(found)) < count - 1
    assert recommended <= 6
    assert better <= 6


@pytest.mark.usefixtures("without_figures")
def test_runs_that_differ_in_more_than_the_seed_are_not_pooled(measured, tmp_path):
    path = shutil.copytree(measured.path, tmp_path / "other")
    config = json.loads((path / "config.json").read_text())
    config["training"] |= {"seed": 7, "epochs": 3}
    (path / "config.json").write_text(json.dumps(config))
    report([measured.path, path], tmp_path / "out", formats=("csv",), examples=False)
    header = next(csv.reader((tmp_path / "out" / "racu.csv").read_text().splitlines()))
    assert header == ["measure", "small on rows, masked", "small on rows, masked (2)"]
    same = shutil.copytree(measured.path, tmp_path / "same")
    with pytest.raises(InputError, match="the same training with the same seed"):
        report([measured.path, same], tmp_path / "out")
    (file,) = report([measured.path, measured.path], tmp_path / "once", examples=False)
    assert "30 texts" in read(file.read_text()).text


def test_examples_are_about_the_class_that_was_measured(measured):
    found = _examples(measured, measured.results)
    assert [example.reason for example in found] == ["Most faithful.", "Median.", "Least faithful."]
    assert all(one.target == example.gold for example in found for one in example.explanations)


def test_the_area_shown_with_an_example_is_the_one_it_was_picked_by(measured):
    stored = pyarrow.parquet.read_table(measured.path / "observations.parquet").to_pylist()
    areas = {(one["row"], one["measure"]): one["acu"] for one in stored}
    best = most_faithful(measured.results)
    ranked = sorted((row for row, name in areas if name == best), key=lambda row: -areas[row, best])
    test, settings = measured.data().test, measured.measurement_settings
    found = _examples(measured, measured.results)
    for example, row in zip(found, (ranked[0], ranked[15], ranked[-1]), strict=True):
        names = [one.measure for one in example.explanations]
        assert [one.acu for one in example.explanations] == pytest.approx(
            [areas[row, name] for name in names], abs=1e-6
        )
        assert {one.random_curve for one in example.explanations} == {example.explanations[0].random_curve}
        # it is the area of the curves that are drawn with it, because they repeat the measurement's draws
        again = explain_text(
            measured.classifier(),
            test[row]["text"],
            None,
            ExplainOptions(target=example.gold, seed=settings["seed"], random_runs=2),
            measures=[as_measure(name) for name in names],
            row=row,
        )
        assert [one.acu for one in again] == pytest.approx([areas[row, name] for name in names], abs=1e-6)
        assert [one.curve for one in again] == [one.curve for one in example.explanations]


@pytest.mark.usefixtures("without_figures")
def test_ways_of_training_the_same_model_stand_side_by_side(measured, tmp_path):
    paths, seeds = [measured.path], {("masked", 7): 0.9, ("plain", 0): 0.7, ("plain", 7): 0.8}
    for (strategy, seed), value in seeds.items():
        path = shutil.copytree(measured.path, tmp_path / f"{strategy}-{seed}", ignore=shutil.ignore_patterns("meas*"))
        config = json.loads((path / "config.json").read_text())
        config["training"] |= {"strategy": strategy, "seed": seed, "epochs": 6 if strategy == "masked" else 2}
        (path / "config.json").write_text(json.dumps(config))
        rows = [row for row in measured.results if row["kind"] in ("performance", "majority")]
        rows = [{**row, "value": value} if row["masking_ratio"] == 1.0 else row for row in rows]
        write_jsonl(path / "results.jsonl", rows)
        paths.append(path)
    (page, *_) = report(paths[:1] + paths[2:], tmp_path / "out", formats=("html", "csv"), examples=False)
    lines = list(csv.reader((tmp_path / "out" / "trainings.csv").read_text().splitlines()))
    assert lines[0] == ["training", "nothing masked", "half masked", "all masked"]
    assert [line[0] for line in lines[1:]] == ["masked", "plain", "class majority"]
    assert lines[2][3] == "0.750 (0.115–1.000)"  # over two seeds, Student's: ± 12.706 · .0707 / √2, and at most 1
    majority = find(measured.results, "majority")["value"]
    assert lines[3][1:] == [f"{majority:.3f}"] * 3
    text = read(page.read_text()).text
    assert "How well the model does, small on rows, by how it was trained" in text
    # what was not measured is no column among the measures
    assert next(csv.reader((tmp_path / "out" / "racu.csv").read_text().splitlines())) == [
        "measure",
        "small on rows, masked",
    ]
    report(paths[:1], tmp_path / "alone", formats=("csv",), examples=False)
    assert not (tmp_path / "alone" / "trainings.csv").exists()


@pytest.mark.usefixtures("without_figures")
def test_other_data_is_no_other_way_of_training(measured, tmp_path):
    path = shutil.copytree(measured.path, tmp_path / "other")
    config = json.loads((path / "config.json").read_text())
    config["fingerprint"] = "another"
    config["training"] |= {"strategy": "plain"}
    (path / "config.json").write_text(json.dumps(config))
    report([measured.path, path], tmp_path / "out", formats=("csv",), examples=False)
    assert not (tmp_path / "out" / "trainings.csv").exists()


# ------------------------------------------------------------------------- retraining


def retrained_rows(protocols=("recursive", "roar"), seeds=3, rise=None):
    """Result rows as an experiment has them, with one measure below random masking and one on it."""
    interval = (-0.02, 0.02) if seeds > 1 else (None, None)
    rows = []
    for protocol in protocols:
        kind = "recursive_roar" if protocol == "recursive" else "roar"
        for name, fall in (("random", 1.0), ("attention", 2.0), ("grad-l2", 1.0)):
            for step in range(11):
                value = max(0.2, 1 - fall * step / 10)
                rows.append(
                    Result(
                        kind=f"{kind}_performance",
                        value=value,
                        metric="accuracy",
                        masking_ratio=step / 10,
                        n=seeds,
                        measure=name,
                    )
                )
        for name, value in (("attention", 0.4), ("grad-l2", 0.0)):
            low, high = (None, None) if seeds == 1 else (value + interval[0], value + interval[1])
            for what in ("acu", "racu"):
                rows.append(
                    Result(
                        kind=f"{kind}_{what}",
                        value=value,
                        metric="accuracy",
                        n=seeds,
                        measure=name,
                        low=low,
                        high=high,
                        over="seeds",
                    )
                )
            if seeds > 1:
                rows.append(
                    Result(
                        kind=f"{kind}_p_value", value=0.5 if value == 0 else 0.001, metric="p", n=seeds, measure=name
                    )
                )
        if rise:
            rows.append(Result(kind=f"{kind}_rise", value=rise, metric="accuracy", n=seeds, measure="grad-l2"))
    for name in ("attention", "grad-l2"):
        for step in range(11):
            rows.append(
                Result(
                    kind="roar_sparsity",
                    value=step / 10,
                    metric="accuracy",
                    masking_ratio=step / 10,
                    n=seeds,
                    measure=name,
                )
            )
            rows.append(
                Result(
                    kind="roar_sparsity_tokens", value=step / 10, metric="accuracy", n=seeds, measure=name, tokens=step
                )
            )
    for name, count in (("attention", 17), ("grad-l2", 17), ("random", 9)):
        for what, value in (("trainings", count), ("seconds_training", 170.0), ("seconds_explaining", 3.0)):
            rows.append(
                Result(kind=f"roar_{what}", value=value, metric="seconds", split="train", n=count, measure=name)
            )
    return [row.as_row() for row in rows]


def retrained(masked=None, **rows):
    protocols = rows.get("protocols", ("recursive", "roar"))
    settings = [("model", "bilstm"), ("classes", "<i>")]
    return Retrained(
        "bilstm on x", "accuracy", "relative", protocols, retrained_rows(**rows), settings, ["faithmeter roar"], masked
    )


def test_retraining_says_what_each_protocol_can_and_cannot_conclude():
    said = " ".join(retraining_verdict(retrained()))
    assert "By Recursive ROAR, attention finds the important tokens" in said
    assert "By Recursive ROAR, grad-l2 was not shown to be faithful." in said
    assert "By ROAR, grad-l2 was not shown to be faithful, which does not mean" in said
    assert "grad-l2" not in " ".join(retraining_verdict(retrained(rise=0.2)))  # it may look worse than it is
    assert "one seed, so nothing can be concluded" in " ".join(retraining_verdict(retrained(seeds=1)))


def test_a_curve_that_rises_again_is_flagged_as_class_leakage():
    assert leaks(retrained()) == []
    (recursive, plain) = leaks(retrained(rise=0.2))
    assert "grad-l2 (Recursive ROAR)" in recursive
    assert "may reveal the class" in plain


def test_the_sections_on_retraining_have_the_papers_table_figures_and_times(measured):
    found = retrained_sections(retrained(masked=measured.results, rise=0.1))
    drawn = {figure.name: figure for section in found for figure in section.figures}
    assert [axes.get_title() for axes in drawn["roar"].figure.axes] == ["Recursive ROAR", "ROAR", "masked fine-tuning"]
    assert len(drawn["roar-sparsity"].figure.axes) == 2
    tables = {table.name: table for section in found for table in section.tables}
    assert tables["roar-areas"].columns[1:] == ("RACU, Recursive ROAR", "RACU, ROAR", "RACU, masked fine-tuning")
    assert tables["roar-areas"].rows[0][:2] == ["attention", "0.40 (0.38–0.42)"]
    assert tables["roar-times"].rows[0] == ["attention", "17", "10.0", "170", "3"]
    page = render_page("t", found, "1")
    assert "&lt;i&gt;" in page
    assert "<i>" not in page


def test_a_report_takes_experiments_and_runs_of_the_same_task_together(measured, tmp_path, faithmeter, monkeypatch):
    roar(
        tmp_path / "roar",
        measured.config.data,
        "bilstm",
        RoarOptions(measures=("grad-l2",), protocols=("roar",)),
        TrainingOptions(epochs=1),
        workers=1,
    )
    (alone,) = report([tmp_path / "roar"], tmp_path / "alone")
    assert "masked fine-tuning (" not in alone.read_text()
    monkeypatch.chdir(tmp_path.parent)  # where the data is, too: paths in a report are those from the current folder
    (page,) = report([measured.path, tmp_path / "roar"], tmp_path / "out", examples=False)
    text = page.read_text()
    assert "retrained" in text
    assert "masked fine-tuning (" in text
    # the command in it does the same experiment again: nothing is left to do
    command = text.split("faithmeter roar ")[1].split("\n")[0].split("<")[0]
    code, printed = faithmeter("roar", *shlex.split(html.unescape(command)))
    assert code == 0, printed
    assert "21 of 21 pieces of work are already done" in printed


def test_the_synthetic_problem_is_a_page_with_a_verdict(tmp_path, faithmeter, monkeypatch):
    monkeypatch.setattr(synthetic_roar, "__kwdefaults__", {**synthetic_roar.__kwdefaults__, "train_rows": 10_000})
    code, printed = faithmeter("roar", tmp_path / "out", "--synthetic", "--seeds", "0,1")
    assert code == 0, printed
    assert "Recursive ROAR finds the true curve" in printed
    assert "Plain ROAR stays above the true curve in 2 of 2" in printed
    assert "Recursive ROAR, seed 1" in (tmp_path / "out" / "report.html").read_text()
    assert len((tmp_path / "out" / "curves.jsonl").read_text().splitlines()) == 2 * 4 * 17
    code, printed = faithmeter("roar", tmp_path / "out", "--synthetic")
    assert (code, "nothing is overwritten" in printed) == (2, True)
    code, printed = faithmeter("roar", tmp_path / "new", "--synthetic", "--epochs", "3")
    assert (code, "--epochs has no effect here" in printed) == (2, True)
    code, printed = faithmeter("roar", tmp_path / "new", "--synthetic", "--seeds", "a")
    assert (code, "whole numbers" in printed) == (2, True)


def test_card_and_report_do_not_say_where_files_are_on_this_machine(measured, tmp_path, monkeypatch, without_figures):
    run = Run(shutil.copytree(measured.path, tmp_path / "home" / "somebody" / "run"))
    config = json.loads((run.path / "config.json").read_text())
    config["model"] = str(tmp_path / "home" / "somebody" / "start" / "model")
    (run.path / "config.json").write_text(json.dumps(config))
    run = Run(run.path)
    assert str(tmp_path) not in model_card(run)
    assert "Trained from start/model" in model_card(run)
    files = report([run.path], tmp_path / "out", formats=("html", "markdown"), examples=False)
    pages = "".join(file.read_text() for file in files if file.suffix in (".html", ".md"))
    assert str(Path(config["data"]["data"]).parent) not in pages
    assert "somebody" not in pages
    monkeypatch.chdir(tmp_path / "home")  # in the folder where one works, paths are those to type
    report([run.path], tmp_path / "out", formats=("markdown",), examples=False)
    assert "somebody/run" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize("damage", [lambda file: file.write_text("{"), lambda file: file.write_text("[]"), Path.unlink])
def test_a_damaged_environment_is_one_sentence(measured, tmp_path, damage, without_figures):
    run = Run(shutil.copytree(measured.path, tmp_path / "run"))
    damage(run.path / "environment.json")
    with pytest.raises(InputError, match=r"environment.json is (damaged|gone).*Restore it from a copy"):
        report([run.path], tmp_path / "out", examples=False)
