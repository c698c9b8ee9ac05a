"""The sections of a report on other judges: what each says, what it can and cannot show, and whether they agree."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from matplotlib.figure import Figure

from faithmeter.in_distribution import LEVEL
from faithmeter.reports.agreement import agreement_sections
from faithmeter.reports.drift import DRIFT, Points, drift_sections
from faithmeter.reports.figures import RANDOM, look, new_figure
from faithmeter.reports.formats import Table
from faithmeter.reports.parts import Section, drawn
from faithmeter.runs.results import Row, Rows, find, number, rows_of

KIND = "audit_"
ERASURE, KNOWN, HUMAN = "audit_erasure_", "audit_known-token_", "audit_plausibility_"
FLIPS, FLIPS_ATTACKED = "audit_fidelity_", "audit_fidelity-attacked_"
OTHER, FRESH = "audit_other-seed_", "audit_random-weights_"
LAYERS, ATTACK, SHORT = "audit_randomisation_", "audit_adversarial_", "audit_sparsity_held"
SOLVED = 0.99  # share of texts in which a model must read the known token for that to be what decides
UNCHECKED = "Whether these masked texts are in-distribution was not checked: `faithmeter check` does it."
ATTACKS = ("unconstrained", "constrained")
LAYER_WAYS = {"cascading": "cascading from the head", "independent": "one block at a time"}


@dataclass(frozen=True)
class Shown:
    """A number to draw: its kind, its name for readers, and the detail that tells it from others of its kind."""

    kind: str
    title: str
    detail: str | None = None


def audit_sections(rows: Rows, prefix: str = "", points: Points | None = None) -> list[Section]:
    """Return a section for each judge that has judged, and one on whether they agree; `points` are for drift's map."""
    drift = partial(_drift, points=points)
    makers = (
        _erasure, _fidelity, _fidelity_attacked, drift, _known_token, _plausibility, _layers, _other_models, _attacks,
        _sparsity, agreement_sections,
    )  # fmt: skip
    return [section for make in makers for section in make(rows, prefix)]


def _measures(rows: Rows, first: Shown, most_first: bool = True) -> list[str]:
    """Return the measures that have a number, the best first; random importance is where it falls."""
    found = [row for row in rows_of(rows, first.kind) if row.get("detail") == first.detail]
    return [row["measure"] for row in sorted(found, key=lambda row: row["value"], reverse=most_first)]


def _table(rows: Rows, names: Sequence[str], shown: Sequence[Shown], name: str, title: str) -> Table:
    cells = [[one, *(number(find(rows, what.kind, one, detail=what.detail)) for what in shown)] for one in names]
    known = find(rows, shown[0].kind, names[0], detail=shown[0].detail)
    over = f"{known['n']} {'trainings' if known['over'] == 'seeds' else 'texts'}"
    return Table(name, f"{title}; 95 % intervals over {over}", ("measure", *(what.title for what in shown)), cells)


def _forest(rows: Rows, names: Sequence[str], shown: Sequence[Shown]) -> Figure:
    """Draw numbers with their intervals, a panel each, a line a measure, the best on top; random's is dashed."""
    figure, panels = new_figure(3.3 * len(shown) + 0.6, 0.7 + 0.26 * len(names), len(shown))
    for axes, what in zip(panels, shown, strict=True):
        for place, name in enumerate(reversed(names)):
            row, colour = find(rows, what.kind, name, detail=what.detail), look(name)["color"]
            if row["low"] is not None:
                axes.plot([row["low"], row["high"]], [place, place], color=colour, linewidth=2)
            if row["value"] is not None:
                axes.plot(row["value"], place, "o", color=colour, markersize=5)
        chance = find(rows, what.kind, "random", detail=what.detail)["value"]
        if chance is not None:
            axes.axvline(chance, color=RANDOM, linewidth=1, linestyle="--")
        axes.set_xlabel(what.title)
    panels[0].set_yticks(range(len(names)), list(reversed(names)))
    return figure


