"""How far the statistics hold: coverage, family-wise error and power, from simulated texts of which the truth is known.

    python benchmarks/calibration.py --only coverage     # intervals of ACU and RACU, by every method
    python benchmarks/calibration.py --only chosen       # those that are used, and what the random baseline adds
    python benchmarks/calibration.py --only best-set     # pairs, the best set, the winner's estimate
    python benchmarks/calibration.py --only runs         # the best set over a few trainings
    python benchmarks/calibration.py --only stopping     # looks at a growing number of texts
    python benchmarks/calibration.py --only plan         # a pilot of 30 texts
    python benchmarks/calibration.py --only groups       # texts of one author, as texts and as groups

A pool of texts stands for all texts there are. Of each the predicted class is known along eleven steps for several
measures and random draws, from a latent model: the margin of the true class falls as tokens are masked, faster for a
better measure, and what remains at the end is the model's favourite class. Studies are samples of texts from the pool.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from faithmeter import statistics
from faithmeter.measuring.contributions import areas_of, paired_differences
from faithmeter.measuring.curves import Curve, area_and_scale
from faithmeter.statistics import bca_interval, best_set, percentile_band
from faithmeter.statistics.best_set import best_set_over_runs, differences_between, winners_estimate
from faithmeter.statistics.intervals import (
    baseline_share,
    draws_needed,
    jackknife_interval,
    pseudo_values,
    ratio_interval,
)
from faithmeter.statistics.stopping import Looks, decide, flipped_t_values, planned_looks, texts_to_separate

STEPS = 10


@dataclass(frozen=True)
class World:
    """A pool: gold (texts,), predicted (measures, texts, steps + 1), at_random (draws, texts, steps + 1)."""

    metric: str
    gold: np.ndarray
    predicted: np.ndarray
    at_random: np.ndarray

    def sample(self, texts: np.ndarray) -> tuple[np.ndarray, list[Curve], list[Curve]]:
        """Return gold and curves of some texts."""
        curves, draws = (
            [Curve(each[texts].astype(np.int64), np.zeros((len(texts), 1))) for each in part]
            for part in (self.predicted, self.at_random)
        )
        return self.gold[texts], curves, draws


def world(metric: str, speeds: list[float], *, size: int = 50_000, draws: int = 5, margin: float = 3.0) -> World:
    """Return a pool in which measure k lets the margin fall as (1 − x)^speed; random masking has a speed of 1.5."""
    shares = {"accuracy": [1 / 6] * 6, "macro-f1": [0.5, 0.3, 0.2], "matthews": [0.7, 0.3]}[metric]
    random = np.random.default_rng(1)
    gold = random.choice(len(shares), size=size, p=shares)
    favourite = np.log(shares) + random.gumbel(size=(size, len(shares)))  # what is answered to an empty text varies
    own = np.maximum(0.1, random.normal(margin, 2.0, size))
    text_effect = random.normal(0, 0.4, size)
    left = 1 - np.arange(STEPS + 1) / STEPS

    def predicted(speed: float, noise: float) -> np.ndarray:
        pace = speed * np.exp(text_effect + random.normal(0, noise, size))
        answers = np.empty((size, STEPS + 1), dtype=np.int8)
        for step, rest in enumerate(left):
            scores = favourite * 0.8
            scores[np.arange(size), gold] += own * rest**pace
            answers[:, step] = scores.argmax(axis=1)
        return answers

    measures = np.stack([predicted(speed, 0.6) for speed in speeds])
    return World(metric, gold, measures, np.stack([predicted(1.5, 0.7) for _ in range(draws)]))


def intervals_of(statistic: Callable, texts: int) -> dict[str, tuple[float, float] | None]:
    """Return the intervals of one study: of ACU and of RACU, by each method."""

    def ratio(weights: np.ndarray) -> np.ndarray:
        acu, scale = statistic(weights).T
        return np.divide(acu, scale, out=np.full_like(acu, np.nan), where=scale > 1e-12)

    acu, scale = (float(value) for value in statistic(np.ones((1, texts)))[0])
    values = pseudo_values(statistic, texts)
    low, high = percentile_band(lambda weights: np.stack([statistic(weights)[:, 0], ratio(weights)], axis=1), texts)
    return {
        "ACU BCa": bca_interval(lambda weights: statistic(weights)[:, 0], texts),
        "ACU percentile": (low[0], high[0]),
        "ACU jackknife": jackknife_interval(values[:, 0], acu),
        "RACU BCa": bca_interval(ratio, texts),
        "RACU percentile": (low[1], high[1]),
        "RACU jackknife": None if scale <= 0 else jackknife_interval(pseudo_values(ratio, texts), acu / scale),
        "RACU Fieller": ratio_interval((acu, scale), values[:, 0], values[:, 1]),
    }


def coverage(studies: int) -> None:
    """Print how often 95 % intervals of ACU and RACU hold the truth, and of how many studies there is none."""
    statistics.RESAMPLES = 999  # a tenth, or it would take hours
    print("| metric | texts | truth: ACU, RACU |", " | ".join(METHODS), "|\n|---|---|---|" + "---|" * len(METHODS))
    for metric, margin in WORLDS:
        pool = world(metric, [6.0], margin=margin)
        gold, curves, draws = pool.sample(np.arange(len(pool.gold)))
        acu, scale = area_and_scale(metric, gold, curves[0], draws)(np.ones((1, len(gold))))[0]
        truth = {"ACU": acu, "RACU": acu / scale}
        for texts in (50, 100, 200, 300):
            covered: dict[str, list[bool]] = {name: [] for name in METHODS}
            for study in range(studies):
                gold, curves, draws = pool.sample(np.random.default_rng([2, texts, study]).integers(50_000, size=texts))
                found = intervals_of(area_and_scale(metric, gold, curves[0], draws), texts)
                for name, interval in found.items():
                    if interval is not None and np.isfinite(interval).all():
                        covered[name].append(bool(interval[0] <= truth[name.split()[0]] <= interval[1]))
            cells = [
                f"{np.mean(held):.1%}" + (f" ({1 - len(held) / studies:.0%} none)" if len(held) < studies else "")
                for held in covered.values()
            ]
            print(
                f"| {label(metric, margin)} | {texts} | {acu:.3f}, {acu / scale:.2f} |",
                " | ".join(cells),
                "|",
                flush=True,
            )


METHODS = (
    "ACU BCa", "ACU percentile", "ACU jackknife", "RACU BCa", "RACU percentile", "RACU jackknife", "RACU Fieller",
)  # fmt: skip


def chosen(studies: int) -> None:
    """Print the coverage of the intervals that are used, with one and five draws, and the share of the baseline."""
    print("| metric | texts | ACU, 5 draws | ACU, 1 draw | RACU, 5 draws | no RACU interval", end=" | ")
    print("baseline's share | draws for < 10 % |")
    print("|---|---|---|---|---|---|---|---|")
    for metric, margin in WORLDS:
        pool = world(metric, [6.0], margin=margin)
        gold, curves, draws = pool.sample(np.arange(len(pool.gold)))
        acu, scale = area_and_scale(metric, gold, curves[0], draws)(np.ones((1, len(gold))))[0]
        for texts in (50, 100, 200, 300):
            held: dict[str, list[float]] = {name: [] for name in ("five", "one", "ratio", "share", "needed")}
            for study in range(studies):
                gold, curves, draws = pool.sample(np.random.default_rng([6, texts, study]).integers(50_000, size=texts))
                for name, used in (("five", draws), ("one", draws[:1])):
                    statistic = area_and_scale(metric, gold, curves[0], used)
                    values = pseudo_values(statistic, texts)
                    own = statistic(np.ones((1, texts)))[0]
                    differing = int(
                        np.any([each.predicted != curves[0].predicted for each in used], axis=0).any(axis=1).sum()
                    )
                    interval = jackknife_interval(values[:, 0], own[0], differing=differing)
                    held[name].append(inside(interval, acu))
                    if name == "five":
                        fieller = ratio_interval((own[0], own[1]), values[:, 0], values[:, 1])
                        held["ratio"] += [] if fieller is None else [inside(fieller, acu / scale)]
                        area = values[:, 0]
                at_random = -pseudo_values(areas_of(metric, gold, draws, []), texts).T
                held["share"].append(baseline_share(at_random, area))
                held["needed"].append(draws_needed(at_random, area) or np.nan)
            cells = [f"{np.mean(held[name]):.1%}" for name in ("five", "one", "ratio")]
            cells += [f"{1 - len(held['ratio']) / studies:.0%}", f"{np.mean(held['share']):.0%}"]
            print(
                f"| {label(metric, margin)} | {texts} |",
                " | ".join(cells),
                f"| {np.median(held['needed']):.0f} |",
                flush=True,
            )


def inside(interval: tuple[float, float] | None, truth: float) -> bool:
    """Return whether there is an interval and it holds the truth."""
    return interval is not None and bool(interval[0] - 1e-12 <= truth <= interval[1] + 1e-12)


def study_of(pool: World, texts: int, seed: list[int], tied: int) -> tuple[np.ndarray, list[Curve], list[Curve]]:
    """Return a sample in which the first measures share the first place: in each text they change places at random."""
    random = np.random.default_rng(seed)
    chosen_texts = random.integers(len(pool.gold), size=texts)
    gold, curves, draws = pool.sample(chosen_texts)
    order = random.permuted(np.tile(np.arange(tied), (texts, 1)), axis=1)
    swapped = pool.predicted[:tied, chosen_texts][order.T, np.arange(texts)].astype(np.int64)
    return gold, [Curve(each, np.zeros((texts, 1))) for each in swapped] + curves[tied:], draws


def true_areas(pool: World, tied: int) -> np.ndarray:
    """Return the ACU of every measure in the whole pool; of tied ones, which change places, their mean."""
    gold, curves, draws = pool.sample(np.arange(len(pool.gold)))
    areas = areas_of(pool.metric, gold, curves, draws)(np.ones((1, len(gold))))[0]
    areas[:tied] = areas[:tied].mean()
    return areas


def compare_best_sets(studies: int) -> None:
    """Print family-wise error, joint coverage, the size of the best set, and how biased the winner's estimate is."""
    best_set.RESAMPLES = best_set.FLIPS = 999
    print(
        "| world | metric | texts | a best one left out | all intervals hold | measures in the set "
        "| winner: optimistic bias | cross-fitted bias | cross-fitted interval holds |\n" + "|---" * 9 + "|"
    )
    for name, (speeds, tied) in LADDERS.items():
        for metric in ("accuracy", "macro-f1", "matthews"):
            pool = world(metric, speeds, draws=2)
            truth = true_areas(pool, tied)
            pairs = truth[:, None] - truth[None, :]
            for texts in (50, 200):
                rows = []
                for study in range(studies):
                    gold, curves, draws = study_of(pool, texts, [7, texts, study], tied)
                    statistic = areas_of(metric, gold, curves, draws)
                    told = best_set.best_set(differences_between(pseudo_values(statistic, texts)))
                    winner = winners_estimate(statistic, texts)
                    all_hold = ((told.low <= pairs + 1e-12) & (pairs <= told.high + 1e-12)) | np.isnan(told.low)
                    target = np.mean([truth[measure] for measure in winner.chosen])
                    rows.append(
                        (
                            not told.may_be_best[:tied].all(),
                            all_hold.all(),
                            told.may_be_best.sum(),
                            winner.optimistic - truth.max(),
                            winner.value - target,
                            inside(winner.interval, target),
                        )
                    )
                out, hold, size, optimistic, fitted, covered = np.mean(rows, axis=0)
                print(
                    f"| {name} | {metric} | {texts} | {out:.1%} | {hold:.1%} | {size:.1f} of {len(speeds)} "
                    f"| {optimistic:+.4f} | {fitted:+.4f} | {covered:.1%} |",
                    flush=True,
                )


