"""The verdict of a report, in plain words: which measure to use, by how much, and what to be careful about."""

from collections.abc import Sequence

import scipy

from faithmeter.importance.table import IMPORTANCE_MEASURES, is_signed
from faithmeter.in_distribution.masf import ROWS_NEEDED
from faithmeter.masking import STEPS
from faithmeter.performance import METRICS
from faithmeter.problems import problem_of
from faithmeter.reports.evidence import (
    best_accepted,
    checked_on_few,
    known_masks,
    trusted,
    unverified,
    worst_step,
)
from faithmeter.runs.results import (
    EXPLAINED_ONCE,
    MASKED,
    TRANSFER,
    Row,
    Rows,
    accepted,
    find,
    letters,
    measures,
    most_faithful,
    number,
    over_what,
    rejected,
    rows_of,
    surely_ahead,
    unbeaten,
)
from faithmeter.statistics import LEVEL

FEW_TEXTS, FEW_TRAININGS, DECIDING_TRAININGS = 50, 10, 5
TERMS = (
    ("token", "A word or a piece of one, as the model reads it."),
    ("score", "The logit: the number that the model gives a class, from which its probability follows."),
    (
        "performance",
        "How well the model predicts, by the metric of the data: accuracy is the share of correct predictions, and so "
        "is micro-F1 where each text has one class; macro-F1 weights all classes equally; Matthews' correlation is 0 "
        "for guessing. Of several labels at once it is F1 over all of them, the mean of each label's F1, or their mean "
        "average precision; of a number it is R² (0 for always answering the mean) or a correlation.",
    ),
    ("importance measure", "A method that gives every token a number: how much it matters for the prediction."),
    ("faithful", "An explanation is faithful if the tokens that it calls important are those the model really uses."),
    ("masking", "Replacing a token by the model's mask token, so that the model cannot read it."),
    ("random masking", "Masking tokens chosen at random: the baseline of every measure."),
    (
        "ACU",
        "Area between curves: how far performance lies below that under random masking, averaged over all masking "
        "ratios; 0.45 is 45 points lower on average. Above 0 is better than random.",
    ),
    (
        "RACU",
        "ACU relative to the area between the random curve and its last point, where everything is masked. 1 is as if "
        "performance fell to that point immediately; a signed measure can exceed 1, because it can push the model to "
        "a wrong class.",
    ),
    (
        "signed, absolute",
        "A signed measure distinguishes tokens that support a class from tokens that oppose it; an absolute one does "
        "not.",
    ),
    (
        "interval",
        "A 95 % confidence interval; each table says whether over texts or over trainings with other seeds. Over texts "
        "it is Student's, by the jackknife, and for RACU Fieller's, which does not exist where the denominator of RACU "
        "may be 0. Over trainings it is the BCa bootstrap's with 9,999 resamples, and of fewer than five, but "
        "for ROAR, Student's. The intervals of differences between measures are wider: "
        "they hold for all pairs together.",
    ),
    (
        "alike",
        "Measures that share a letter cannot be told apart on the texts, or trainings, of both. The test covers all "
        "pairs together, with an error of 5 % in all; it is a little sharper than the intervals of "
        "the differences, so two measures may be told apart although that interval touches 0.",
    ),
    (
        "may be the best",
        "No other measure is surely more faithful. The one that truly is best is among these with 95 % confidence.",
    ),
    (
        "texts that did not choose it",
        "The best of several looks too good on the texts that it was chosen by. So it is also chosen on nine tenths of "
        "the texts and estimated on the last tenth, each tenth in turn.",
    ),
    (
        "out-of-distribution",
        "A masked text unlike those the model was trained on. Its prediction there says little about its "
        "explanations. By chance alone, up to 5 % of texts are called so, on average.",
    ),
    (
        "p-value",
        "The probability that chance alone gives a result at least this extreme. Below 0.05, randomly masked texts, or "
        "a single text, are called out-of-distribution. For a measure it covers all "
        "steps together, and counts the texts that are out-of-distribution: a measure with too many is rejected, and "
        "not recommended.",
    ),
    ("class majority", "Performance of always predicting the most frequent class."),
    ("label frequencies", "Performance of answering every text with the labels' frequencies in training."),
    ("mean number", "Performance of answering every text with the mean number of training."),
)


