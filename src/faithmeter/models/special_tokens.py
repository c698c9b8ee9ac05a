"""The tokens that masking and batching need, and how a model that lacks one gets it.

A model without a mask token is given one: a token of the tokenizer's that means "something is missing here", or a new
one, whose embedding begins as the mean of all and is learnt by masked fine-tuning. So decoders become faithfulness
measurable too.

A decoder's head reads the last token that is not padding. A decoder that is trained here therefore ends each text with
its end token: the place that is read is then a special token, which is never masked, so masking takes what a text says
and never the place where it is summed up; and padding is a separate token, because with the usual trick, the end token
as padding, the head would skip that end. A decoder trained elsewhere reads texts as it was trained to.
"""

import torch
import transformers
from transformers import PreTrainedTokenizerBase as Tokenizer

from faithmeter.errors import InputError
from faithmeter.models.heads import LAST, where_read

# T5 learnt in pretraining that its first sentinel stands where text is missing: nearer to a mask than any new token
MASKS = ("[MASK]", "<mask>", "<extra_id_0>")
PADS = ("[PAD]", "<pad>")
WORD_STARTS = "\u2581\u0120"  # how sentence pieces and byte-level tokenizers write a space
NEW_MASK, NEW_PAD, NEW_END = "<mask>", "<pad>", "</s>"


def require_words(tokenizer: Tokenizer, name: str = "") -> None:
    """Refuse a tokenizer that knows no word: transformers makes one where a model comes without tokenizer files."""
    words = {word.strip(WORD_STARTS) for word in tokenizer.get_vocab()}
    if not words - set(tokenizer.all_special_tokens) - set(tokenizer.get_added_vocab()) - {""}:
        raise InputError(
            f"The tokenizer{name and f' of {name}'} knows no words, only special tokens, so every text would look the "
            "same to the model. Put the tokenizer files next to the model (`tokenizer.save_pretrained(FOLDER)`)."
        )


def require_length(tokenizer: Tokenizer) -> None:
    """Refuse a longest text that is no number, as a file may say."""
    if not isinstance(tokenizer.model_max_length, int | float):
        raise ValueError(f"the model_max_length of its tokenizer is {tokenizer.model_max_length!r} and no number")


def require_embeddings(model: transformers.PreTrainedModel, tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer that has tokens which the model has no embedding for; special ones only if they are used."""
    try:
        rows = model.get_input_embeddings().weight.shape[0]
    except (NotImplementedError, AttributeError):  # a model without a lookup, such as one that reads letters
        return
    used = {getattr(tokenizer, f"{kind}_token_id", None) for kind in ("pad", "cls", "sep", "bos", "eos", "unk", "mask")}
    unused = set(tokenizer.get_added_vocab().values()) - used
    beyond = [token for token, number in tokenizer.get_vocab().items() if number >= rows and number not in unused]
    if beyond:
        raise InputError(
            f"The tokenizer knows {len(tokenizer)} tokens, and the model has embeddings for {rows}: it cannot read "
            f"{beyond[0]!r}. Use the tokenizer that the model was trained with."
        )


def stand_in_for_mask(model: transformers.PreTrainedModel, tokenizer: Tokenizer) -> str:
    """Return the token that masks a model which has no mask token and is not to be changed.

    The unknown token says that there is a word, and not which. The padding token says less, and only a model that does
    not look for padding can take it for a word.
    """
    known = _known(tokenizer, MASKS)
    if known is not None:
        return known
    pad = model.config.get_text_config().pad_token_id
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id != pad:
        return str(tokenizer.unk_token)
    if where_read(model) != LAST and tokenizer.pad_token is not None and tokenizer.unk_token is None:
        return str(tokenizer.pad_token)
    raise InputError(
        f"{model.config.model_type} has no mask token, and no unknown token that could stand for it, so its tokens "
        "cannot be masked. Save model and tokenizer in a folder and use `load_classifier(FOLDER, LABELS)`, which gives "
        "a mask token to the copy that it loads, or train it: `faithmeter train RUN --model FOLDER`."
    )


def require_padding(model: transformers.PreTrainedModel) -> None:
    """Refuse a decoder that does not know its padding, so cannot find the last token of a text in a batch."""
    if where_read(model) == LAST and model.config.get_text_config().pad_token_id is None:
        raise InputError(
            f"{model.config.model_type} has no padding token, so its head does not find the last token of a text in a "
            "batch. Set `model.config.pad_token_id` to the padding it was trained with; or save model and tokenizer in "
            "a folder and use `load_classifier(FOLDER, LABELS)`, which gives one to the copy that it loads."
        )


def give_missing_tokens(
    model: transformers.PreTrainedModel, tokenizer: Tokenizer, *, classifies: bool
) -> tuple[str, ...]:
    """Give model and tokenizer the tokens they lack, in place; return what to tell about it.

    `classifies` says that the model has learnt to read already, so that only what is missing is added.
    """
    words, notes = len(tokenizer), []
    if tokenizer.mask_token_id is None:
        known = _known(tokenizer, MASKS)
        tokenizer.add_special_tokens({"mask_token": known or NEW_MASK})
        notes.append(
            f"The model has no mask token: {tokenizer.mask_token} "
            + ("of its tokenizer stands for masked tokens." if known else "was added, which it has never seen.")
            + " Masked fine-tuning teaches it the meaning; before that, masked texts are hardly in-distribution "
            "(see `faithmeter check`)."
        )
    if where_read(model) == LAST:
        _give_padding_and_end(model, tokenizer, classifies)
    _embed_new(model, words, len(tokenizer))
    return tuple(notes)


def _give_padding_and_end(model: transformers.PreTrainedModel, tokenizer: Tokenizer, classifies: bool) -> None:
    config = model.config.get_text_config()
    if classifies and config.pad_token_id is not None:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(config.pad_token_id)
        return
    if not classifies and not _ends_special(tokenizer):
        if tokenizer.eos_token is None:
            tokenizer.add_special_tokens({"eos_token": NEW_END})
        tokenizer.add_eos_token = True  # a pair becomes: text, end, context, end
    # padding is a token that occurs nowhere else, or the head would stop at it
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id in _others(tokenizer):
        tokenizer.add_special_tokens({"pad_token": _known(tokenizer, PADS) or NEW_PAD})
    config.pad_token_id = model.config.pad_token_id = tokenizer.pad_token_id


def _others(tokenizer: Tokenizer) -> set[int | None]:
    return {tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.unk_token_id, tokenizer.mask_token_id}


def _ends_special(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer ends each text with a special token."""
    return bool(tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"][-1])


def _known(tokenizer: Tokenizer, names: tuple[str, ...]) -> str | None:
    vocabulary = tokenizer.get_vocab()
    return next((name for name in names if name in vocabulary), None)


@torch.no_grad()
def _embed_new(model: transformers.PreTrainedModel, known: int, words: int) -> None:
    """Let the new tokens begin as the mean of the known ones: a word like any other, and no draw in it."""
    if words == known:
        return
    rows = model.get_input_embeddings().weight.shape[0]
    if words > rows:  # some have spare rows, and none may be lost
        model.resize_token_embeddings(words, mean_resizing=False)
    weight = model.get_input_embeddings().weight
    weight[known:words] = weight[: min(known, rows)].mean(dim=0)