def compare_runs(studies: int) -> None:
    """Print error and power of the best set over trainings, of normal values with equal and unequal spread."""
    print("| trainings | spread | one is ahead by | all tied: one left out | all others left out | any left out |")
    print("|---|---|---|---|---|---|")
    random = np.random.default_rng(8)
    for runs in (3, 5, 10):
        for name, spread in (("equal", np.ones(8)), ("1 to 4", np.linspace(1, 4, 8))):
            values = random.normal(size=(studies, runs, 8)) * spread
            error = np.mean([not best_set_over_runs(each).may_be_best.all() for each in values])
            for ahead in (4, 8, 16):
                shifted = [best_set_over_runs(each + ahead * np.eye(8)[0]).may_be_best.sum() for each in values]
                alone, some = (np.mean(np.array(shifted) <= most) for most in (1, 7))
                print(f"| {runs} | {name} | {ahead} | {error:.1%} | {alone:.1%} | {some:.1%} |", flush=True)


def compare_stopping(studies: int) -> None:
    """Print how often a best measure is dropped at any look, what is measured, and whether the full set is the same."""
    looks = Looks(planned_looks(300))
    print("looks after", ", ".join(map(str, looks.texts)), "texts\n")
    print("| world | metric | studies | a best one dropped | texts × measures used | set: until certain", end=" | ")
    print("set: all texts | the same set | why it ended |")
    print("|---|---|---|---|---|---|---|---|---|")
    for metric, share in (("accuracy", 1.0), ("matthews", 0.2)):
        for name, (speeds, tied) in LADDERS.items():
            pool = world(metric, speeds, draws=1)
            rows, ends = [], []
            for study in range(int(studies * share)):
                gold, curves, _ = study_of(pool, 300, [9, study], tied)
                rounds = [
                    pseudo_values(
                        areas_of(
                            metric, gold[:n], [Curve(each.predicted[:n], each.probability[:n]) for each in curves], []
                        ),
                        n,
                    )
                    for n in (looks.texts[-1:] if metric == "accuracy" else looks.texts)
                ]
                rounds = [rounds[0][:n] for n in looks.texts] if metric == "accuracy" else rounds
                decision = decide(rounds, looks)
                whole = best_set.told_apart(*flipped_t_values(rounds[-1], SIGNS), 0.05)
                kept, everything = decision.may_be_best, ~whole.any(axis=0)
                used = np.where(kept, decision.next_texts, decision.dropped_at).sum() / (300 * len(speeds))
                rows.append((not kept[:tied].all(), used, kept.sum(), everything.sum(), (kept == everything).all()))
                ends.append(decision.stop.name.lower())
            out, used, size, full, same = np.mean(rows, axis=0)
            why = ", ".join(f"{end} {ends.count(end) / len(ends):.0%}" for end in sorted(set(ends)))
            print(
                f"| {name} | {metric} | {len(rows)} | {out:.1%} | {used:.0%} | {size:.2f} | {full:.2f} "
                f"| {same:.0%} | {why} |",
                flush=True,
            )