def terms(rows: Rows) -> list[tuple[str, str]]:
    """Return what the measures of a report are, in a line each; of a user's own, nothing is known."""
    table, lines = IMPORTANCE_MEASURES, []
    for measure in (table[row["measure"]] for row in rows_of(rows, "acu") if row["measure"] in table):
        if measure.absolute_of is not None:
            lines.append((measure.name, f"{table[measure.absolute_of].meaning} Absolute value."))
        elif any(other.absolute_of == measure.name for other in table.values()):
            lines.append((measure.name, f"{measure.meaning} With its sign: supports the class or opposes it."))
        else:
            lines.append((measure.name, measure.meaning))
    return lines


def names(words: Sequence[str]) -> str:
    """Return words as a list in a sentence."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def behind(rows: Rows, best: str, other: str) -> Row:
    """Return by how much ACU a measure lies behind another: the paired difference, or that to the most faithful one."""
    paired = find(rows, "acu_difference", best, detail=other)
    return paired if paired["value"] is not None else find(rows, "acu_behind_best", other)


def ahead_for_sure(difference: Row) -> bool:
    """Whether the interval of a difference lies above 0."""
    return difference["low"] is not None and difference["low"] > 0


def alike(rows: Rows) -> list[str]:
    """Return the measures, not rejected, that cannot be told apart from the best of them: they share a letter."""
    best = best_accepted(rows)
    if best is None:
        return []
    others = [name for name in accepted(rows) if name != best]
    if letters(rows, best):
        apart = surely_ahead(rows)
        return [name for name in others if (best, name) not in apart]
    return [name for name in others if not ahead_for_sure(behind(rows, best, name))]  # a run of an earlier version


def explained_once(rows: Rows) -> list[str]:
    """Return which measures are explained once, and where those from elsewhere stand among them; of most runs nothing.

    An explanation from elsewhere is of the unmasked text, so only what is explained once is like it.
    """
    once = [row for row in rows_of(rows, EXPLAINED_ONCE) if row["value"] == 1]
    if not once:
        return []
    listed = [f"{row['measure']} (from {row['detail']})" if row.get("detail") else row["measure"] for row in once]
    said = [
        f"Explained once, for the unmasked text: {', '.join(listed)}. The others are explained again at each step, "
        "which explanations from elsewhere cannot be: compare those with what is explained once."
    ]
    best = most_faithful(rows, [row["measure"] for row in once])
    if best is not None and len(once) > 1:
        given = [row["measure"] for row in once if row.get("detail") and row["measure"] != best]
        lag = "".join(f"; {name} lies {number(behind(rows, best, name), 3)} behind it in ACU" for name in given)
        said.append(f"Of those explained once, {best} is the most faithful{lag}.")
    return said


def equals(rows: Rows) -> list[str]:
    """Return those of `alike` that significantly beat random masking; the others are no substitute."""
    return [name for name in alike(rows) if beats_random(rows, name)]


def surely_positive(row: Row, tried: int) -> bool:
    """Return whether the best of `tried` numbers is significantly above 0; the largest often is by chance.

    Its interval is widened by Bonferroni for `tried` numbers, as Student's would be.
    """
    if row["low"] is None:
        return False
    wider = scipy.stats.t.ppf(1 - 0.025 / tried, row["n"] - 1) / scipy.stats.t.ppf(0.975, row["n"] - 1)
    return bool(row["value"] - wider * (row["value"] - row["low"]) > 0)


def beats_random(rows: Rows, measure: str) -> bool:
    """Return whether a measure significantly beats random masking, corrected for the number of measures."""
    return surely_positive(find(rows, "acu", measure), sum(row["kind"] == "acu" for row in rows))


def recommended(rows: Rows) -> str | None:
    """Return the measure that the verdict recommends: the most faithful not rejected; None if there is none."""
    return None if _nothing_judged(rows) else best_accepted(rows)


def doubt(rows: Rows, measure: str | None = None) -> str | None:
    """Return why explanations of the model, or by one measure, should not be trusted; None if they may be.

    Where the verdict recommends no measure, it is the verdict's first sentence, so that `explain` and the report agree.
    """
    nothing = _nothing_judged(rows)
    if nothing or measure is None:
        return nothing[0] if nothing else None
    if rejected(rows, measure):
        return (
            f"Texts masked by {measure} are out-of-distribution for this model, so nothing shows that its explanations "
            f"are faithful; {recommended(rows)} is the measure to use."
        )
    if beats_random(rows, measure):
        return None
    instead = f"{recommended(rows)} is the measure to use."
    acu = find(rows, "acu", measure)
    if acu["value"] is None:
        return f"{measure} was not measured on this model, so its explanations may be meaningless; {instead}"
    return (
        f"{measure} was not shown to beat random masking on this model (ACU {number(acu)}), so its explanations may "
        f"be meaningless; {instead}"
    )


def _nothing_judged(rows: Rows) -> list[str]:
    """Return the verdict that names no measure, and why; empty where one can be recommended."""
    best, largest = best_accepted(rows), most_faithful(rows)
    shown = "" if largest is None else "The numbers below are shown for completeness. "
    remedy = f"{shown}`faithmeter train` with the strategy `masked` fine-tunes it to a model that can be judged."
    if trusted(rows) is False and rows_of(rows, TRANSFER):
        return [
            "No explanation of this model can be judged by masking here: masked texts of this domain are "
            "out-of-distribution for it.",
            f"{shown}On its own domain it may understand masks well: see the report of the run that trained it.",
        ]
    if trusted(rows) is False:
        return ["No explanation of this model can be judged by masking: it does not understand masked texts.", remedy]
    if unverified(rows) and rows_of(rows, "check_p_value"):
        return [
            "No explanation of this model can be judged by masking: that it was trained on masked texts is a claim "
            "(--masked-before), and nothing that was tested bears it out.",
            remedy,
        ]
    if largest is None:
        return ["Nothing has been measured, so no importance measure can be recommended: run `faithmeter measure`."]
    if best is None:
        return [
            "No importance measure can be recommended: the texts that each of them masks are out-of-distribution for "
            "this model, so part of every fall in performance may come from that and not from faithfulness.",
            f"What can still be said: among the measured ones {largest} lowers performance most (ACU "
            f"{number(find(rows, 'acu', largest))} above random masking).",
        ]
    if not beats_random(rows, best):
        return [
            "No importance measure beats random masking on this model, so none of their explanations can be trusted.",
            f"The ACU with the highest lower bound is {number(find(rows, 'acu', best))} (95 % interval over "
            f"{_over(rows, best)}), which may be 0.",
        ]
    return []


def _over(rows: Rows, measure: str) -> str:
    """Return what the intervals of a measure are over, in words."""
    return over_what(find(rows, "acu", measure))


def verdict(rows: Rows) -> list[str]:
    """Return the verdict: one sentence to act on, then the reasons. A rejected measure is said to be so first."""
    best = recommended(rows)
    if best is None:
        return _nothing_judged(rows)
    acu, over = find(rows, "acu", best), _over(rows, best)
    sentences = [*_rejected_first(rows, best), f"Use {best} to explain this model."]
    sentences.append(
        f"Masking what it calls important lowers performance more than random masking: ACU {number(acu)}, RACU "
        f"{number(find(rows, 'racu', best))} (95 % intervals over {over}).{_points(acu)}"
    )
    sentences += _cross_fitted(rows, best) + _may_be_best(rows)
    sentences += _compared(rows, best) + _best_absolute(rows, best) + _not_to_be_used(rows)
    if trusted(rows):
        sentences.append(f"Nothing that was tested speaks against judging {best} by masking here: {_fair(rows, best)}")
    return sentences


def baseline_in_words(rows: Rows) -> str:
    """Return what the baseline of all areas is, how much a draw of it varies, and how much that widens intervals."""
    spread = find(rows, "random_spread", "random")["value"]
    if spread is None:
        return "The baseline is a single random draw, whose noise is unknown."
    varies = f"The baseline is the mean of random draws; one draw varies by {spread:.3f} in ACU (standard deviation)."
    best = best_accepted(rows) or most_faithful(rows)
    share = find(rows, "baseline_share", best)["value"]
    if share is None:
        return varies
    draws = find(rows, "draws_needed", best)["value"]
    more = "" if draws is None else f"; with {draws:.0f} draws (--random-runs) it would be less than a tenth"
    return f"{varies} Intervals contain this noise: it is {100 * share:.0f} % of the variance of {best}'s ACU{more}."


def _points(acu: Row) -> str:
    """Return an ACU in words: it is the mean difference over all masking ratios, and a point is a hundredth."""
    name = str(acu.get("metric") or "performance")
    metric = (METRICS[name].called if name in METRICS else "") or name
    return (
        f" In words: averaged over all masking ratios, masking what it calls important costs about "
        f"{100 * acu['value']:.0f} points of {metric} more than masking as many random tokens."
    )


def _cross_fitted(rows: Rows, best: str) -> list[str]:
    """Return the recommended measure's ACU on texts that did not choose it; empty where that is not known."""
    row = next(iter(rows_of(rows, "acu_cross_fitted", best)), None)
    if row is None:
        return []
    what, chosen = "trainings" if row["over"] == "seeds" else "texts", row.get("detail")
    others = "" if chosen is None else f" Not all parts of them chose it: this is of {names(chosen.split(', '))}."
    return [
        f"The best of several looks too good on the {what} that chose it: on {what} that did not, ACU is "
        f"{number(row)}, beside the {find(rows, 'acu', best)['value']:.2f} above.{others}"
    ]


