"""Is a whole split in-distribution? Simes' p-value as in the paper, and two tests with more power.

Simes' test over the texts needs one text so atypical that it stands out among thousands; conformal p-values cannot be
that small. So the verdict counts the texts below 5 % and compares their ranks, each at half the level.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

from faithmeter.in_distribution.masf import LENGTH_GROUPS, ROWS_A_GROUP, MaSF
from faithmeter.in_distribution.p_values import design_effect, simes
from faithmeter.masking import STEPS
from faithmeter.statistics import LEVEL


@dataclass(frozen=True)
class DatasetTest:
    """A split's p-values as one. `share_below` is the share of rows with p ≤ .05.

    `simes_p_value` is the paper's dataset p-value. `count_p_value`: are there too many rows below 5 %?
    `rank_p_value`: do the rows lie higher among the calibration rows than chance puts them (Mann-Whitney, one-sided)?
    `dataset_p_value` is twice the smaller of these two.
    """

    rows: int
    share_below: float
    simes_p_value: float
    count_p_value: float
    rank_p_value: float

    @property
    def dataset_p_value(self) -> float:
        """The verdict's p-value: each of the two tests has half of the level."""
        return min(1.0, 2 * min(self.count_p_value, self.rank_p_value))

    @property
    def rejected(self) -> bool:
        """Whether the split is rejected at 5 %."""
        return self.dataset_p_value <= LEVEL


@dataclass(frozen=True)
class Verdict:
    """Two tests of a split at one masking step, and the result in words.

    `random` tests whether its texts differ from randomly masked ones at this ratio, `anywhere` whether they are also
    atypical among texts masked at any ratio: only that is out-of-distribution. Masking by importance often gives the
    first and not the second.
    """

    step: int
    random: DatasetTest
    anywhere: DatasetTest

    @property
    def words(self) -> str:
        """Return the result at this step; whether masking may be trusted depends on all steps (`summary`)."""
        below, out = (f"{100 * test.share_below:.1f} %" for test in (self.random, self.anywhere))
        if self.anywhere.rejected:
            return (
                f"Out-of-distribution: {out} of the texts are atypical for any masking ratio, more than by chance. The "
                "model's predictions on masked texts say nothing about its explanations."
            )
        if self.random.rejected:
            return (
                f"In-distribution, but not like random masking: {below} of the texts are atypical for this ratio, "
                "where chance gives 5 %, and typical for another."
            )
        return f"In-distribution: {below} of the texts are atypical, where chance gives 5 %."


@dataclass(frozen=True)
class Footing:
    """What a verdict can rest on, in numbers.

    `level` and `level_by_length` are the shares of typical texts between which the test calls atypical at 5 %, in 95
    of 100 fits, over all texts and within one group of length. `length_groups` is how many groups of length have a
    level of their own, and `needed` the number of atypical texts among the `tested` from which on they are rejected at
    one ratio of eleven; None where no number of them is enough.
    """

    validation: int
    tested: int
    length_groups: int
    level: tuple[float, float]
    level_by_length: tuple[float, float]
    needed: int | None

    @property
    def words(self) -> str:
        """Say what the test can tell, and what not."""
        low, high = (f"{100 * share:.0f}" for share in self.level)
        said = (
            f"Fitted on {self.validation} texts, the test calls between {low} and {high} % of typical texts atypical "
            "at 5 %"
        )
        if self.length_groups < LENGTH_GROUPS:
            fewest = 2 * LENGTH_GROUPS * ROWS_A_GROUP
            said += f"; of short texts more and of long ones fewer: for each fifth of length {fewest} texts are needed"
        else:
            low, high = (f"{100 * share:.0f}" for share in self.level_by_length)
            said += f", and of texts of about one length between {low} and {high} %"
        if self.needed is None:
            return f"{said}. No number of atypical texts among {self.tested} would be counted as too many."
        return f"{said}. Of {self.tested} texts {self.needed} must be atypical at a ratio to be counted as too many."


