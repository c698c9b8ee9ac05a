"""F-Fidelity: random parts of the important tokens are masked, or of the unimportant ones, and never many at once.

Zheng et al. (2025). They fine-tune the model on texts with random parts removed, without a look at any explanation, and
remove no more than training did. Here the run's own model is asked: one that was trained with random masks needs no
other, and for any other model the share of masked texts that are out-of-distribution stands beside the numbers.
"""

import torch
from torch import Tensor

from faithmeter.data.batch import Batch
from faithmeter.importance.measure import ImportanceMeasure
from faithmeter.in_distribution.masf import MaSF
from faithmeter.judges.judge import Bench, By, Judge, SectionData, ShownColumn
from faithmeter.judges.maskings import probabilities, tokens_of
from faithmeter.judges.ranking import Columns, ranks
from faithmeter.masking import Purpose, random_stream
from faithmeter.models.classifier import Classifier

SIZES = (0.2, 0.4, 0.6, 0.8)  # of the explanation, as shares of the tokens
REMOVED = 0.5  # chance of a token of the explanation to be masked: α of the paper
MOST = 0.1  # of all tokens that are masked, on average, at most: β
DRAWS = 50


def removal_chance(size: int, tokens: int) -> float:
    """Return the chance of each of `size` tokens to be masked: α, or as much less as β of all tokens asks for."""
    return min(REMOVED, MOST * tokens / size)


def f_fidelity(
    classifier: Classifier, batch: Batch, importance: Tensor, seed: int, *, draws: int = DRAWS, masf: MaSF | None = None
) -> Columns:
    """Return FFid+ and FFid− of every row: the mean of m(x) − m(x with random parts masked), over sizes and draws.

    - `plus`: of the s most important tokens each is masked with `removal_chance`. High is good.
    - `minus`: the same of the s least important ones. Low is good: nothing important is among them.
    - with `masf`, `outside`: the share of the masked texts that are out-of-distribution.

    m is the probability of the predicted class; the authors' code counts predictions that stay. Which tokens are masked
    is drawn from the seed and the dataset row, by place in the ranking, so that measures share their draws.
    """
    rank = ranks(importance.to(batch.maskable.device), batch.maskable).cpu()
    maskable, masked = batch.maskable.cpu(), batch.masked.cpu()
    size = maskable.sum(dim=1)
    variants = [masked]
    uniform = [
        torch.from_numpy(random_stream(seed, Purpose.PARTIAL_REMOVAL, row).random((draws, int(n))))
        for row, n in zip(batch.rows.tolist(), size, strict=True)
    ]
    for least in (False, True):
        for share in SIZES:
            chosen = torch.zeros(draws, *masked.shape, dtype=torch.bool)
            for row, n in enumerate(size.tolist()):
                if n:
                    many = tokens_of(share, n)
                    place = rank[row, maskable[row]]
                    place = n - 1 - place if least else place
                    hit = (uniform[row] < removal_chance(many, n)) & (torch.arange(n) < many)
                    chosen[:, row, maskable[row]] = hit[:, place]
            variants.extend(masked | chosen)
    probability, strange = probabilities(classifier, batch, torch.stack(variants).to(batch.masked.device), masf)
    plus, minus = (probability[0] - probability[1:]).double().split(draws * len(SIZES))
    columns = {"plus": plus.mean(dim=0), "minus": minus.mean(dim=0)}
    if strange is not None:
        columns["outside"] = strange[1:].double().mean(dim=0)
    return {name: column.masked_fill(size == 0, torch.nan).numpy() for name, column in columns.items()}


def _judge(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    return f_fidelity(bench.classifier, batch, bench.explained(batch, measure), bench.seed, masf=bench.masf)


F_FIDELITY = Judge(
    "f-fidelity",
    50,
    _judge,
    {"plus": True, "minus": False},
    SectionData(
        "F-Fidelity",
        By.MASKED_TEXTS,
        (
            f"Random parts of the most important tokens (FFid+) or of the least important ones (FFid−) are masked, at "
            f"most {100 * MOST:.0f} % of a text on average, and the decrease of the predicted class's probability is "
            "averaged. High FFid+ and low FFid− are good.",
            "It shows whether importance is where masking a little costs most, on texts that are hardly masked. It "
            "cannot show tokens that matter only together, because few are masked at once.",
        ),
        (
            ShownColumn("plus", "FFid+"),
            ShownColumn("minus", "FFid− (lower is better)", more_is_better=False),
        ),
        table="Decrease of probability when random parts of the most, or least, important tokens are masked",
        caption="FFid+ and FFid−; dashed: random.",
        outside=(
            (
                "outside",
                "Up to {share} % of the masked texts of F-Fidelity are out-of-distribution for this model ({measure}; "
                "chance gives {chance} %): it says little there.",
            ),
        ),
    ),
    passes=lambda _, explaining: explaining + 2 * len(SIZES) * DRAWS,
    tests_masked=True,
    needs_classes=True,
    on_request=True,  # hundreds of passes
    shares_explanations=True,
)
