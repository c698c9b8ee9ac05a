"""What a user asks of the passes of a model: which linear layers, and how many tokens at once. Loads no library."""

from dataclasses import dataclass

from faithmeter.errors import InputError, nearest

FORWARD, GRADIENT, TRAINING = "forward", "gradient", "training"  # the kinds of work, which have their own best each
AUTO = "auto"
LINEAR_LAYERS = ("auto", "onednn", "torch")
MOST_TOKENS = 1 << 20


@dataclass(frozen=True)
class PassOptions:
    """How passes through a model are computed on a processor; results differ in their last digits only.

    `linear_layers` are those of torch or of oneDNN, `tokens` is how many go through at once, padding included. What is
    left open is chosen by measuring, see `choice`.
    """

    linear_layers: str = AUTO
    tokens: int | None = None

    def __post_init__(self) -> None:
        if self.linear_layers not in LINEAR_LAYERS:
            raise InputError(
                f"There are no linear layers {self.linear_layers!r}.{nearest(self.linear_layers, LINEAR_LAYERS)}"
            )
        if self.tokens is not None and not 1 <= self.tokens <= MOST_TOKENS:
            raise InputError(f"{self.tokens} tokens cannot go through a model at once: give 1 to {MOST_TOKENS}.")


_of_this_process = PassOptions()


def pass_options() -> PassOptions:
    """Return what classifiers of this process do where they are not told otherwise."""
    return _of_this_process


def use_pass_options(options: PassOptions) -> None:
    """Let classifiers that are made from now on in this process compute their passes so."""
    global _of_this_process  # one setting of a process, as its number of threads is
    _of_this_process = options
