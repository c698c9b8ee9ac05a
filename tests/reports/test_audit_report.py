"""What a report says of other judges: made of result rows alone."""

import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from faithmeter.judges.drift import Points
from faithmeter.reports.audit import audit_sections
from faithmeter.reports.drift import SHOWN, flattened
from faithmeter.reports.figures import INK, inline_svg
from faithmeter.runs.results import Result

MEASURES = ("ig-signed", "grad-l2", "loo-signed", "random")
BLOCKS = ("head", "layer 2", "layer 1", "embeddings")


def row(kind, measure, value, detail=None):
    return Result(
        kind=f"audit_{kind}",
        value=value,
        metric="share",
        n=50,
        measure=measure,
        low=value - 0.05,
        high=value + 0.05,
        over="observations",
        detail=detail,
    )


def agreement(first, second, value, low, high):
    return replace(row("agreement", None, value, f"{first} | {second}"), low=low, high=high, n=8)


def rows(outside=0.02):
    found = [Result(kind="audit_known-token_accuracy", value=0.996, metric="accuracy", n=100)]
    for place, name in enumerate(MEASURES):
        worth = 0.8 - 0.2 * place
        for kind in ("comprehensiveness", "sufficiency", "norm_comprehensiveness", "norm_sufficiency"):
            found.append(row(f"erasure_{kind}", name, worth))
        found += [row(f"erasure_{kind}_outside", name, outside) for kind in ("comprehensiveness", "sufficiency")]
        found += [row(f"fidelity_{kind}", name, 1 - worth) for kind in ("masked_until_flip", "never_flips")]
        found += [row("fidelity_flip_outside", name, outside)]
        for kind in ("masked_until_flip", "never_flips"):
            found.append(row(f"fidelity-attacked_{kind}", name, 0.1 + 0.1 * place))
        found += [row("fidelity-attacked_flip_outside", name, outside)]
        for kind in ("overlap", "mean_rank", "average_precision", "precision_at_truth"):
            found += [row(f"known-token_{kind}", name, worth), row(f"plausibility_{kind}", name, worth)]
        found += [row("sparsity_held", name, share / 100 + 0.05, f"{share} %") for share in range(10, 100, 10)]
        for share in range(0, 101, 10):
            found += [
                row(f"drift_{kind}", name, value, f"{share} %")
                for kind, value in {"drift": worth * share / 100, "distance_to_data": worth, "outside": outside}.items()
                if share or kind != "drift"
            ]
        if name != "random":
            found += [
                row(f"other-seed_{kind}", name, worth, texts)
                for kind in ("rank_correlation", "top_overlap", "chance_overlap")
                for texts in ("same answer", "all texts")
            ]
            found += [row("other-seed_same_answer", name, 0.875)]
            found += [
                row(f"random-weights_{kind}", name, 0.2)
                for kind in ("rank_correlation", "top_overlap", "chance_overlap")
            ]
            found += [
                row(f"randomisation_{way}", name, 0.9 - 0.2 * place, block)
                for way in ("cascading", "independent")
                for block in BLOCKS
            ]
            found += [
                row(f"adversarial_{kind}", name, 0.3 + 0.1 * place, way)
                for kind in ("rank_change", "random_rank_change", "top_k_sum_change", "probability_change")
                for way in ("constrained", "unconstrained")
            ]
    found.append(agreement("masking: ACU", "erasure: comprehensiveness", 0.9, 0.7, 1.0))
    found.append(agreement("masking: ACU", "plausibility: average precision", -0.8, -1.0, -0.6))
    found.append(agreement("erasure: comprehensiveness", "plausibility: average precision", 0.1, -0.5, 0.6))
    return [one.as_row() for one in found]


def section(title, of=None):
    return next(one for one in audit_sections(of or rows()) if one.title == title)


def test_every_judge_that_has_judged_has_a_section_and_no_other():
    assert [one.title for one in audit_sections(rows())] == [
        "Sufficiency and comprehensiveness", "Tokens to flip", "Tokens to flip, on attacked texts",
        "How far masked texts move", "A known token", "What people marked", "Fresh weights",
        "Another seed and random weights", "Attacked explanations", "How short the explanations are",
        "Do the judges agree?",
    ]  # fmt: skip
    assert audit_sections([]) == []
    assert all(one.words for one in audit_sections(rows()))


def test_each_judge_says_what_it_cannot_show():
    for one in audit_sections(rows())[:9]:
        assert "cannot" in " ".join(one.words)