def compare_plans(studies: int) -> None:
    """Print what a pilot of 30 texts plans for pairs with the best, beside what the pool itself would plan."""
    pool = world("accuracy", LADDERS["ladder"][0], draws=1)
    correct = pool.predicted == pool.gold[None, :, None]
    scores = -np.trapezoid(correct.astype(np.float64), dx=1 / STEPS, axis=-1).T
    needed = texts_to_separate(scores[:10_000])[0]
    pilots = np.array(
        [texts_to_separate(scores[np.random.default_rng([10, s]).integers(50_000, size=30)])[0] for s in range(studies)]
    )
    print("| pair | needed | planned, median | middle half | within a factor of 2 |\n|---|---|---|---|---|")
    for other in range(1, len(needed)):
        planned = pilots[:, other]
        low, middle, high = np.quantile(planned, (0.25, 0.5, 0.75), method="nearest")
        close = np.mean((planned >= needed[other] / 2) & (planned <= 2 * needed[other]))
        print(f"| first, {other + 1}. | {needed[other]:.0f} | {middle:.0f} | {low:.0f} to {high:.0f} | {close:.0%} |")


def grouped_sample(pool: World, groups: int, texts: int, share: float, random: np.random.Generator) -> tuple:
    """Return the texts of a study, so many in each group, and the groups' numbers.

    A share of a group's texts is a copy of its first one: as alike as texts of one author can be. The expected value of
    every number over texts is that of the pool.
    """
    numbers = np.repeat(np.arange(groups), texts)
    drawn = random.integers(len(pool.gold), size=len(numbers))
    first = drawn[::texts][numbers]
    return np.where(random.random(len(numbers)) < share, first, drawn), numbers


