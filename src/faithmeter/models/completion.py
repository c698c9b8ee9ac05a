"""The language model of a prompted classifier goes on writing, greedily: the same prompt always has the same answer."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from faithmeter.errors import InputError
from faithmeter.models.classifier import Classifier
from faithmeter.models.padding import ROUNDING
from faithmeter.models.prompt import without_template
from faithmeter.models.prompted import PromptedConfig
from faithmeter.models.temporary import evaluating
from faithmeter.progress import yield_to_cancellation


def complete(
    classifier: Classifier, prompts: Sequence[str], most: int, *, progress: Callable[[int], None] | None = None
) -> list[str]:
    """Return what the model writes after each prompt: one line, of at most `most` tokens, always the likeliest one.

    Prompts are computed in batches. Where rounding could have decided between two tokens, the prompt is computed again
    by itself, so that an answer does not depend on the others in its batch.
    """
    if classifier.model.config.model_type != PromptedConfig.model_type:
        raise InputError(
            f"A {classifier.model.config.model_type} classifier writes no text, so it cannot be asked: only a run of "
            "`faithmeter prompt` can."
        )
    ids = _tokenised(classifier, prompts, most)
    answers = [""] * len(prompts)
    with evaluating(classifier.model), torch.inference_mode():
        for index in classifier.packed(torch.tensor([len(one) + most for one in ids])):
            some = index.tolist()
            found, doubtful = _continued(classifier, [ids[row] for row in some], most)
            for place, row in enumerate(some):
                again = doubtful[place] and len(some) > 1
                answers[row] = _continued(classifier, [ids[row]], most)[0][0] if again else found[place]
            if progress is not None:
                progress(len(some))
    return answers


def _tokenised(classifier: Classifier, prompts: Sequence[str], most: int) -> list[list[int]]:
    """Return the tokens of prompts, which begin as those of the classifier do; refuse one that is too long."""
    plain = without_template(classifier.tokenizer, classifier.model.config.template)
    first = classifier.tokenizer("")["input_ids"][:1]
    begin = first if first == [classifier.tokenizer.bos_token_id] else []
    # a space at the end belongs to the word that follows
    ids = [[*begin, *plain(prompt.rstrip(" "), add_special_tokens=False)["input_ids"]] for prompt in prompts]
    longest = max(map(len, ids), default=0)
    if longest + most > classifier.limit:
        raise InputError(
            f"A question has {longest} tokens, and with {most} of the answer that is more than the {classifier.limit} "
            "that the model reads. Ask for fewer new tokens, shorten the question, or make the run with a smaller "
            "--max-length."
        )
    return ids


def _continued(classifier: Classifier, prompts: Sequence[Sequence[int]], most: int) -> tuple[list[str], list[bool]]:
    """Return the answers to prompts, padded on the left, and which of them rounding might change."""
    model, device = classifier.model, classifier.device
    head, ends = model.language_model.get_output_embeddings(), _end_tokens(classifier)
    width = max(map(len, prompts))
    ids = torch.tensor([[classifier.pad_token_id] * (width - len(one)) + list(one) for one in prompts], device=device)
    attended = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in prompts], device=device)
    cache = DynamicCache(config=model.language_model.config)
    said: list[list[int]] = [[] for _ in prompts]
    answers, doubtful = [""] * len(prompts), [False] * len(prompts)
    writing = set(range(len(prompts)))
    for _ in range(most):
        yield_to_cancellation()
        positions = (attended.cumsum(dim=1) - 1).clamp_min(0)[:, -ids.shape[1] :]
        states = model.base_model(
            input_ids=ids, attention_mask=attended, position_ids=positions, past_key_values=cache, use_cache=True
        ).last_hidden_state[:, -1]
        logits: Any = head(states)[:, : model.config.known_tokens]
        values, best = logits.topk(2, dim=-1)
        noise = 2 * ROUNDING.get(logits.dtype, ROUNDING[torch.bfloat16]) * logits.abs().amax(dim=-1)
        close = (values[:, 0] - values[:, 1] <= noise).tolist()
        for row in sorted(writing):
            doubtful[row] |= close[row]
            said[row].append(int(best[row, 0]))
            line, broken, _ = classifier.tokenizer.decode(said[row], skip_special_tokens=True).lstrip().partition("\n")
            answers[row] = line.rstrip()
            if broken or said[row][-1] in ends:
                writing.remove(row)
        if not writing:
            break
        ids = best[:, :1]
        attended = torch.cat([attended, attended.new_ones(len(prompts), 1)], dim=1)
    return answers, doubtful


def _end_tokens(classifier: Classifier) -> set[int | None]:
    own = classifier.model.language_model.config.eos_token_id
    return {*(own if isinstance(own, list) else [own]), classifier.tokenizer.eos_token_id}