def test_tables_have_a_line_a_measure_the_best_first():
    (table,) = section("Sufficiency and comprehensiveness").tables
    assert [line[0] for line in table.rows] == list(MEASURES)
    assert table.rows[0][1] == "0.80 (0.75–0.85)"
    (attacked,) = section("Attacked explanations").tables
    assert [line[0] for line in attacked.rows] == ["ig-signed", "grad-l2", "loo-signed"]  # the fewest changes first


def test_masked_texts_out_of_distribution_are_marked_and_unchecked_ones_too():
    assert section("Sufficiency and comprehensiveness").cautions == []
    marked = section("Sufficiency and comprehensiveness", rows(outside=0.4)).cautions
    assert len(marked) == 2
    assert "40 %" in marked[0]
    (flips,) = section("Tokens to flip", rows(outside=0.4)).cautions
    assert "40 %" in flips
    assert section("Tokens to flip").cautions == []
    (attacked,) = section("Tokens to flip, on attacked texts", rows(outside=0.4)).cautions
    assert "40 %" in attacked
    unchecked = [one for one in rows() if not one["kind"].endswith("_outside")]
    assert "not checked" in section("Sufficiency and comprehensiveness", unchecked).cautions[0]
    assert "not checked" in section("Tokens to flip", unchecked).cautions[0]
    assert "not checked" in section("Tokens to flip, on attacked texts", unchecked).cautions[0]


def test_attacked_texts_stand_beside_clean_ones_and_alone_where_those_were_not_judged():
    (table,) = section("Tokens to flip, on attacked texts").tables
    assert table.rows[0][:3] == ["ig-signed", "0.10 (0.05–0.15)", "0.20 (0.15–0.25)"]
    assert [column.split(", ")[-1] for column in table.columns[1:]] == ["attacked", "clean"] * 3
    alone = [one for one in rows() if not one["kind"].startswith("audit_fidelity_")]
    (table,) = section("Tokens to flip, on attacked texts", alone).tables
    assert [column.split(", ")[-1] for column in table.columns[1:]] == ["attacked"] * 3
    beaten = {**alone[0], "kind": "audit_fidelity-attacked_beaten", "value": 0.755}
    assert "76 %" in section("Tokens to flip, on attacked texts", [*alone, beaten]).words[0]


def test_sparsity_is_shown_once():
    measured = [
        *rows(),
        Result(kind="sparsity", value=0.5, metric="share", masking_ratio=0.5, n=50, measure="grad-l2").as_row(),
    ]
    assert "How short the explanations are" not in [one.title for one in audit_sections(measured)]


def test_the_verdict_on_agreement_names_who_is_with_the_masking_curves_and_who_is_against():
    said = " ".join(section("Do the judges agree?").words)
    assert "agree with the masking curves: erasure: comprehensiveness (+0.90)" in said
    assert "contradict them: plausibility: average precision (-0.80)" in said
    assert "1 of 3 pairs contradict" in said


def test_a_known_token_that_the_model_does_not_read_is_marked():
    assert section("A known token").cautions == []
    unread = [{**one, "value": 0.6} if one["kind"].endswith("_accuracy") else one for one in rows()]
    assert "the numbers are uncertain" in section("A known token", unread).cautions[0]


def test_the_share_that_is_surely_too_large_is_told_even_where_a_larger_one_is_not_sure():
    found = rows(outside=0.4)
    for one in found:
        if one["kind"] == "audit_erasure_sufficiency_outside" and one["measure"] == "random":
            one |= {"value": 0.9, "low": None, "high": None}
    assert any("40 %" in line for line in section("Sufficiency and comprehensiveness", found).cautions)


@pytest.mark.parametrize("title", ["Fresh weights", "Do the judges agree?", "A known token"])
def test_figures_show_what_was_found(title):
    (figure,) = section(title).figures
    axes = figure.figure.axes
    if title == "Fresh weights":
        assert [label.get_text() for label in axes[0].get_xticklabels()] == list(BLOCKS)
        np.testing.assert_allclose(axes[0].lines[0].get_ydata(), 0.9)
    elif title == "A known token":
        assert [label.get_text() for label in axes[0].get_yticklabels()] == list(reversed(MEASURES))
    else:
        assert {text.get_text() for text in axes[0].texts} == {"+.9", "-.8", "+.1"}