def compare_groups(studies: int) -> None:
    """Print coverage and family-wise error where texts are of groups, with and without regard to that."""
    best_set.RESAMPLES = best_set.FLIPS = 999
    print(
        "| metric | groups × texts | alike | ACU, over texts | over groups | RACU, over texts | over groups "
        "| all tied: one left out, over texts | over groups |\n" + "|---" * 9 + "|"
    )
    for metric in ("accuracy", "macro-f1"):
        pool = world(metric, [6.0] * 4, draws=2)
        # in each text, and so in all copies of it, the measures change places at random
        places_of = np.random.default_rng(5).random((4, len(pool.gold))).argsort(axis=0)
        gold, curves, draws = pool.sample(np.arange(len(pool.gold)))
        acu, scale = area_and_scale(metric, gold, curves[0], draws)(np.ones((1, len(gold))))[0]
        for groups, texts, share in ((100, 3, 0.0), (20, 10, 0.9), (50, 5, 0.9), (100, 3, 0.9), (50, 5, 0.5)):
            rows = []
            for study in range(studies):
                random = np.random.default_rng([11, groups, int(10 * share), study])
                chosen_texts, numbers = grouped_sample(pool, groups, texts, share, random)
                row = []
                gold, curves, draws = pool.sample(chosen_texts)
                swapped = pool.predicted[:, chosen_texts][places_of[:, chosen_texts], np.arange(len(numbers))]
                swapped = swapped.astype(np.int64)
                tied = [Curve(each, np.zeros((len(each), 1))) for each in swapped]
                for known in (None, numbers):
                    values = pseudo_values(area_and_scale(metric, gold, curves[0], draws), len(gold), known)
                    now = area_and_scale(metric, gold, curves[0], draws)(np.ones((1, len(gold))))[0]
                    row.append(inside(jackknife_interval(values[:, 0], now[0]), acu))
                    row.append(inside(ratio_interval((now[0], now[1]), values[:, 0], values[:, 1]), acu / scale))
                    places = [np.arange(len(gold))] * len(tied)
                    told = best_set.best_set(paired_differences(metric, gold, tied, places, known))
                    row.append(not told.may_be_best.all())
                rows.append(row)
            a, r, out, a_groups, r_groups, out_groups = np.mean(rows, axis=0)
            print(
                f"| {metric} | {groups} × {texts} | {share:.0%} | {a:.1%} | {a_groups:.1%} | {r:.1%} | {r_groups:.1%} "
                f"| {out:.1%} | {out_groups:.1%} |",
                flush=True,
            )


