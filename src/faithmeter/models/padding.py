"""Whether padding changes a model's predictions: it should not, but in some architectures it does.

FNet mixes all positions, ConvBERT's and MobileBERT's convolutions reach beyond the end of a text, and XLNet reads its
last position, padding or not. The config does not tell, so the model is tested.
"""

from collections.abc import Callable

import torch
import transformers
from torch import Tensor

from faithmeter.data.batch import Batch, Encoded
from faithmeter.errors import InputError
from faithmeter.models.temporary import evaluating

WORDS = (1, 5, 24)  # of the texts that are compared
# share of the largest logit by which answers may differ: ten times what rounding does, more where numbers are short
ROUNDING = {torch.float64: 1e-10, torch.float32: 3e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
NOTE = (
    "Padding changes the predictions of this model, so texts of different lengths are never batched together, which "
    "takes longer."
)


def padding_matters(
    model: transformers.PreTrainedModel,
    tokenizer: transformers.PreTrainedTokenizerBase,
    encode: Callable[[list[str]], Encoded],
    ask: Callable[[Batch], Tensor],
) -> bool:
    """Whether the answer to a text is another beside a longer one; refuse a model that looks at its neighbours anyway.

    `encode` tokenises texts, and `ask` returns the logits of a batch as the model gives them. Rows of one length need
    no padding; a model that answers even those otherwise than one by one cannot be measured.
    """
    encoded = encode(probe_texts(tokenizer))
    rows, classes = list(range(len(encoded))), model.config.num_labels
    with evaluating(model), torch.no_grad():
        alone = [ask(encoded.batch([row])) for row in rows]
        if any(logits.shape != (1, classes) for logits in alone):
            raise InputError(
                f"{type(model).__name__} gives logits of the shape {tuple(alone[0].shape)} for one text, and not one "
                f"for each of its {classes} classes."
            )
        together = ask(encoded.batch(rows))
        twice = ask(encoded.batch([rows[-1], rows[-1]]))[1:]
    each = torch.cat(alone)
    noise = ROUNDING.get(next(model.parameters()).dtype, ROUNDING[torch.bfloat16]) * float(each.abs().max())
    if float((twice - alone[-1]).abs().max()) > noise:
        raise InputError(
            f"The prediction of {type(model).__name__} for a text changes with another text of the same length in the "
            "batch, so it has no prediction for a single text."
        )
    return float((together - each).abs().max()) > noise


def probe_texts(tokenizer: transformers.PreTrainedTokenizerBase) -> list[str]:
    """Return a short, a longer and a long text of words that the tokenizer knows."""
    known = sorted(set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens))
    words = [word.strip("#\u2581\u0120") or "a" for word in known[:: max(1, len(known) // max(WORDS))]]
    words = (words or ["a"]) * max(WORDS)
    return [" ".join(words[:count]) for count in WORDS]
