"""Judging the judges: importance measures and judges on models whose reasons are known, as weights are set by hand.

The models answer simple rules about words (`faithmeter.measuring.known_answers`). The truth of a text is which words
decide, from the rule alone, and the exact Shapley values of the predicted class's logit. Prints Markdown: how well
every importance measure finds the truth, and how well every judge orders the measures, and some that are deliberately
bad, by how well they do. Takes a few minutes on one core; needs no data.
"""

import argparse
import sys
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from faithmeter.data.batch import Batch
from faithmeter.importance.measure import ImportanceMeasure, explained_once
from faithmeter.importance.table import IMPORTANCE_MEASURES, explaining
from faithmeter.judges.agreement import Scores, agreements
from faithmeter.judges.judge import Bench
from faithmeter.judges.ranking import Array, chance_of, ground_truth, rank_correlation
from faithmeter.judges.table import JUDGES
from faithmeter.measuring.curves import masking_walk
from faithmeter.measuring.known_answers import RULES, Rule, exact_shapley, known_classifier, known_texts
from faithmeter.models.classifier import Classifier
from faithmeter.statistics import mean_interval

ASKED = ("erasure", "fidelity", "insertion", "naopc", "soft", "f-fidelity", "token-change")
NAMES = {
    "fidelity: masked_until_flip": "tokens to flip",
    "erasure: comprehensiveness": "comprehensiveness",
    "erasure: sufficiency": "sufficiency",
    "insertion: insertion": "insertion",
}
FOUND, LIKE = "deciding tokens first", "rank correlation with Shapley values"
PLACES = 4  # decimals of an importance, relative to the text's largest, that count: less is rounding
Table = dict[str, dict[str, Array]]  # by what is asked and by measure: one number per text, more is better


def reversed_truth(classifier: Classifier, batch: Batch, targets: Tensor, seed: int) -> Tensor:
    """Return the opposite of the truth."""
    return -exact_shapley(classifier, batch, targets, seed)


def position_only(_classifier: Classifier, batch: Batch, _targets: Tensor, _seed: int) -> Tensor:
    """Return the same for every text: the earlier, the more important."""
    return torch.arange(batch.maskable.shape[1], 0, -1).expand(batch.maskable.shape) * batch.maskable.float()


TRUTH = ImportanceMeasure("exact-shapley", "truth", exact_shapley, signed=True)
BAD = (
    ImportanceMeasure("reversed-truth", "bad", reversed_truth, signed=True),
    ImportanceMeasure("position-only", "bad", position_only, signed=True),
)


def rounded(importance: Tensor) -> Tensor:
    """Return importance relative to the largest of its text, without what is rounding."""
    largest = importance.abs().amax(dim=1, keepdim=True).clamp_min(1e-12)
    return (importance.double() / largest).round(decimals=PLACES)


