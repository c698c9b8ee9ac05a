"""What a verdict rests on, from result rows: what is known by construction, what was tested, how the model behaves.

For a model trained on random masks, randomly masked validation and test texts are exchangeable: the in-distribution
test passes on them whatever the model does, so it checks the test and not the model. A verdict on a model and a measure
rests on three kinds of evidence, which are shown apart: the record of the training, the test of the texts that this
measure masks, and what the model does when nothing is left to read.
"""

from faithmeter.in_distribution.limits import EXCESS_ALLOWED, too_few
from faithmeter.in_distribution.p_values import smallest_of
from faithmeter.problems import problem_of
from faithmeter.runs.results import (
    ALL_MASKED_LOSS,
    ALL_MASKED_P,
    CHECKED_TEXTS,
    CLAIMED,
    MASKED,
    OTHERWISE,
    PLAIN,
    POWER,
    TRAINED_ON_MASKS,
    TRANSFER,
    UNMASKED,
    Row,
    Rows,
    accepted,
    find,
    most_faithful,
    number,
    p_in_words,
    rejected,
    rows_of,
)
from faithmeter.statistics import LEVEL


def known_masks(rows: Rows) -> str | None:
    """Return what is known of the masks that the model was trained on: MASKED, PLAIN, CLAIMED; None if nothing is."""
    return next((row["detail"] for row in rows if row["kind"] == TRAINED_ON_MASKS), None)


def contradicted(rows: Rows) -> bool:
    """Whether the model behaves, with everything masked, as no model trained on masks does.

    It is surely worse than the class majority, or surely more confident than the frequencies of the classes allow.
    """
    p_value, loss = find(rows, ALL_MASKED_P)["value"], find(rows, ALL_MASKED_LOSS)
    confident = loss["value"] is not None and (loss["value"] if loss["low"] is None else loss["low"]) > EXCESS_ALLOWED
    return confident or (p_value is not None and p_value <= LEVEL / 2)


def unverified(rows: Rows) -> bool:
    """Whether only the owner says that the model was trained on masks, and nothing that was tested bears it out.

    It would be borne out if its masked texts were like its unmasked ones.
    """
    p_values = [row["value"] for row in rows_of(rows, UNMASKED[0])]
    claimed = bool(p_values) or known_masks(rows) == CLAIMED
    return claimed and (not p_values or smallest_of(p_values) <= LEVEL)


def trusted(rows: Rows) -> bool | None:
    """Return whether masking may be trusted on the model; None if that was not checked, is a claim, or on few texts.

    A test on few texts can reject masking, as its level holds for any number of texts, but not support it.
    """
    p_values = [row["value"] for row in rows_of(rows, "check_p_value")]
    if p_values and smallest_of(p_values) <= LEVEL:
        return False
    if contradicted(rows) and known_masks(rows) in (MASKED, CLAIMED):
        return False
    return True if p_values and checked_on_few(rows) is None and not unverified(rows) else None


def checked_on_few(rows: Rows) -> str | None:
    """Return why the check gives no verdict in favour of masking; None where its texts were enough, or are unknown."""
    counts = [find(rows, kind)["value"] for kind in CHECKED_TEXTS]
    return None if None in counts else too_few(*counts)


def best_accepted(rows: Rows) -> str | None:
    """Return the most faithful measure of those that were not rejected; None where there is none."""
    return most_faithful(rows, among=accepted(rows))


def worst_step(rows: Rows, measure: str) -> Row | None:
    """Return the step at which most of the texts that a measure masks are out-of-distribution."""
    return max(rows_of(rows, "share_out_of_distribution", measure), key=lambda row: row["value"], default=None)


def evidence(rows: Rows, measure: str | None = None) -> list[tuple[str, str]]:
    """Return what a verdict on the model, and on one measure of it, rests on: the kind of evidence, and a sentence."""
    lines = [
        ("Known by construction", _construction(rows)),
        ("Tested, random masking", _random_masking(rows)),
        ("Tested, this measure", None if measure is None else _walk(rows, measure)),
        ("Behaviour", _behaviour(rows)),
        ("What the test can find", _power(rows)),
    ]
    return [(title, sentence) for title, sentence in lines if sentence is not None]


def conclusion(rows: Rows, remedy: str | None = None) -> str:
    """Return whether explanations of the model may be judged by masking, as far as is known, and what to do if not."""
    known, few = known_masks(rows), checked_on_few(rows)
    train = (
        ""
        if remedy is None
        else " Fine-tune this model with masking, on the same data, to get one that understands masks; it keeps its "
        f"head and classes: `{remedy}`."
    )
    if trusted(rows) is False:
        return f"Masking cannot be trusted on this model.{train}"
    if unverified(rows):
        return f"Whether masking can be trusted on this model is not known: a claim is no evidence.{train}"
    if few is not None:
        return f"{few} No evidence against masking was found."
    if trusted(rows) is None:
        return "Whether masking can be trusted on this model was not checked."
    if known == MASKED:
        each = "" if rows_of(rows, "walk_p_value") else " by `faithmeter measure`"
        return (
            "Nothing that was tested speaks against masking on this model. Whether the texts that a measure masks are "
            f"in-distribution is tested for each measure{each}."
        )
    return "Masking may be trusted on this model."