def points(texts=30, outside=True, labels=("no", "yes")):
    """Texts of two classes that walk along the first component while they are masked; the last is always strange."""
    classes = np.arange(texts) % 2.0
    walk = np.zeros((texts, 11, 4))
    walk[..., 0] = np.arange(11) / 10
    walk[..., 1] = classes[:, None]
    strange = np.zeros((texts, 11))
    strange[-1] = 1
    both = {"random": walk, "loo-signed": 2 * walk}
    return Points(both, dict.fromkeys(both, strange) if outside else {}, classes, labels, np.array([0.6, 0.3]))


def drift_section(**given):
    sections = audit_sections(rows(), points=points(**given))
    return next(one for one in sections if one.title == "How far masked texts move")


def test_drift_is_drawn_from_0_for_every_measure_beside_the_share_out_of_distribution():
    (figure,) = section("How far masked texts move").figures  # without points there is no map
    drift, data, outside = figure.figure.axes
    np.testing.assert_allclose(drift.lines[0].get_xdata(), np.arange(0, 101, 10))
    np.testing.assert_allclose(drift.lines[0].get_ydata(), 0.8 * np.arange(11) / 10)  # the measure that moves most
    np.testing.assert_allclose(data.lines[0].get_ydata(), 0.8)
    np.testing.assert_allclose(outside.lines[0].get_ydata(), 2.0)
    (table,) = section("How far masked texts move").tables
    assert [line[0] for line in table.rows] == list(MEASURES)
    assert table.rows[0][1:3] == ["0.08 (0.03–0.13)", "0.40 (0.35–0.45)"]


def test_the_p_values_of_the_check_stand_beside_random_masking():
    checked = [
        Result(kind="check_p_value", value=0.5, metric="p", masking_ratio=step / 10, n=50).as_row()
        for step in range(11)
    ]
    table = section("How far masked texts move", [*rows(), *checked]).tables[1]
    assert [line[0] for line in table.rows] == [f"{share} %" for share in range(0, 101, 10)]
    assert table.rows[0][1] == "0.00"
    assert table.rows[10][1:] == ["0.20 (0.15–0.25)", "0.20 (0.15–0.25)", "2.0 %", "0.500"]


def test_drift_out_of_distribution_is_marked_and_drift_that_nobody_checked_too():
    assert section("How far masked texts move").cautions == []
    (marked,) = section("How far masked texts move", rows(outside=0.4)).cautions
    assert "40 %" in marked
    unchecked = [one for one in rows() if not one["kind"].endswith("outside")]
    assert "not checked" in section("How far masked texts move", unchecked).cautions[0]
    assert len(section("How far masked texts move", unchecked).figures[0].figure.axes) == 2


def test_the_map_has_a_panel_for_each_who_masks_a_colour_a_ratio_and_crosses_for_strange_texts():
    map_ = drift_section().figures[1]
    by_chance, by_measure = map_.figure.axes
    assert [axes.get_title() for axes in (by_chance, by_measure)] == ["masked at random", "masked by loo-signed"]
    dots = [line for line in by_chance.lines if line.get_marker() == "o"]
    crosses = [line for line in by_chance.lines if line.get_marker() == "x"]
    assert len({line.get_color() for line in dots}) == len(SHOWN)
    assert {len(line.get_xdata()) for line in dots} == {29}
    assert {len(line.get_xdata()) for line in crosses} == {1}
    np.testing.assert_allclose([line.get_xdata()[0] for line in dots], np.array(SHOWN) / 10)
    # the mean of each class, from its place when whole
    paths = [line for line in by_measure.lines if line.get_color() == INK]
    np.testing.assert_allclose(paths[0].get_xdata(), 2 * np.arange(11) / 10)
    assert {text.get_text() for text in by_measure.texts} == {"no", "yes"}
    assert "60 % of the variance" in by_chance.get_xlabel()
    assert "not installed" in map_.caption
    assert "does not compare" in map_.caption
    assert INK not in inline_svg(map_.figure, map_.name, map_.caption)  # lines and words follow the page's dark mode


def test_the_name_of_a_class_is_no_formula():
    labels = ("$x_$ up", "$10-$20")
    map_ = drift_section(labels=labels).figures[1]
    assert {text.get_text() for text in map_.figure.axes[0].texts} == set(labels)


def test_a_map_without_a_test_has_no_crosses():
    map_ = drift_section(outside=False).figures[1]
    assert not [line for line in map_.figure.axes[0].lines if line.get_marker() == "x" and len(line.get_xdata())]
    assert "Crosses" not in map_.caption


