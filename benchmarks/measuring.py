"""Speed of `measure` with ten measures against a loop with captum that masks recursively; one core, CPU time.

    python benchmarks/measuring.py                    # 12 sentences: about ten minutes
    python benchmarks/measuring.py --sentences 100    # the same, an hour or more

The loop does what a careful user of captum writes: for every measure and each of ten steps it explains the masked texts
anew, with captum at the settings that were best in `importance.py`, masks the next tenth, and predicts in batches of
like length; five random draws are predicted, too. It stores nothing and fits no in-distribution test, so `measure` runs
without one. Texts explained one by one take the same maskings per pass as there. `measure` runs with the linear layers
that it chooses by measuring, and with each of them forced.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers
from captum.attr import FeatureAblation, InputXGradient, IntegratedGradients, KernelShap, Lime, Saliency
from importance import SENTENCES, sentences
from rivals import groups, model_of_embeddings, model_of_ids
from timing import cpu_seconds, processor_name
from torch import Tensor

from faithmeter.data.batch import Batch, Encoded
from faithmeter.data.splits import DataSpec
from faithmeter.importance.gradient import STEPS as POINTS
from faithmeter.importance.surrogate import SAMPLES
from faithmeter.masking import STEPS
from faithmeter.measuring.curves import mask_most_important
from faithmeter.models.classifier import Classifier, load_classifier
from faithmeter.models.fast.options import LINEAR_LAYERS, PassOptions, use_pass_options
from faithmeter.studies.adopt import adopt
from faithmeter.studies.measure import MeasureOptions, measure

MEASURES = (
    "grad-l1", "grad-l2", "x-grad-signed", "x-grad-abs", "ig-signed", "ig-abs", "loo-signed", "loo-abs", "lime",
    "kernel-shap",
)  # fmt: skip
DRAWS = 5
TEXTS_AT_ONCE = {"ig": 1, "loo": 1, "lime": 1, "kernel": 1}  # of the others eight


def captum_explains(name: str, classifier: Classifier, batch: Batch) -> Tensor:
    """Return the importance of a batch of one masked text or a few, by captum."""
    ids, more = batch.masked_ids(classifier.mask_token_id), (batch.attention_mask, batch.token_type_ids)
    asked = {"target": batch.labels, "additional_forward_args": more}
    family = name.split("-")[0]
    if family in ("loo", "lime", "kernel"):
        kind = {"loo": FeatureAblation, "lime": Lime, "kernel": KernelShap}[family]
        asked |= {"baselines": classifier.mask_token_id, "perturbations_per_eval": 64 if family == "loo" else 100}
        asked |= {} if family == "loo" else {"n_samples": SAMPLES}
        found = kind(lambda *given: model_of_ids(classifier, *given)).attribute(ids, **asked).float()
    else:
        point = classifier.model.get_input_embeddings()(ids).detach().requires_grad_()
        kind = {"ig": IntegratedGradients, "x": InputXGradient, "grad": Saliency}[family]
        asked |= {"n_steps": POINTS, "method": "riemann_right"} if family == "ig" else {}
        asked |= {"abs": False} if family == "grad" else {}
        found = kind(lambda *given: model_of_embeddings(classifier, *given)).attribute(point, **asked)
        if family == "grad":
            words = classifier.model.get_input_embeddings().weight.detach()
            found = torch.linalg.vector_norm(found @ words.T, ord=int(name[-1]), dim=-1)
        else:
            found = found.sum(dim=-1)
    found = found.detach().masked_fill(~batch.maskable | batch.masked, 0.0)
    return found.abs() if name.endswith("abs") else found


def loop(classifier: Classifier, encoded: Encoded) -> None:
    """Walk with every measure, and at random, as a loop with captum does."""
    for name in (*MEASURES, *(f"random {draw}" for draw in range(DRAWS))):
        at_once = 8 if name.startswith("random") else TEXTS_AT_ONCE.get(name.split("-")[0], 8)
        order = sorted(range(len(encoded)), key=lambda row: -int(encoded.lengths[row]))
        walks = [encoded.batch(order[i : i + at_once]) for i in range(0, len(order), at_once)]
        for step in range(STEPS + 1):
            predict(classifier, walks)
            if step == STEPS:
                break
            for number, batch in enumerate(walks):
                if step + 1 == STEPS:  # nothing is left to choose
                    walks[number] = batch.with_masked(batch.maskable)
                    continue
                random = name.startswith("random")
                found = torch.rand(batch.maskable.shape) if random else captum_explains(name, classifier, batch)
                walks[number] = batch.with_masked(mask_most_important(batch, found, step + 1))


def predict(classifier: Classifier, walks: list[Batch]) -> None:
    """Predict masked texts in batches of like length, of at most 1,024 tokens."""
    with torch.inference_mode():
        for few in groups([batch.input_ids.shape[1] * len(batch) for batch in walks], 1024):
            width = max(walks[number].input_ids.shape[1] for number in few)

            def wide(one: Tensor, filler: int, width: int = width) -> Tensor:
                return torch.nn.functional.pad(one, (0, width - one.shape[1]), value=filler)

            chosen = [walks[number] for number in few]
            ids = torch.cat([wide(b.masked_ids(classifier.mask_token_id), classifier.pad_token_id) for b in chosen])
            attention = torch.cat([wide(batch.attention_mask, 0) for batch in chosen])
            types = [batch.token_type_ids for batch in chosen]
            together = None if types[0] is None else torch.cat([wide(one, 0) for one in types if one is not None])
            model_of_ids(classifier, ids, attention, together).argmax(dim=-1)


def main() -> None:
    """Print the seconds and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=12, help="SST2 sentences to measure on")
    parser.add_argument("--linear-layers", default=",".join(LINEAR_LAYERS), help="of faithmeter's passes, in turn")
    parser.add_argument("--without-loop", action="store_true", help="faithmeter alone")
    parser.add_argument("--data", type=Path, default=SENTENCES, help="a gzipped jsonl file with the column `sentence`")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    texts = list(dict.fromkeys(sentences(options.data)))[: options.sentences]
    classifier = load_classifier("minilm", ("negative", "positive"), new_head=True)
    classifier.model.eval()
    print(f"{processor_name()}, {len(texts)} sentences", flush=True)
    theirs = None
    if not options.without_loop:
        encoded = classifier.encode(texts, labels=[number % 2 for number in range(len(texts))])
        theirs = cpu_seconds(lambda: loop(classifier, encoded))
        print(f"a loop with captum: {theirs:.1f} s", flush=True)
    with TemporaryDirectory() as folder:
        home = Path(folder)
        classifier.save(home / "model")
        rows = [{"text": text, "label": classifier.labels[number % 2]} for number, text in enumerate(texts)]
        for split in ("train", "validation", "test"):
            (home / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        asked = MeasureOptions(measures=MEASURES, random_runs=DRAWS, without_check=True)
        for layers in options.linear_layers.split(","):
            use_pass_options(PassOptions(layers))
            adopt(home / layers, str(home / "model"), DataSpec(data=str(home)))
            ours = cpu_seconds(partial(measure, home / layers, asked, workers=1))
            ratio = "" if theirs is None else f", the loop takes {theirs / ours:.2f} times as long"
            print(f"measure, ten measures, linear layers {layers}: {ours:.1f} s{ratio}", flush=True)


if __name__ == "__main__":
    main()