def label(metric: str, margin: float) -> str:
    """Return the name of a world in a table."""
    return metric if margin > 0 else f"{metric}, a model that hardly reads"


WORLDS = (("accuracy", 3.0), ("macro-f1", 3.0), ("matthews", 3.0), ("accuracy", -2.0))
# speeds of eight measures, and how many of them share the first place
LADDERS = {
    "one is clear": ([12.0, 5.0, 4.0, 4.0, 3.0, 2.0, 2.0, 1.5], 1),
    "two share it": ([8.0, 8.0, 4.0, 4.0, 3.0, 2.0, 2.0, 1.5], 2),
    "all share it": ([6.0] * 8, 8),
    "ladder": ([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0], 1),
}
SIGNS = best_set.random_signs(best_set.FLIPS, 300, 0)
TABLES: dict[str, tuple[Callable[[int], None], int]] = {
    "coverage": (coverage, 300),
    "chosen": (chosen, 400),
    "best-set": (compare_best_sets, 200),
    "runs": (compare_runs, 500),
    "stopping": (compare_stopping, 1000),
    "plan": (compare_plans, 500),
    "groups": (compare_groups, 300),
}


def main() -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TABLES, action="append", help="a table; all of them without")
    parser.add_argument("--studies", type=int, help="simulated studies per line, in place of each table's own number")
    arguments = parser.parse_args()
    for name in arguments.only or TABLES:
        table, studies = TABLES[name]
        started = time.process_time()
        print(f"\n## {name}, {arguments.studies or studies} studies per line\n", flush=True)
        table(arguments.studies or studies)
        print(f"\n{(time.process_time() - started) / 60:.1f} minutes of one core", flush=True)


if __name__ == "__main__":
    main()