def test_umap_draws_the_map_where_it_is_installed_and_all_points_are_in_it(monkeypatch):
    asked = []

    class FakeUmap:
        def __init__(self, **options):
            asked.append(options)

        def fit_transform(self, every):
            asked.append(every)
            return every[:, 2:4] + 7

    module = ModuleType("umap")
    module.UMAP = FakeUmap
    monkeypatch.setitem(sys.modules, "umap", module)
    found, ways = flattened(points())
    assert asked[0] == {"n_components": 2, "n_neighbors": 15, "random_state": 0, "n_jobs": 1}
    assert asked[1].shape == (2 * 30 * 11, 4)
    assert {name: places.shape for name, places in found.items()} == {"random": (30, 11, 2), "loo-signed": (30, 11, 2)}
    np.testing.assert_allclose(found["loo-signed"], 7)
    assert all("UMAP" in way for way in ways)
    map_ = drift_section().figures[1]
    assert "not installed" not in map_.caption
    assert not [line for line in map_.figure.axes[0].lines if line.get_color() == INK]  # no means of bent places


@pytest.mark.slow
def test_the_real_umap_keeps_clouds_apart_and_draws_the_same_map_again():
    pytest.importorskip("umap", reason="needs the extra `umap`")
    random = np.random.default_rng(0)
    far = np.where(np.arange(30)[:, None, None] % 2, 40.0, -40.0)  # two clouds of 15 texts
    both = {name: random.normal(size=(30, 11, 10)) + far for name in ("random", "loo-signed")}
    cloudy = Points(both, {}, np.arange(30) % 2.0, ("no", "yes"), np.array([0.6, 0.3]))
    found, ways = flattened(cloudy)
    assert all("UMAP" in way for way in ways)
    places = np.concatenate([found[name] for name in both])  # 60 texts: even ones of one cloud, odd ones of the other
    one, other = (places[start::2].reshape(-1, 2) for start in (0, 1))
    gap = np.linalg.norm(one[:, None] - other, axis=-1).min()
    for cloud in (one, other):
        assert np.linalg.norm(cloud - cloud.mean(axis=0), axis=-1).mean() < gap
    again, _ = flattened(cloudy)
    for name in both:
        np.testing.assert_array_equal(found[name], again[name])


def test_other_models_stand_side_by_side_and_the_share_of_same_answers_is_told():
    found = section("Another seed and random weights")
    (table,) = found.tables
    assert [line[0] for line in table.rows] == ["ig-signed", "grad-l2", "loo-signed"]
    assert "87.5 %" in " ".join(found.words)
    assert "other seed, all texts" in table.columns
    first, second = found.figures[0].figure.axes
    assert first.get_xlim() == second.get_xlim()
    agreed = [{**one, "value": 1.0} if one["kind"].endswith("same_answer") else one for one in rows()]
    assert "other seed, all texts" not in section("Another seed and random weights", agreed).tables[0].columns
    alone = [one for one in rows() if "other-seed" not in one["kind"]]
    (without,) = section("Another seed and random weights", alone).tables
    assert without.columns == ("measure", "random weights", "random weights, top quarter", "top quarter by chance")


def test_models_that_never_answer_alike_are_said_not_to_compare():
    found = [
        row("other-seed_same_answer", "grad-l2", 0.0).as_row(),
        row("other-seed_rank_correlation", "grad-l2", 0.2, "all texts").as_row(),
        row("other-seed_rank_correlation", "grad-l2", float("nan"), "same answer").as_row(),
    ]
    (section,) = audit_sections(found)
    assert (section.title, section.tables) == ("Another seed and random weights", ())
    assert "the same class for no text" in section.words[0]


def test_measures_that_say_the_same_of_untrained_models_are_named():
    title = "Another seed and random weights"
    assert section(title).cautions == []
    alike = [*rows(), row("random-weights_twins", "ig-signed", 0.93).as_row()]
    (caution,) = section(title, alike).cautions
    assert "ig-signed (0.93)" in caution
    assert "learnt nothing" in caution
    unsure = [*rows(), row("random-weights_twins", "ig-signed", 0.74).as_row()]  # its interval begins at 0.69
    assert section(title, unsure).cautions == []
    trained = [
        {**one, "value": 0.9, "low": 0.85, "high": 0.95}
        if (one["kind"], one.get("measure")) == ("audit_random-weights_rank_correlation", "grad-l2")
        else one
        for one in rows()
    ]
    (caution,) = section(title, trained).cautions
    assert "grad-l2 (0.90)" in caution
    assert "trained" in caution