def _ranked(
    rows: Rows,
    prefix: str,
    name: str,
    shown: Sequence[Shown],
    section: Section,
    title: str,
    caption: str,
    most_first: bool = True,
) -> list[Section]:
    """Return a section with a table of the numbers shown, by the first of them, and a figure of the first two.

    None where nobody has judged. `section` says the rest: its title, its words and its cautions.
    """
    names = _measures(rows, shown[0], most_first)
    if not names:
        return []
    figure = drawn(prefix, name, caption, lambda: _forest(rows, names, shown[:2]))
    return [replace(section, tables=[_table(rows, names, shown, f"{prefix}{name}", title)], figures=[figure])]


def _erasure(rows: Rows, prefix: str) -> list[Section]:
    shown = [
        Shown(f"{ERASURE}comprehensiveness", "comprehensiveness"),
        Shown(f"{ERASURE}sufficiency", "sufficiency (low is good)"),
        Shown(f"{ERASURE}norm_comprehensiveness", "normalised comprehensiveness"),
        Shown(f"{ERASURE}norm_sufficiency", "normalised sufficiency"),
    ]
    said = [
        "Comprehensiveness: by how much the predicted class loses probability when the most important tokens are "
        "masked; much is good. Sufficiency: by how much when only they are kept; little is good.",
        "They show what the model does without these tokens. They cannot tell whether it answers so because the tokens "
        "mattered or because the text left over is like none that it knows, and without a model that understands masks "
        "they do not compare from one model to the next.",
    ]
    title = "Sufficiency and comprehensiveness"
    section = Section(title, said, cautions=_strange(rows))
    caption = "Probability lost without the important tokens, and with them alone."
    return _ranked(rows, prefix, "erasure", shown, section, title, caption)


def _strange(rows: Rows) -> list[str]:
    """Return a caution where masked texts are out-of-distribution, by the run's own test, or where nobody knows."""
    found = []
    for name in ("comprehensiveness", "sufficiency"):
        shares = rows_of(rows, f"{ERASURE}{name}_outside")
        worst = _surely_strange(shares)
        if worst is not None:
            found.append(
                f"Up to {100 * worst['value']:.0f} % of the masked texts of {name} are out-of-distribution for this "
                f"model ({worst['measure']}; chance gives {100 * LEVEL:.0f} %): there it says little."
            )
    if not rows_of(rows, f"{ERASURE}sufficiency_outside"):
        found.append(UNCHECKED)
    return found


def _fidelity(rows: Rows, prefix: str) -> list[Section]:
    shown = [
        Shown(f"{FLIPS}masked_until_flip", "masked until the change (low is good)"),
        Shown(f"{FLIPS}never_flips", "texts that never change"),
        Shown(f"{FLIPS}tokens_to_flip", "masked, where it changes"),
        Shown(f"{FLIPS}flip_outside", "out-of-distribution at the change"),
    ]
    strange, cautions = _strange_flips(rows, FLIPS)
    said = [
        "Tokens are masked in the order of their importance until the model gives another answer. The fewer it takes, "
        "the better the measure has found what the answer hangs on. A text that never changes counts as masked whole.",
        "It compares measures on one model. It cannot compare models, for a model that does not understand masks "
        "changes its answer sooner, whatever is masked.",
    ]
    section = Section("Tokens to flip", said, cautions=cautions)
    caption = "Share of tokens masked when the answer changes, and of texts where it never does; dashed: at random."
    listed = shown if strange else shown[:3]
    return _ranked(rows, prefix, "fidelity", listed, section, "Masking until the answer changes", caption, False)


