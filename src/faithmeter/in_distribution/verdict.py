"""Is a whole split in-distribution? Simes' p-value as in the paper, and two tests with more power.

Simes' test over the texts needs one text so atypical that it stands out among thousands; conformal p-values cannot be
that small. So the verdict counts the texts below 5 % and compares their ranks, each at half the level.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from faithmeter.in_distribution.masf import LEVEL, MaSF
from faithmeter.in_distribution.p_values import simes
from faithmeter.masking import STEPS

# What a pass needs to be a verdict, in validation texts and in test texts. Fitted on 100 validation texts, the test
# detected 89 % of the texts with half of their tokens random words; on 50, 50 %; on 20, 24 %. With 100 test texts it
# rejects a split of which 14 are atypical; of 20 it takes 6, and of 4 it takes 3 (a 22nd of the level for each of two
# tests at eleven ratios). A rejection needs no number: the level holds for any.
TEXTS_FOR_A_VERDICT = 100
TEXTS_TO_FIND_HALF = 50  # validation texts, below which the test misses most of the texts just described


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


def smallest_of(p_values: Sequence[float]) -> float:
    """Return the smallest p-value times their number (Bonferroni)."""
    return min(1.0, len(p_values) * min(p_values))


def too_few(validation: float, tested: float) -> str | None:
    """Return why these numbers of texts give no verdict in favour of masking; None if they do."""
    if min(validation, tested) >= TEXTS_FOR_A_VERDICT:
        return None
    missed = f" Fitted on fewer than {TEXTS_TO_FIND_HALF}, it misses most texts with half of their tokens random words."
    return (
        f"Too few texts for a verdict: the test was fitted on {validation:.0f} and applied to {tested:.0f}, and "
        f"{TEXTS_FOR_A_VERDICT} of each are needed.{missed if validation < TEXTS_TO_FIND_HALF else ''}"
    )


def summary(
    verdicts: Sequence[Verdict],
    remedy: str | None = None,
    *,
    validation_texts: int | None = None,
    claimed: bool = False,
) -> str:
    """Return in words whether masking may be trusted, given a verdict for each masking ratio.

    `remedy` is the command that fine-tunes the model with masking, if that helps. The test was fitted on
    `validation_texts`, if known. `claimed` means that only its owner says that the model was trained on masks: randomly
    masked texts then pass by construction, whatever the model does with them.
    """
    p_values = [verdict.anywhere.dataset_p_value for verdict in verdicts]
    if smallest_of(p_values) > LEVEL:
        found = (
            f"at no ratio are the texts out-of-distribution (smallest p-value {min(p_values):.3f} of {len(verdicts)})."
        )
        tested = verdicts[0].anywhere.rows
        few = too_few(tested if validation_texts is None else validation_texts, tested)
        trusted = "Masking may be trusted"
        if claimed:
            trusted = "If, as --masked-before says, this model was trained on masked texts, masking may be trusted"
        return f"{trusted}: {found}" if few is None else f"{few} No evidence against masking: {found}"
    worst = min(verdicts, key=lambda verdict: (verdict.anywhere.dataset_p_value, -verdict.anywhere.share_below))
    found = f"At {100 * worst.step // STEPS} % masked: {worst.words}"
    if remedy is None:
        return found
    return (
        f"{found} Fine-tune this model with masking, on the same data, to get one that understands masks; it keeps its "
        f"head and classes: `{remedy}`."
    )


def dataset_verdict(masf: MaSF, own: Tensor, outside: Tensor, lengths: Tensor, step: int) -> Verdict:
    """Judge a split, all of it masked at `step`, from the two p-values of its rows.

    `outside` is at least `own`, so its tests are conservative.
    """
    groups = masf.length_groups(lengths)
    sizes = masf.calibration_rows
    return Verdict(step, *(dataset_test([p_values[groups == g] for g in range(len(sizes))], sizes)
                           for p_values in (own, outside)))  # fmt: skip


def dataset_test(p_values: list[Tensor], calibration_rows: tuple[int, ...]) -> DatasetTest:
    """Test conformal p-values, given for each set of calibration rows that they were calibrated with."""
    together = torch.cat(p_values).double()
    if not len(together):
        raise ValueError("a verdict needs at least one row")
    return DatasetTest(
        rows=len(together),
        share_below=float((together <= LEVEL).double().mean()),
        simes_p_value=float(simes(together)),
        count_p_value=_count_p_value(p_values, calibration_rows),
        rank_p_value=_rank_p_value(p_values, calibration_rows),
    )


def _count_p_value(p_values: list[Tensor], calibration_rows: tuple[int, ...]) -> float:
    """Return P(K ≥ k), K ~ BetaBinomial(rows, a, m + 1 − a), a = floor(.05·(m + 1)), summed over independent groups.

    The rows share their calibration set, which makes K wider than a binomial. Counted are p-values up to a/(m + 1),
    the largest attainable level not above 5 %, where that law is exact.
    """
    counted, law = 0, np.ones(1)
    for group, size in zip(p_values, calibration_rows, strict=True):
        allowed = int(LEVEL * (size + 1) + 1e-9)
        if len(group) == 0 or allowed == 0:
            continue
        counted += int((group <= allowed / (size + 1)).sum())
        pmf = stats.betabinom.pmf(np.arange(len(group) + 1), len(group), allowed, size + 1 - allowed)
        law = np.convolve(law, pmf)
    return float(min(1.0, law[counted:].sum()))


def _rank_p_value(p_values: list[Tensor], calibration_rows: tuple[int, ...]) -> float:
    """Return the one-sided Mann-Whitney p-value, whose statistic is the sum of the conformal p-values.

    (m + 1)·p counts the calibration rows above a row, ties split at random, plus a uniform number: n such sums have
    the mean n(m + 1)/2 and at most the variance n·m·(n + m + 1)/12 + n/12, to be added up over groups in units of
    (m + 1).
    """
    distance, variance = 0.0, 0.0
    for group, size in zip(p_values, calibration_rows, strict=True):
        rows = len(group)
        distance += float(group.sum()) - rows / 2
        variance += (rows * size * (rows + size + 1) + rows) / 12 / (size + 1) ** 2
    return float(stats.norm.cdf(distance / np.sqrt(variance)))