def _construction(rows: Rows) -> str | None:
    return {
        MASKED: "The model was fine-tuned on randomly masked texts, and the record of that training is complete.",
        PLAIN: "The model was fine-tuned without masked texts.",
        OTHERWISE: "The model was fine-tuned on texts whose tokens were removed in another way than here.",
        CLAIMED: "Nothing. That the model was trained on masked texts is its owner's claim (--masked-before), not "
        "evidence.",
        None: None,
    }.get(known_masks(rows), "Nothing: there is no complete record of how the model was trained.")


def _random_masking(rows: Rows) -> str | None:
    p_values = [row["value"] for row in rows_of(rows, "check_p_value")]
    if not p_values:
        return "Not checked: run `faithmeter check`." if known_masks(rows) is not None else None
    smallest = f"smallest p-value of {len(p_values)} ratios: {min(p_values):.3f}"
    if known_masks(rows) not in (MASKED, CLAIMED):
        found = "out-of-distribution" if smallest_of(p_values) <= LEVEL else "like unmasked ones"
        return f"Compared with unmasked texts, randomly masked texts are {found} ({smallest})."
    if rows_of(rows, TRANSFER):
        differ = "differ from those" if smallest_of(p_values) <= LEVEL else "are like texts"
        return f"Randomly masked texts of this domain {differ} of the model's own ({smallest})."
    if smallest_of(p_values) <= LEVEL:
        return (
            f"Randomly masked test texts differ from randomly masked validation texts ({smallest}). The two splits are "
            "not alike, so the test cannot be read."
        )
    sentence = (
        f"Randomly masked test texts are like randomly masked validation texts ({smallest}). This passes by "
        "construction whatever the model does: it checks the test, not the model."
    )
    beside = against_unmasked(rows)
    return sentence if beside is None else f"{sentence} {beside}"


def against_unmasked(rows: Rows) -> str | None:
    """Return how masked texts compare with unmasked ones, where only its owner says the model was trained on masks.

    None where that is known, or was not tested.
    """
    p_values, shares = (rows_of(rows, kind) for kind in UNMASKED)
    if not p_values:
        return None
    if smallest_of([row["value"] for row in p_values]) > LEVEL:
        return "Compared with unmasked texts, as for a model never trained on masks, nothing was found either."
    worst = max(shares, key=lambda row: row["value"])
    return (
        "Compared with unmasked texts, as for a model never trained on masks, up to "
        f"{100 * worst['value']:.1f} % of the texts are out-of-distribution (at {100 * worst['masking_ratio']:.0f} % "
        "masked)."
    )


def _walk(rows: Rows, measure: str) -> str | None:
    p_value, worst = find(rows, "walk_p_value", measure)["value"], worst_step(rows, measure)
    if p_value is None or worst is None:
        return f"The texts masked by {measure} were not tested."
    share = f"at most {100 * worst['value']:.1f} % at a step, where chance gives up to 5 %"
    unlike = find(rows, "walk_random_p_value", measure)["value"]
    differs = (
        " They differ from randomly masked texts of the same ratio "
        f"(p {p_in_words(unlike)}), as texts masked by importance often do."
        if unlike is not None and unlike <= LEVEL
        else ""
    )
    if rejected(rows, measure):
        return (
            f"Texts masked by {measure} are out-of-distribution (p = {p_value:.3f} over all steps; {share}).{differs}"
        )
    return (
        f"No more of the texts masked by {measure} are out-of-distribution (unlike texts of any ratio) than by chance "
        f"(p = {p_value:.3f} over all steps; {share}).{differs}"
    )


def _behaviour(rows: Rows) -> str | None:
    p_value, loss = find(rows, ALL_MASKED_P)["value"], find(rows, ALL_MASKED_LOSS)
    masked, majority = find(rows, "performance", ratio=1.0), find(rows, "majority")["value"]
    if p_value is None or masked["value"] is None or majority is None:
        return None
    worse = "worse" if p_value <= LEVEL / 2 else "no worse, within sampling error,"
    surely, problem = loss["value"] if loss["low"] is None else loss["low"], problem_of(masked["metric"])
    compared = problem.all_masked[int(surely > EXCESS_ALLOWED)]
    return (
        f"With everything masked its {masked['metric']} is {masked['value']:.3f}: {worse} than the {problem.blind}"
        f"{'' if problem.blind.endswith('s') else chr(39) + 's'} {majority:.3f} (p = {p_value:.3f}). It is then "
        f"{compared} (excess loss {number(loss)} nats per text, {EXCESS_ALLOWED} allowed)."
    )


def _power(rows: Rows) -> str | None:
    names = dict(
        zip(POWER, ("with random words in half of the places", "with shuffled words", "of another domain"), strict=True)
    )
    found = [f"{100 * row['value']:.0f} % of texts {names[kind]}" for kind in POWER for row in rows_of(rows, kind)]
    return f"The same test finds {', '.join(found)}." if found else None