def _fidelity_attacked(rows: Rows, prefix: str) -> list[Section]:
    """Return the same of attacked texts, beside the numbers of the texts as they were."""
    clean = bool(rows_of(rows, f"{FLIPS}masked_until_flip"))
    strange, cautions = _strange_flips(rows, FLIPS_ATTACKED)
    kinds = {"masked_until_flip": "masked until the change (low is good)", "never_flips": "texts that never change"}
    kinds |= {"flip_outside": "out-of-distribution at the change"} if strange else {}
    shown = [
        Shown(f"{judge}{kind}", f"{title}, {which}")
        for kind, title in kinds.items()
        for judge, which in ((FLIPS_ATTACKED, "attacked"), (FLIPS, "clean"))
        if judge == FLIPS_ATTACKED or clean
    ]
    beaten = find(rows, f"{FLIPS_ATTACKED}beaten")["value"]
    changed = "" if beaten is None else f" {100 * beaten:.0f} % of the texts are answered otherwise than before."
    said = [
        "The same on texts that were attacked: words are changed until the model answers otherwise, and the attacked "
        f"text is what is explained and masked, for the answer that it gets.{changed}",
        "It shows whether the ranking of the measures is the same on such texts. It cannot show that explanations of "
        "attacked texts are better or worse: an attack ends as soon as the answer changes, so that the new answer "
        "stands on the edge and changes back after few masks, whatever explains it.",
    ]
    section = Section("Tokens to flip, on attacked texts", said, cautions=cautions)
    title, caption = "Masking attacked texts until the answer changes", "Share of tokens masked when the answer changes"
    return _ranked(rows, prefix, "fidelity-attacked", shown, section, title, f"{caption}; dashed: at random.", False)


def _strange_flips(rows: Rows, judge: str) -> tuple[list[Row], list[str]]:
    """Return the shares that are out-of-distribution where the answer changes, and what to say of them."""
    strange = rows_of(rows, f"{judge}flip_outside")
    worst = _surely_strange(strange)
    cautions = [] if strange else [UNCHECKED]
    if worst is not None:
        cautions.append(
            f"Up to {100 * worst['value']:.0f} % of the texts are out-of-distribution where their answer changes "
            f"({worst['measure']}; chance gives {100 * LEVEL:.0f} %): there the mask itself may have changed it."
        )
    return strange, cautions


def _drift(rows: Rows, prefix: str, points: Points | None) -> list[Section]:
    strange = rows_of(rows, f"{DRIFT}outside")
    worst = _surely_strange(strange)
    cautions = [] if strange else [UNCHECKED]
    if worst is not None:
        cautions.append(
            f"With {worst['detail']} masked by {worst['measure']}, {100 * worst['value']:.0f} % of the texts are "
            f"out-of-distribution (chance gives {100 * LEVEL:.0f} %): where they lie then means little."
        )
    return drift_sections(rows, prefix, points, cautions)


def _surely_strange(shares: Sequence[Row]) -> Row | None:
    """Return the measure with the largest share that is surely more than chance gives; None where there is none."""
    sure = [row for row in shares if row["low"] is not None and row["low"] > LEVEL]
    return max(sure, key=lambda row: row["value"], default=None)


def _known_token(rows: Rows, prefix: str) -> list[Section]:
    shown = [
        Shown(f"{KNOWN}overlap", "found as the most important"),
        Shown(f"{KNOWN}mean_rank", "mean rank (low is good)"),
        Shown(f"{KNOWN}average_precision", "average precision"),
    ]
    reached = find(rows, f"{KNOWN}accuracy")["value"]
    said = [
        "A model of this kind was trained on texts with random labels and one added word that tells the label, so that "
        "what it must look at is known. Found: the share of texts in which that word is ranked first. Mean rank: how "
        "far down the ranking it lies, as a share of all tokens.",
        "It shows whether a measure can find one word that decides alone. It cannot show how well a measure explains "
        "the model at hand, which weighs many words and has learnt another task.",
    ]
    cautions = []
    if reached is not None:
        said.append(f"That model reads the word in {100 * reached:.1f} % of the test texts.")
        if reached < SOLVED:
            cautions.append("It does not read the word everywhere, so that need not be what decides: this is not sure.")
    section = Section("A known token", said, cautions=cautions)
    caption = "How often and how far up the known token is found; dashed: at random."
    return _ranked(rows, prefix, "known-token", shown, section, "Finding a token that is known to decide", caption)


def _plausibility(rows: Rows, prefix: str) -> list[Section]:
    shown = [
        Shown(f"{HUMAN}average_precision", "average precision"),
        Shown(f"{HUMAN}precision_at_truth", "share of marked tokens on top"),
        Shown(f"{HUMAN}mean_rank", "rank that holds them all (low is good)"),
    ]
    said = [
        "How well the ranking agrees with the words that people marked as the reason.",
        "It shows whether an explanation looks right to people. It cannot show whether it is what the model does: a "
        "model may be right for other reasons, and an explanation that says so agrees with nobody.",
    ]
    section, caption = Section("What people marked", said), "Agreement with human reasons; dashed: at random."
    return _ranked(rows, prefix, "plausibility", shown, section, "Agreement with human reasons", caption)


