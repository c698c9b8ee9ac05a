"""How texts are explained: the options and their checks, which a command makes before torch is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass

from faithmeter.data.units import CHUNK, TOKEN, require_units
from faithmeter.errors import InputError, nearest
from faithmeter.statistics.one_text import FEWEST_ORDERS

RANDOM_RUNS, ORDERS = 5, 99
PREDICTED = "predicted"  # the target that stands for the predicted class


@dataclass(frozen=True)
class ExplainOptions:
    """How texts are explained.

    `target` is `predicted` or the name of the class or label whose logit is explained. Of a model that gives several
    labels at once, `predicted` is the most probable one; of a number there is nothing to choose. `by` is what is masked
    and explained as a whole: a token, word, sentence, or chunk of at most `chunk` tokens; by default what a run was
    measured by, or tokens. `random_runs` random draws make the curve that an explanation is compared with. `orders`
    more random orders test it: 0 for none, or at least 19, so that a p-value can be small. Each costs up to 9 passes of
    the text, which is expensive for long texts. All randomness comes from `seed` and the text's number.
    """

    target: str = PREDICTED
    seed: int = 0
    by: str | None = None
    chunk: int | None = None
    random_runs: int = RANDOM_RUNS
    orders: int = ORDERS

    def __post_init__(self) -> None:
        require_units(*self.units)
        if self.random_runs < 1:
            raise InputError("At least one random draw is needed as the baseline.")
        if self.orders != 0 and self.orders < FEWEST_ORDERS:
            raise InputError(
                f"{self.orders} random orders are too few: the smallest p-value would be 1 / {self.orders + 1}. "
                f"Take {FEWEST_ORDERS} or more, or 0 for no test."
            )

    @property
    def units(self) -> tuple[str, int]:
        """The units that are masked as a whole, and the maximum tokens per chunk."""
        return self.by or TOKEN, CHUNK if self.chunk is None else self.chunk


def require_target(target: str, labels: Sequence[str]) -> None:
    """Raise InputError for an unknown class or label."""
    if target != PREDICTED and target not in labels:
        raise InputError(f"There is no class {target!r}.{nearest(target, labels)} It has {', '.join(labels)}.")