def footing(masf: MaSF, tested: int) -> Footing:
    """Return what a verdict on `tested` texts can rest on, with this test.

    The share of typical texts at or below 5 % is a draw from Beta(a, m + 1 − a) for m calibration rows, a of them
    allowed (Vovk, 2012, Sec. 3), fewer where rows of one story are alike.
    """
    sizes = masf.calibration_rows
    shares = [tested * size // sum(sizes) for size in sizes]
    law = _count_law(shares, sizes, (1.0, masf.design_effect))
    enough = np.flatnonzero(law[::-1].cumsum()[::-1] <= LEVEL / 2 / (STEPS + 1))

    def between(size: float) -> tuple[float, float]:
        known = size / masf.design_effect + 1
        low, high = scipy.stats.beta.ppf((0.025, 0.975), LEVEL * known, (1 - LEVEL) * known)
        return float(low), float(high)

    return Footing(
        validation=masf.rows,
        tested=tested,
        length_groups=len(sizes),
        level=between(sum(sizes)),
        level_by_length=between(min(sizes)),
        needed=int(enough[0]) if len(enough) else None,
    )


def dataset_verdict(
    masf: MaSF, own: Tensor, outside: Tensor, lengths: Tensor, step: int, groups: Tensor | None = None
) -> Verdict:
    """Judge a split, all of it masked at `step`, from the two p-values of its rows.

    `outside` is at least `own`, so its tests err on the safe side. `groups` names the story or author of each row,
    where several rows have one.
    """
    of_length = masf.length_groups(lengths)
    sizes = masf.calibration_rows
    effects = (1.0 if groups is None else design_effect(own, groups), masf.design_effect)
    random, anywhere = (
        dataset_test([p_values[of_length == group] for group in range(len(sizes))], sizes, effects)
        for p_values in (own, outside)
    )
    # above the level `outside` is not the largest of all p-values, so its ranks say nothing: only the count does
    return Verdict(
        step, random, replace(anywhere, rank_p_value=1.0) if masf.anywhere and masf.every_ratio else anywhere
    )


def dataset_test(
    p_values: list[Tensor], calibration_rows: tuple[int, ...], effects: tuple[float, float] = (1.0, 1.0)
) -> DatasetTest:
    """Test conformal p-values, given for each set of calibration rows that they were calibrated with.

    `effects` are the design effects of the rows and of the calibration rows: n of them count as n / effect.
    """
    together = torch.cat(p_values).double()
    if not len(together):
        raise ValueError("a verdict needs at least one row")
    return DatasetTest(
        rows=len(together),
        share_below=float((together <= LEVEL).double().mean()),
        simes_p_value=float(simes(together)),
        count_p_value=_count_p_value(p_values, calibration_rows, effects),
        rank_p_value=_rank_p_value(p_values, calibration_rows, effects),
    )


def _count_p_value(p_values: list[Tensor], calibration_rows: tuple[int, ...], effects: tuple[float, float]) -> float:
    """Return P(K ≥ k), K ~ BetaBinomial(rows, a, m + 1 − a), a = floor(.05·(m + 1)), summed over independent groups.

    The rows share their calibration set, which makes K wider than a binomial. Counted are p-values up to a/(m + 1),
    the largest attainable level not above 5 %, where that law is exact. With design effects the law is that of fewer
    rows and calibration rows at the same level, and of as many fewer counted, both in whole numbers.
    """
    rows, counted = [], 0
    for group, size in zip(p_values, calibration_rows, strict=True):
        allowed = _allowed(size)
        rows.append(len(group))
        counted += int((group <= allowed / (size + 1)).sum()) if allowed else 0
    return float(min(1.0, _count_law(rows, calibration_rows, effects)[int(counted / effects[0]) :].sum()))


def _allowed(size: int) -> int:
    """Return how many of m + 1 equally likely places are at or below 5 %."""
    return int(LEVEL * (size + 1) + 1e-9)


def _count_law(
    rows: Sequence[int], calibration_rows: Sequence[int], effects: tuple[float, float]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the law of the number of rows below 5 %, given how many rows each set of calibration rows has to judge."""
    law = np.ones(1)
    for count, size in zip(rows, calibration_rows, strict=True):
        if count and (allowed := _allowed(size)):
            fewer, level, known = int(np.ceil(count / effects[0])), allowed / (size + 1), size / effects[1] + 1
            pmf = scipy.stats.betabinom.pmf(np.arange(fewer + 1), fewer, level * known, (1 - level) * known)
            law = np.convolve(law, pmf)
    return law


def _rank_p_value(p_values: list[Tensor], calibration_rows: tuple[int, ...], effects: tuple[float, float]) -> float:
    """Return the one-sided Mann-Whitney p-value, whose statistic is the sum of the conformal p-values.

    (m + 1)·p counts the calibration rows above a row, ties split at random, plus a uniform number: n such sums have
    the mean n(m + 1)/2 and at most the variance n·m·(n + m + 1)/12 + n/12, to be added up over groups in units of
    (m + 1). Of that n·(m·(m + 1) + 1)/12 is the rows' own and n²·m/12 the calibration rows'; each grows by its design
    effect.
    """
    distance, variance = 0.0, 0.0
    for group, size in zip(p_values, calibration_rows, strict=True):
        rows = len(group)
        distance += float(group.sum()) - rows / 2
        own, shared = rows * (size * (size + 1) + 1), rows**2 * size
        variance += (effects[0] * own + effects[1] * shared) / 12 / (size + 1) ** 2
    return float(scipy.stats.norm.cdf(distance / np.sqrt(variance)))