def _layers(rows: Rows, prefix: str) -> list[Section]:
    names = list(dict.fromkeys(row["measure"] for row in rows_of(rows, f"{LAYERS}cascading")))
    if not names:
        return []
    blocks = [row["detail"] for row in rows_of(rows, f"{LAYERS}cascading", names[0])]
    cells = [
        [name, *(number(find(rows, f"{LAYERS}{way}", name, detail=block)) for way, block in _ends(blocks))]
        for name in names
    ]
    columns = ("measure", *(f"{block}, {way}" for way, block in _ends(blocks)))

    def draw() -> Figure:
        figure, panels = new_figure(7.4, 3.1, len(LAYER_WAYS))
        for axes, (way, title) in zip(panels, LAYER_WAYS.items(), strict=True):
            for name in names:
                found = [find(rows, f"{LAYERS}{way}", name, detail=block) for block in blocks]
                places = [place for place, row in enumerate(found) if row["value"] is not None]
                values = [found[place]["value"] for place in places]
                axes.plot(places, values, label=name, linewidth=1.5, **look(name))
            axes.set_xticks(range(len(blocks)), blocks, rotation=45, ha="right")
            axes.set_title(title)
            axes.axhline(0, color=RANDOM, linewidth=1, linestyle=":")
        panels[0].set_ylabel("Spearman's correlation")
        panels[-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return figure

    return [
        Section(
            "Fresh weights",
            [
                "Blocks of the model get random weights, as before any training, and explanations are compared with "
                "those of the trained model. An explanation that stays as it was does not depend on what was learnt "
                "there.",
                "It can show that a measure looks at something else than the model's weights. It cannot show that a "
                "measure that does change explains the model well. The fresh weights are one draw, which the intervals "
                "do not cover.",
            ],
            [Table(f"{prefix}randomisation", "Rank correlation with the trained model's explanations, with 95 % "
                   "intervals", columns, cells)],
            [drawn(prefix, "randomisation", "Rank correlation with the trained model's explanations, by the block "
                   "that was replaced.", draw)],
        )
    ]  # fmt: skip


def _ends(blocks: Sequence[str]) -> list[tuple[str, str]]:
    """Return the columns that a table has room for: the head alone, everything, and the last layer alone."""
    last = [("independent", block) for block in blocks if block.startswith("layer")][:1]
    return [("cascading", blocks[0]), ("cascading", blocks[-1]), *last]


def _other_models(rows: Rows, prefix: str) -> list[Section]:
    """Return how alike explanations of other models are: one that learnt the same, and one that learnt nothing."""
    alike = rows_of(rows, f"{OTHER}same_answer")
    chance, every = "top quarter by chance", Shown(f"{OTHER}rank_correlation", "other seed, all texts", "all texts")
    of_seed = [
        Shown(f"{OTHER}rank_correlation", "other seed", "same answer"),
        Shown(f"{OTHER}top_overlap", "other seed, top quarter", "same answer"),
        *([every] if any(row["value"] < 1 for row in alike) else []),
        Shown(f"{OTHER}chance_overlap", chance, "same answer"),
    ]
    of_fresh = [
        Shown(f"{FRESH}rank_correlation", "random weights"),
        Shown(f"{FRESH}top_overlap", "random weights, top quarter"),
        Shown(f"{FRESH}chance_overlap", chance),
    ]
    found = [shown for shown in (of_seed, of_fresh) if _measures(rows, shown[0])]
    if not found and not alike:
        return []
    if not found:
        said = [
            "The model of the other seed gives the same answer to no text, so that their explanations do not compare."
        ]
        return [Section("Another seed and random weights", said)]
    said = [
        "Explanations of the model are compared with those of a model trained in the same way with another seed, and "
        "with those of the same model with random weights. A measure that explains what was learnt says much the same "
        "of two models that answer alike, and something else of one that has learnt nothing: only both together count, "
        "for a measure that looks at the text alone is alike everywhere.",
        "It can show that a measure looks at something else than what was learnt. It cannot show that it explains the "
        "model well: two models may come to the same answer for different reasons, and the other seed and the random "
        "weights are one draw each, which the intervals do not cover.",
    ]
    if alike:
        said.append(
            f"The model of the other seed gives the same answer to {100 * alike[0]['value']:.1f} % of the texts; the "
            "numbers are of those texts, but where all are named."
        )
    # by likeness to the other seed's, or by the lack of it to random ones; who was not judged by both leaves a gap
    names = list(dict.fromkeys(name for one in found for name in _measures(rows, one[0], one is of_seed)))

    def draw() -> Figure:
        figure = _forest(rows, names, [replace(one[0], title=f"rank correlation, {one[0].title}") for one in found])
        limits = [axes.get_xlim() for axes in figure.axes]
        for axes in figure.axes:  # one scale, or the panels would not compare
            axes.set_xlim(min(low for low, _ in limits), max(high for _, high in limits))
            axes.axvline(0, color=RANDOM, linewidth=1, linestyle=":")
        return figure

    once = list({one.title: one for judge in found for one in judge}.values())
    title = "Rank correlation with another model's explanations, and overlap of the top quarter of the tokens"
    table = _table(rows, names, once, f"{prefix}other-models", title)
    caption = "Rank correlation with another model's explanations; of the other seed, on texts that both answer alike."
    return [Section("Another seed and random weights", said, [table], [drawn(prefix, "other-models", caption, draw)])]


def _attacks(rows: Rows, prefix: str) -> list[Section]:
    shown = [
        *(Shown(f"{ATTACK}rank_change", f"ranks changed, {way}", way) for way in ATTACKS),
        Shown(f"{ATTACK}random_rank_change", "ranks changed, at random", ATTACKS[0]),
        Shown(f"{ATTACK}top_k_sum_change", "importance of the top changed", ATTACKS[0]),
        *(Shown(f"{ATTACK}probability_change", f"probability changed, {way}", way) for way in ATTACKS),
    ]
    said = [
        "The word embeddings are moved, by at most 2 in any direction, so as to change the explanation while the "
        "answer stays. Few changed ranks are good; constrained attacks keep the probability too.",
        "It shows how much an explanation can be made to change by somebody who wants it to, in a space that no text "
        "reaches. It cannot show that an explanation is wrong: where the model itself changes its reasons, a faithful "
        "one changes with it.",
    ]
    section, caption = Section("Attacked explanations", said), "Share of the top ranks that an attack changes."
    return _ranked(rows, prefix, "adversarial", shown, section, "Attacks on explanations", caption, False)


def _sparsity(rows: Rows, prefix: str) -> list[Section]:
    """Return how short explanations are, where the masking curves do not show it already."""
    names = list(
        dict.fromkeys(row["measure"] for row in rows_of(rows, SHORT) if row["measure"] not in ("beam", "search"))
    )
    if not names or rows_of(rows, "sparsity"):
        return []
    shares = [row["detail"] for row in rows_of(rows, SHORT, names[0])]

    def draw() -> Figure:
        figure, (axes,) = new_figure(6.5, 2.9)
        for name in names:
            values = [find(rows, SHORT, name, detail=share)["value"] for share in shares]
            axes.plot([float(share.split()[0]) for share in shares], values, label=name, **look(name))
        axes.plot([0, 100], [0, 1], color=RANDOM, linewidth=1, linestyle=":")
        axes.set(xlabel="most important tokens [%]", ylabel="share of all importance")
        axes.legend(ncols=2)
        return figure

    return [
        Section(
            "How short the explanations are",
            [
                "The higher a curve rises at the left, the fewer tokens hold most of the importance. Dotted: all "
                "alike. A short explanation is easier to read; it is neither better nor worse for it."
            ],
            [
                _table(
                    rows,
                    names,
                    [Shown(SHORT, f"top {share}", share) for share in ("10 %", "20 %", "50 %")],
                    f"{prefix}sparsity",
                    "Share of all importance in the top tokens",
                )
            ],
            [drawn(prefix, "sparsity", "Share of all importance in the top tokens.", draw)],
        )
    ]