def _may_be_best(rows: Rows) -> list[str]:
    """Return which of the measures that were not rejected may be the best; empty where that is not known."""
    rivals = accepted(rows)
    if len(rivals) < 2 or not rows_of(rows, "best_set"):
        return []
    first = unbeaten(rows, rivals)
    rest = len(rivals) - len(first)
    which = "" if len(rivals) == len(rows_of(rows, "acu")) else ", of those that were not rejected"
    if len(first) == 1:
        return [f"It is the only one of {len(rivals)} measures that may be the best{which} (with 95 % confidence)."]
    others = f"; the other {rest} are surely not" if rest > 1 else "; the other one is surely not" if rest else ""
    return [f"Measures that may be the best{which}: {names(first)}{others} (with 95 % confidence)."]


def _rejected_first(rows: Rows, best: str) -> list[str]:
    """Return that measures which seem more faithful than the one recommended were rejected; empty where none were."""
    least = find(rows, "acu", best)["value"]
    ahead = [row["measure"] for row in rows_of(rows, "acu") if row["value"] > least and rejected(rows, row["measure"])]
    if not ahead:
        return []
    them, their = ("it is", "its") if len(ahead) == 1 else ("they are", "their")
    return [
        f"{names(ahead)} {'has a' if len(ahead) == 1 else 'have'} larger ACU, but {their} masked texts are "
        f"out-of-distribution for this model (p at most {LEVEL}), so {them} not recommended."
    ]


