"""What importance measures are compared with: other libraries, and loops that a careful engineer writes by hand.

Every contestant is a function of (classifier, encoded texts, the texts as strings) that explains all of them. The loops
batch texts and maskings of like length, compute without gradients where none are needed, and differentiate by the
embeddings alone. Libraries that are not installed are left out, and named.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec

import numpy as np
import torch
from captum.attr import FeatureAblation, InputXGradient, IntegratedGradients, KernelShap, Lime
from torch import Tensor

from faithmeter.data.batch import Batch, Encoded
from faithmeter.importance.gradient import STEPS
from faithmeter.importance.surrogate import SAMPLES
from faithmeter.models.classifier import Classifier

Contestant = Callable[[Classifier, Encoded, list[str]], object]
Contestants = dict[str, Contestant]
PEERS = ("interpreto", "lime", "shap")


def missing() -> list[str]:
    """Return the libraries that are not installed."""
    return [name for name in PEERS if find_spec(name) is None]


def sorted_batches(encoded: Encoded, rows: int) -> list[Batch]:
    """Return the rows in batches of so many, of like length: what a careful user of a library would do."""
    order = sorted(range(len(encoded)), key=lambda row: -int(encoded.lengths[row]))
    return [encoded.batch(order[i : i + rows]) for i in range(0, len(order), rows)]


def model_of_ids(classifier: Classifier, ids: Tensor, attention: Tensor, types: Tensor | None) -> Tensor:
    """Return the logits as captum asks for them."""
    extra = {} if types is None else {"token_type_ids": types}
    return classifier.model(input_ids=ids, attention_mask=attention, **extra).logits


def model_of_embeddings(classifier: Classifier, embeddings: Tensor, attention: Tensor, types: Tensor | None) -> Tensor:
    """Return the logits at word embeddings."""
    extra = {} if types is None else {"token_type_ids": types}
    return classifier.model(inputs_embeds=embeddings, attention_mask=attention, **extra).logits


# ------------------------------------------------------------------------------------------------------------- captum


def captum_ablation(rows: int, variants: int, classifier: Classifier, encoded: Encoded, _texts: list[str]) -> None:
    """Leave-one-out by captum, on batches of `rows` texts and `variants` maskings at once."""
    for batch in sorted_batches(encoded, rows):
        FeatureAblation(partial(model_of_ids, classifier)).attribute(
            batch.input_ids,
            baselines=classifier.mask_token_id,
            target=batch.labels,
            additional_forward_args=(batch.attention_mask, batch.token_type_ids),
            perturbations_per_eval=variants,
        )


def captum_surrogate(
    kind: type[Lime], variants: int, classifier: Classifier, encoded: Encoded, _texts: list[str]
) -> None:
    """LIME or KernelSHAP by captum, which explains one text at a time; `variants` of its maskings at once."""
    for batch in sorted_batches(encoded, 1):
        kind(partial(model_of_ids, classifier)).attribute(
            batch.input_ids,
            baselines=classifier.mask_token_id,
            target=batch.labels,
            additional_forward_args=(batch.attention_mask, batch.token_type_ids),
            n_samples=SAMPLES,
            perturbations_per_eval=variants,
        )


def captum_gradient(
    kind: type[IntegratedGradients | InputXGradient],
    rows: int,
    classifier: Classifier,
    encoded: Encoded,
    _texts: list[str],
) -> None:
    """Integrated gradients, 20 steps, or input × gradient by captum, on batches of `rows` texts."""
    lookup = classifier.model.get_input_embeddings()
    more = {"n_steps": STEPS, "method": "riemann_right"} if kind is IntegratedGradients else {}
    for batch in sorted_batches(encoded, rows):
        kind(partial(model_of_embeddings, classifier)).attribute(
            lookup(batch.input_ids).detach().requires_grad_(),
            target=batch.labels,
            additional_forward_args=(batch.attention_mask, batch.token_type_ids),
            **more,
        )


# ------------------------------------------------------------------------------------------------------------ by hand


def groups(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yield numbers of rows in batches of like length that have at most so many tokens."""
    order, start = sorted(range(len(lengths)), key=lambda row: -lengths[row]), 0
    while start < len(order):
        count = max(1, tokens // lengths[order[start]])
        yield order[start : start + count]
        start += count


def hand_masks(kept: bool, tokens: int, classifier: Classifier, encoded: Encoded, _texts: list[str]) -> None:
    """Pass every text with each token masked, or (`kept`) with `SAMPLES` random masks; batches of so many tokens."""
    sets = []
    for row in range(len(encoded)):
        span = slice(encoded.offsets[row], encoded.offsets[row + 1])
        ids, places = torch.from_numpy(encoded.ids[span]), torch.from_numpy(np.flatnonzero(encoded.maskable[span]))
        count = SAMPLES if kept else len(places) + 1
        several = ids.repeat(count, 1)
        if kept:
            chosen = torch.rand(count, len(ids)) < 0.5
            several[chosen & torch.isin(torch.arange(len(ids)), places)] = classifier.mask_token_id
        else:
            several[torch.arange(1, count), places] = classifier.mask_token_id
        types = None if encoded.type_ids is None else torch.from_numpy(encoded.type_ids[span])
        sets += [(one, types) for one in several]
    with torch.inference_mode():
        for chosen in groups([len(ids) for ids, _ in sets], tokens):
            few = [sets[number] for number in chosen]
            ids = torch.nn.utils.rnn.pad_sequence([one for one, _ in few], True, classifier.pad_token_id)
            attention = torch.nn.utils.rnn.pad_sequence([torch.ones_like(one) for one, _ in few], True, 0)
            types = None if few[0][1] is None else torch.nn.utils.rnn.pad_sequence([t for _, t in few], True, 0)
            model_of_ids(classifier, ids, attention, types)


def hand_gradients(points: int, tokens: int, classifier: Classifier, encoded: Encoded, _texts: list[str]) -> Tensor:
    """Return ⟨e, mean gradient⟩ at so many points from zero to the embeddings; batches of so many tokens."""
    found = []
    for batch, embeddings, gradients in hand_gradient_batches(points, tokens, classifier, encoded):
        found.append((embeddings * gradients).sum(dim=-1)[batch.maskable])
    return torch.cat(found)


def hand_gradient_batches(
    points: int, tokens: int, classifier: Classifier, encoded: Encoded
) -> Iterator[tuple[Batch, Tensor, Tensor]]:
    """Yield batches with their embeddings and mean gradients; the weights have no gradients."""
    learnt = [parameter for parameter in classifier.model.parameters() if parameter.requires_grad]
    for parameter in learnt:
        parameter.requires_grad_(False)
    lookup = classifier.model.get_input_embeddings()
    for rows in groups(encoded.lengths.tolist(), max(1, tokens // points)):
        batch = encoded.batch(rows)
        embeddings = lookup(batch.input_ids)
        scales = torch.arange(1, points + 1).repeat_interleave(len(rows))[:, None, None] / points
        way = (embeddings.repeat(points, 1, 1) * scales).requires_grad_()
        types = None if batch.token_type_ids is None else batch.token_type_ids.repeat(points, 1)
        logits = model_of_embeddings(classifier, way, batch.attention_mask.repeat(points, 1), types)
        (gradients,) = torch.autograd.grad(logits.gather(1, batch.labels.repeat(points)[:, None]).sum(), way)
        yield batch, embeddings, gradients.unflatten(0, (points, len(rows))).mean(dim=0)
    for parameter in learnt:
        parameter.requires_grad_(True)


def hand_norm(order: int, tokens: int, classifier: Classifier, encoded: Encoded, _texts: list[str]) -> None:
    """Take the norm over the vocabulary of W g, from gradients by the embeddings."""
    words = classifier.model.get_input_embeddings().weight.detach()
    for batch, _, gradients in hand_gradient_batches(1, tokens, classifier, encoded):
        (gradients[batch.maskable] @ words.T).norm(p=order, dim=-1)


def one_hot_norm(order: int, rows: int, classifier: Classifier, encoded: Encoded, _texts: list[str]) -> None:
    """Take the norm over the vocabulary of d logit / d one-hot, literally."""
    words = classifier.model.get_input_embeddings().weight
    for batch in sorted_batches(encoded, rows):
        one_hot = torch.nn.functional.one_hot(batch.input_ids, len(words)).float().requires_grad_()
        logits = model_of_embeddings(classifier, one_hot @ words, batch.attention_mask, batch.token_type_ids)
        logits.gather(1, batch.labels[:, None]).sum().backward()
        one_hot.grad.norm(p=order, dim=-1)
        classifier.model.zero_grad(set_to_none=True)


# ---------------------------------------------------------------------------------------------------- other libraries


def interpreto(method: str, rows: int, classifier: Classifier, _encoded: Encoded, texts: list[str]) -> None:
    """Explain texts by interpreto, in batches of so many."""
    import interpreto as library

    more = {"n_perturbations": SAMPLES if method in ("Lime", "KernelShap") else STEPS} if method != "Occlusion" else {}
    made = getattr(library, method)(
        classifier.model, classifier.tokenizer, batch_size=rows, granularity=library.Granularity.TOKEN, **more
    )
    made(texts)


def probabilities(rows: int, classifier: Classifier, texts: Sequence[str]) -> np.ndarray:
    """Return the probabilities of texts, in batches: what libraries that change texts ask for."""
    found = []
    with torch.inference_mode():
        for start in range(0, len(texts), rows):
            few = classifier.tokenizer([str(text) for text in texts[start : start + rows]], padding=True)
            inputs = {name: torch.tensor(values) for name, values in few.items()}
            found.append(classifier.model(**inputs).logits.softmax(dim=-1))
    return torch.cat(found).numpy()


def lime_package(rows: int, classifier: Classifier, _encoded: Encoded, texts: list[str]) -> None:
    """Explain texts by the lime package, with as many samples."""
    from lime.lime_text import LimeTextExplainer

    explainer = LimeTextExplainer(mask_string=classifier.tokenizer.mask_token, bow=False, random_state=0)
    for text in texts:
        explainer.explain_instance(text, partial(probabilities, rows, classifier), num_samples=SAMPLES)


def shap_partition(rows: int, classifier: Classifier, _encoded: Encoded, texts: list[str]) -> None:
    """Explain texts by shap's partition explainer, with as many evaluations."""
    import shap

    masker = shap.maskers.Text(classifier.tokenizer)
    explainer = shap.explainers.Partition(partial(probabilities, rows, classifier), masker)
    explainer(texts, max_evals=SAMPLES, batch_size=rows, silent=True)


# ------------------------------------------------------------------------------------------------------- by the case


def of_leave_one_out(tokens: Sequence[int] = (1024, 4096), several: Sequence[int] = (16, 32, 64)) -> Contestants:
    """Return the contestants of leave-one-out: hand-written, captum at its best, interpreto."""
    found: Contestants = {f"by hand, {each} tokens": partial(hand_masks, False, each) for each in tokens}
    found |= {f"captum, {each} maskings": partial(captum_ablation, 1, each) for each in several}
    if "interpreto" not in missing():
        found["interpreto, 32 maskings"] = partial(interpreto, "Occlusion", 32)
    return found


def of_integrated_gradients() -> Contestants:
    """Return the contestants of integrated gradients."""
    found: Contestants = {f"by hand, {each} tokens": partial(hand_gradients, STEPS, each) for each in (512, 2048)}
    found |= {f"captum, {each} texts": partial(captum_gradient, IntegratedGradients, each) for each in (1, 2)}
    if "interpreto" not in missing():
        found["interpreto, 20 points"] = partial(interpreto, "IntegratedGradients", 20)
    return found


def of_input_times_gradient() -> Contestants:
    """Return the contestants of input × gradient; one text at a time is what ferret does."""
    found: Contestants = {f"by hand, {each} tokens": partial(hand_gradients, 1, each) for each in (512, 1024)}
    return found | {f"captum, {each} texts": partial(captum_gradient, InputXGradient, each) for each in (1, 8, 32)}


def of_gradient_norm(order: int) -> Contestants:
    """Return the contestants of gradient norms over the vocabulary."""
    found: Contestants = {f"by hand, {each} tokens": partial(hand_norm, order, each) for each in (512, 1024)}
    return found | {"one-hot input, 8 texts": partial(one_hot_norm, order, 8)}


def of_lime() -> Contestants:
    """Return the contestants of LIME at as many samples."""
    found: Contestants = {"by hand, 1024 tokens": partial(hand_masks, True, 1024)}
    found |= {f"captum, {each} maskings": partial(captum_surrogate, Lime, each) for each in (32, 100)}
    if "lime" not in missing():
        found["lime, 32 texts"] = partial(lime_package, 32)
    if "interpreto" not in missing():
        found["interpreto lime, 32 maskings"] = partial(interpreto, "Lime", 32)
    return found


def of_kernel_shap() -> Contestants:
    """Return the contestants of KernelSHAP at as many samples."""
    found: Contestants = {"by hand, 1024 tokens": partial(hand_masks, True, 1024)}
    found |= {f"captum, {each} maskings": partial(captum_surrogate, KernelShap, each) for each in (32, 100)}
    if "shap" not in missing():
        found["shap partition, 32 texts"] = partial(shap_partition, 32)
    return found
