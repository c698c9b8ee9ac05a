"""The verdict of a report, in plain words: which measure to use, by how much, and what to be careful about."""

from collections.abc import Sequence

from scipy import stats

from faithmeter.in_distribution import LEVEL, smallest_of
from faithmeter.in_distribution.masf import ROWS_NEEDED
from faithmeter.masking import STEPS
from faithmeter.results import Row, Rows, find, most_faithful, number, rows_of

FEW_TEXTS, FEW_TRAININGS = 50, 10
TERMS = (
    ("importance measure", "A method that gives every token of a text a number: how much it matters for the answer."),
    ("faithful", "An explanation is faithful if the tokens that it calls important are those the model really uses."),
    ("masking", "Replacing a token by the model's mask token, so that the model cannot read it."),
    ("random masking", "Masking tokens without looking at them: what every measure has to beat."),
    (
        "ACU",
        "Area between curves: by how much performance falls faster than under random masking, over all masking ratios. "
        "Above 0 is better than random.",
    ),
    (
        "RACU",
        "ACU relative to the area under the random curve. 1 is as if performance fell to the bottom at once; a signed "
        "measure can exceed 1, because it can push the model to a wrong class.",
    ),
    ("signed, absolute", "A signed measure tells tokens for a class from tokens against it; an absolute one does not."),
    (
        "interval",
        "Where the number would lie in 95 of 100 repetitions, by the BCa bootstrap; over what is drawn anew (the "
        "texts, or whole trainings with other seeds) is said with it.",
    ),
    (
        "out-of-distribution",
        "A masked text that looks to the model like nothing it was trained on. What it answers there says little "
        "about its explanations. Chance alone calls up to 5 % of texts so.",
    ),
    (
        "p-value",
        "How often chance alone would look as strange as this. Below 0.05 masked texts are called out-of-distribution.",
    ),
    ("class majority", "What always answering the most frequent class reaches, without reading."),
    ("sparsity", "How much of all importance a few tokens hold. A sparse explanation is short, not necessarily right."),
)


def names(words: Sequence[str]) -> str:
    """Return words as a list in a sentence."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def equals(rows: Rows) -> list[str]:
    """Return the measures that cannot be told apart from the most faithful one: the difference may be 0."""
    best = most_faithful(rows)
    behind = [row for row in rows if row["kind"] == "acu_behind_best" and row["measure"] != best]
    return [row["measure"] for row in behind if row["low"] is None or row["low"] <= 0]


def trusted(rows: Rows) -> bool | None:
    """Return whether masking is in-distribution for the model; None where that was not checked."""
    p_values = [row["value"] for row in rows_of(rows, "check_p_value")]
    return smallest_of(p_values) > LEVEL if p_values else None


def surely_positive(row: Row, tried: int) -> bool:
    """Return whether the best of so many tried is above 0, which the largest of several is by chance more often.

    Its interval is widened to what Bonferroni asks of the best of `tried`, as that of a normal number would be.
    """
    if row["low"] is None:
        return False
    wider = stats.norm.ppf(1 - 0.025 / tried) / stats.norm.ppf(0.975)
    return bool(row["value"] - wider * (row["value"] - row["low"]) > 0)


def verdict(rows: Rows) -> list[str]:
    """Return the verdict: one sentence to act on, then the reasons."""
    best = most_faithful(rows)
    if best is None:
        return ["Nothing was measured yet, so no importance measure can be recommended: run `faithmeter measure`."]
    acu = find(rows, "acu", best)
    over = {"seeds": f"{acu['n']} trainings", "observations": f"{acu['n']} texts"}[acu["over"]]
    if trusted(rows) is False:
        return [
            "No explanation of this model can be judged by masking: it does not understand masked texts.",
            "The numbers below are shown for completeness. `faithmeter train` with the strategy `masked` goes on from "
            "this model to one that can be judged.",
        ]
    if not surely_positive(acu, sum(row["kind"] == "acu" for row in rows)):
        return [
            "No importance measure beats random masking on this model, so none of their explanations can be believed.",
            f"The best, {best}, has an ACU of {number(acu)} (95 % interval over {over}), which may be 0.",
        ]
    same, every = equals(rows), [row for row in rows if row["kind"] == "acu_behind_best" and row["measure"] != best]
    behind = sorted((row for row in every if row["measure"] not in same), key=lambda row: row["value"])
    sentences = [
        f"Use {best} to explain this model.",
        f"Masking what it calls important costs the model more than random masking: ACU {number(acu)}, RACU "
        f"{number(find(rows, 'racu', best))} (95 % intervals over {over}).",
    ]
    if same:
        sentences.append(f"{names(same)} cannot be told apart from it here: the difference may be chance.")
    if behind:
        first = behind[0]
        sentences.append(
            f"It is more faithful than {names([row['measure'] for row in behind])}; the nearest of these lies "
            f"{number(first)} of ACU behind it."
        )
    if trusted(rows):
        sentences.append("Masked texts are in-distribution for this model, so the comparison is fair.")
    return sentences


def cautions(rows: Rows, validation_rows: int | None) -> list[str]:
    """Return what a reader should be careful about."""
    best = most_faithful(rows)
    found: list[str] = []
    if best is None:
        return found
    if trusted(rows) is None:
        found.append(
            "Whether masking is in-distribution was not checked (the paper's form of the test allows no verdict), so "
            "nothing says that the comparison is fair."
        )
    walk = find(rows, "walk_p_value", best)
    if walk["value"] is not None and walk["value"] <= LEVEL and trusted(rows):
        worst = max(rows_of(rows, "share_out_of_distribution", best), key=lambda row: row["value"])
        found.append(
            f"Masking by {best} leads up to {100 * worst['value']:.0f} % of the texts out of distribution (at "
            f"{round(STEPS * worst['masking_ratio']) * 10} % masked; chance gives at most 5 %): its lead there is "
            "partly the model's confusion."
        )
    acu = find(rows, "acu", best)
    if acu["over"] == "observations":
        found.append("The intervals are over texts of one trained model: another training may rank otherwise.")
    if acu["over"] == "seeds" and acu["n"] < FEW_TRAININGS:
        found.append(
            f"Intervals over {acu['n']} trainings are narrower than 95 % (the bootstrap of a few numbers is); what is "
            "said to be more faithful is by Student's, which are not."
        )
    few = [row for row in rows if row["kind"] == "acu" and row["over"] == "observations" and row["n"] < FEW_TEXTS]
    if few:
        each = [f"{row['measure']} on {row['n']}" for row in few]
        found.append(f"Measured on few texts: {names(each)}.")
    unmasked, majority = (row["value"] for row in (find(rows, "performance", ratio=0.0), find(rows, "majority")))
    if None not in (unmasked, majority) and unmasked <= majority:
        found.append("The model is no better than the class majority: there is nothing to explain yet.")
    if validation_rows is not None and validation_rows < ROWS_NEEDED:
        found.append(
            f"The in-distribution test was fitted on {validation_rows} texts; it is exact from {ROWS_NEEDED} on."
        )
    return found