def _not_to_be_used(rows: Rows) -> list[str]:
    """Return which measures were rejected, and what that means; empty where none were."""
    out = [name for name in measures(rows) if rejected(rows, name)]
    if not out:
        return []
    them = "it masks" if len(out) == 1 else "they mask"
    return [
        f"Not to be used: {names(out)}. The texts that {them} are out-of-distribution for this model, so performance "
        "may fall for that reason alone."
    ]


def _fair(rows: Rows, best: str) -> str:
    """Return why the comparison by the recommended measure is fair, as far as that is known."""
    known = {
        MASKED: "the model was trained on random masks",
        None: "randomly masked texts are in-distribution for it",
    }.get(known_masks(rows), "its masked texts are like its unmasked ones")
    p_value = find(rows, "walk_p_value", best)["value"]
    walk = (
        "" if p_value is None else f", and no more of the texts masked by {best} are out-of-distribution than by chance"
    )
    return f"{known}{walk}."


def _compared(rows: Rows, best: str) -> list[str]:
    """Return how the recommended measure compares with the others that were not rejected."""
    same, unsure = equals(rows), alike(rows)
    unproven = [name for name in unsure if name not in same]
    lags = {name: behind(rows, best, name) for name in accepted(rows) if name not in (best, *unsure)}
    worse = sorted(lags, key=lambda name: lags[name]["value"])
    sentences = []
    if same:
        price = {name: find(rows, "seconds_per_text", name)["value"] for name in (best, *same)}
        fastest = min(price, key=lambda name: (price[name] is None, price[name]))
        other = f" {fastest} is the fastest of them." if fastest != best else " It is the fastest of them."
        sentences.append(f"{names(same)} cannot be told apart from it here: the difference may be chance.{other}")
    if unproven:
        sentences.append(
            f"{names(unproven)} cannot be told apart from it{' either' if same else ''}, but "
            f"{'was' if len(unproven) == 1 else 'were'} not "
            "shown to beat random masking: do not use in its place."
        )
    if worse:
        closest = lags[worse[0]]
        cautious = closest["low"] is not None and closest["low"] <= 0
        sentences.append(
            f"It is more faithful than {names(worse)}; the closest of these is {number(closest)} behind it in ACU."
            + (" (That interval, of all pairs together, is more cautious than the test of pairs.)" if cautious else "")
        )
    return sentences


