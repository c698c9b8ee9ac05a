"""How much a study in rounds saves on a run that was measured on all texts, in several orders of the texts.

    faithmeter measure RUN --measures loo-signed,ig-signed,grad-l2 --rows 200
    python benchmarks/until_certain.py RUN --rows 200

Decides from the stored answers, so it takes seconds. Printed as Markdown.
"""

import argparse

import numpy as np

from faithmeter import IMPORTANCE_MEASURES, MeasureOptions, Run
from faithmeter.progress import Silent
from faithmeter.runs.texts import encode
from faithmeter.statistics.best_set import best_set, differences_between
from faithmeter.studies.measure import _rows_of, _token_passes
from faithmeter.studies.until_certain import Rounds, scores_on

DRAWS = 5  # of random masking, on as many texts as any measure


def main() -> None:
    """Print the best set of all texts, and where each order of the texts ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--rows", type=int, required=True, help="texts that the run was measured on")
    parser.add_argument("--orders", type=int, default=6, help="orders of the texts, that of the run first")
    given = parser.parse_args()
    run = Run(given.run)
    test = encode(run.classifier(), run.data().test, "test", Silent())
    rows = _rows_of("random", MeasureOptions(rows=given.rows), test)
    names = [name for name in run.measurement_settings["asked"]["measures"] if name != "beam"]
    whole = best_set(differences_between(scores_on(run, test, names, rows)))
    print("All texts:", ", ".join(name for name, may in zip(names, whole.may_be_best, strict=True) if may), "\n")
    print("| order | texts | may be best | passes used | why it ended |\n|---|---|---|---|---|")
    for number in range(given.orders):
        order = rows if number == 0 else np.random.default_rng(number).permutation(rows)
        rounds, texts = Rounds(names, order, 0), dict[str, int]()
        for look in rounds.looks.texts:
            texts |= dict.fromkeys(rounds.left, look)
            decision = rounds.look(run, test)
            if decision.stop is not None:
                break

        def passes(name: str, count: int, order: np.ndarray = order) -> float:
            return _token_passes((name, IMPORTANCE_MEASURES[name], 0, order[:count]), test)

        used = sum(passes(name, count) for name, count in texts.items()) + DRAWS * passes("random", max(texts.values()))
        full = sum(passes(name, given.rows) for name in names) + DRAWS * passes("random", given.rows)
        print(f"| {number} | {look} | {', '.join(rounds.left)} | {used / full:.0%} | {decision.stop.value} |")


if __name__ == "__main__":
    main()