def curve_areas(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Array:
    """Return each text's area under its masking curve, negative: ACU but for the baseline, the same for all."""
    targets = bench.predicted(batch)
    steps = masking_walk(bench.classifier, batch, measure, targets, seed=bench.seed)
    rows = torch.arange(len(batch))
    kept = [bench.classifier.logits_of_masks(step, rows, step.masked).argmax(dim=-1) == targets for step in steps]
    return -np.trapezoid(torch.stack(kept, dim=1).double().numpy(), dx=1 / (len(kept) - 1), axis=1)


def qualities(bench: Bench, batch: Batch, measures: list[ImportanceMeasure]) -> Table:
    """Return how well each measure finds the truth; a measure that says the same of all tokens ranks none: 0."""
    shapley, table = rounded(bench.explained(batch, TRUTH)), Table({FOUND: {}, LIKE: {}})
    for measure in measures:
        importance = bench.explained(batch, measure)
        table[FOUND][measure.name] = ground_truth(importance, batch.maskable, bench.true_tokens(batch))["overlap"]
        like = rank_correlation(rounded(importance), shapley, batch.maskable)
        table[LIKE][measure.name] = np.nan_to_num(like)
    return table


def judgements(bench: Bench, batch: Batch, measures: list[ImportanceMeasure]) -> Table:
    """Return every judge's numbers for each measure, so that more is better."""
    table: Table = {}
    for measure in measures:
        table.setdefault("masking curve (ACU)", {})[measure.name] = curve_areas(bench, batch, measure)
        once = explained_once(measure) if measure.recursive else measure
        table.setdefault("masking curve, explained once", {})[measure.name] = curve_areas(bench, batch, once)
        for judge in (JUDGES[name] for name in ASKED):
            if judge.can_judge(measure):
                columns = judge.judge(bench, batch, measure)
                for column, more_is_better in judge.scores.items():
                    title = f"{judge.name}: {column}"
                    scores = table.setdefault(NAMES.get(title, title.replace("_", " ")), {})
                    scores[measure.name] = columns[column] if more_is_better else -columns[column]
    return table


def studied(rule: Rule, options: argparse.Namespace) -> tuple[Table, Table, float]:
    """Return the true quality of all measures on the texts of a rule, what judges say, and chance."""
    classifier = known_classifier(rule)
    texts, decide = known_texts(rule, options.rows, seed=options.seed)
    test = classifier.encode([" ".join(words) for words in texts])
    truth = np.zeros(len(test.ids), dtype=np.bool_)
    truth[test.maskable] = np.concatenate(decide)
    bench = Bench(classifier, test, None, options.seed, truth)
    batch = test.batch(range(len(test)))
    expected = torch.tensor([int(rule.answer(words)) for words in texts])
    assert torch.equal(bench.predicted(batch), expected), f"{rule.name}: the model does not answer its rule"
    names = options.measures or [*explaining(classifier), "random"]
    measures = [TRUTH, *(IMPORTANCE_MEASURES[name] for name in names), *BAD]
    chance = chance_of(batch.maskable, bench.true_tokens(batch))["overlap"].mean()
    return qualities(bench, batch, measures), judgements(bench, batch, measures), float(chance)


def number(value: float) -> str:
    """Return a number with two decimals and a true minus sign; −0.00 is 0.00."""
    return f"{round(float(value), 2) + 0.0:.2f}".replace("-", "−")


def cell(values: Array) -> str:
    """Return a mean and its 95 % interval over texts; none where all texts have the same."""
    interval = mean_interval(values) if np.ptp(values) > 0 else None
    return number(values.mean()) + ("" if interval is None else f" ({number(interval[0])} to {number(interval[1])})")


def correlation(quality: Mapping[str, Array], judged: Mapping[str, Array], seed: int) -> tuple[float, str]:
    """Return the rank correlation of a judge's mean scores with the true quality, and it with its interval."""

    def scores(values: Mapping[str, Array]) -> dict[str, Scores]:
        # means that are equal but for rounding are ties
        return {
            name: Scores(np.arange(len(one)), np.round(one, 6)) for name, one in values.items() if name != TRUTH.name
        }

    found = agreements({"truth": scores(quality), "judge": scores(judged)}, seed=seed)
    if not found:
        return np.nan, "–"
    one = found[0]
    return one.value, f"{number(one.value)} ({number(one.low)} to {number(one.high)})"


def print_table(first: str, columns: list[str], rows: Mapping[str, list[str]]) -> None:
    """Print a table as Markdown."""
    print(f"\n| {first} | {' | '.join(columns)} |\n|{'---|' * (1 + len(columns))}")
    for name, cells in rows.items():
        print(f"| {name} | {' | '.join(cells)} |")


def better_than_truth(scores: Mapping[str, Array]) -> str:
    """Return how many measures a judge gives a better mean score than the exact Shapley values."""
    if TRUTH.name not in scores:
        return "–"
    means = {name: np.nanmean(one) for name, one in scores.items() if not np.isnan(one).all()}
    return str(sum(mean > means[TRUTH.name] + 1e-6 for mean in means.values()))


def main() -> None:
    """Build the models, explain, judge, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES))
    parser.add_argument("--rows", type=int, default=30, help="texts of each rule")
    parser.add_argument("--measures", nargs="+", help="instead of all that can explain the models")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    studies = {}
    for name in options.rules:
        print(f"{name} ...", file=sys.stderr, flush=True)
        studies[name] = studied(RULES[name], options)
    for what in (FOUND, LIKE):
        print(f"\n{what[0].upper()}{what[1:]}: mean over {options.rows} texts of each rule, 95 % intervals over texts.")
        rows = {"(chance)": [f"{chance:.2f}" for _, _, chance in studies.values()]} if what == FOUND else {}
        order = next(iter(studies.values()))[0][what]
        mean = {name: np.mean([quality[what][name].mean() for quality, _, _ in studies.values()]) for name in order}
        for name in sorted(order, key=lambda one: -mean[one]):
            rows[name] = [*(cell(quality[what][name]) for quality, _, _ in studies.values()), number(mean[name])]
        if what == FOUND:
            rows["(chance)"].append(f"{np.mean([chance for _, _, chance in studies.values()]):.2f}")
        print_table("measure", [*studies, "mean"], rows)
    judges = list(next(iter(studies.values()))[1])
    for what, other in ((FOUND, LIKE), (LIKE, FOUND)):
        print(f"\nRank correlation of the judges' mean scores with the true quality ({what}), over the measures.")
        rows = {}
        for judge in (*judges, f"({other})"):
            cells = [
                correlation(quality[what], judged.get(judge, quality[other]), options.seed)
                for quality, judged, _ in studies.values()
            ]
            rows[judge] = [*(text for _, text in cells), number(np.mean([value for value, _ in cells]))]
        print_table("judge", [*studies, "mean"], rows)
    count = len(next(iter(studies.values()))[0][FOUND]) - 1
    print(f"\nHow many of the {count} measures a judge scores better than the exact Shapley values.")
    rows = {judge: [better_than_truth(judged[judge]) for _, judged, _ in studies.values()] for judge in judges}
    print_table("judge", list(studies), rows)


if __name__ == "__main__":
    main()