def _best_absolute(rows: Rows, best: str) -> list[str]:
    """Return how much of a signed measure's lead comes from wrong classes, and the best absolute measure."""
    curve = {row["masking_ratio"]: row["value"] for row in rows_of(rows, "masked_performance", best)}
    allowed = accepted(rows)
    absolute = [row for row in rows_of(rows, "acu") if not is_signed(row["measure"])]
    if not is_signed(best) or not absolute or min(curve.values(), default=0) >= curve.get(1.0, 0):
        return []
    proven = [row for row in absolute if beats_random(rows, row["measure"])]
    other = max((row for row in proven if row["measure"] in allowed), key=lambda row: row["value"], default=None)
    found = "none was shown to beat random masking."
    if other is not None:
        left_out = (
            "" if len(absolute) == sum(row["measure"] in allowed for row in absolute) else ", of those not rejected"
        )
        found = f"{other['measure']} is the most faithful{left_out}: ACU {number(other)}."
    elif proven:
        found = "all that beat random masking were rejected: the texts that they mask are out-of-distribution."
    return [
        f"Part of its lead is that it pushes the model to wrong {_wrong(rows)}: performance falls to "
        f"{min(curve.values()):.2f}, below the {curve[1.0]:.2f} with everything masked. "
        f"Of the absolute measures, {found}"
    ]


def _wrong(rows: Rows) -> str:
    return "answers" if problem_of(find(rows, "performance", ratio=0.0)["metric"]).each_output else "classes"


def pushed_out(rows: Rows) -> list[tuple[str, Row]]:
    """Return the measures that push texts out-of-distribution, each with the step at which most of them are."""
    steps = [(name, worst_step(rows, name)) for row in rows_of(rows, "acu") if rejected(rows, name := row["measure"])]
    found = [(name, step) for name, step in steps if step is not None]
    return sorted(found, key=lambda pair: -pair[1]["value"])


def cautions(rows: Rows, validation_rows: int | None) -> list[str]:
    """Return what a reader should be careful about."""
    best = most_faithful(rows)
    found: list[str] = []
    if best is None:
        return found
    if trusted(rows) is None:
        unchecked = (
            "Whether masking is in-distribution was not checked (the paper's form of the test gives no verdict)."
        )
        found.append(f"{checked_on_few(rows) or unchecked} So the comparison may not be fair.")
    outside = [] if trusted(rows) is False else pushed_out(rows)
    if outside:
        each = [
            f"{name} up to {100 * row['value']:.0f} % (at {round(STEPS * row['masking_ratio']) * 10} % masked)"
            for name, row in outside
        ]
        found.append(
            f"Masking by these measures pushes texts out-of-distribution, where chance gives 5 %: {names(each)}. Part "
            "of their fall in performance may come from that."
        )
    acu = find(rows, "acu", best)
    if acu["over"] == "observations":
        what = "texts" if acu.get("groups") is None else over_what(acu)
        found.append(f"The intervals are over {what} of one trained model: another training may rank differently.")
    if acu["over"] == "seeds" and acu["n"] < DECIDING_TRAININGS and len(rows_of(rows, "acu")) > 1:
        found.append(
            f"{acu['n']} trainings can hardly tell measures apart, however different they are: that takes "
            f"{DECIDING_TRAININGS} or more."
        )
    elif acu["over"] == "seeds" and acu["n"] < FEW_TRAININGS:
        found.append(
            f"Bootstrap intervals over {acu['n']} trainings are narrower than 95 %; the verdict on what is more "
            "faithful uses Student's intervals, which are not."
        )
    few = [row for row in rows if row["kind"] == "acu" and row["over"] == "observations" and row["n"] < FEW_TEXTS]
    if few:
        each = [f"{row['measure']} on {row['n']}" for row in few]
        found.append(f"Measured on few texts: {names(each)}.")
    unmasked, majority = (row["value"] for row in (find(rows, "performance", ratio=0.0), find(rows, "majority")))
    if None not in (unmasked, majority) and unmasked <= majority:
        blind = problem_of(find(rows, "majority")["metric"]).blind
        found.append(f"The model is no better than the {blind}: there is nothing to explain yet.")
    elif (find(rows, "majority_p_value")["value"] or 0.0) > LEVEL:  # of an older run it is not known
        found.append(
            "The model is not significantly better than predictions that ignore the text, on so few test texts, so "
            "there may be nothing to explain yet."
        )
    if validation_rows is not None and validation_rows < ROWS_NEEDED:
        found.append(
            f"The in-distribution test was fitted on {validation_rows} texts; its level is exact from {ROWS_NEEDED} on."
        )
    return found
