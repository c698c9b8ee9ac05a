"""One text explained: importance per token and word, the prediction, and the faithfulness of this explanation."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from faithmeter.data.batch import CONTEXT, TEXT, Batch, Texts, listed, require_texts
from faithmeter.data.units import CHUNKED, TOKEN, with_units
from faithmeter.explaining.heat_map import heat_map, visible
from faithmeter.explaining.options import PREDICTED, ExplainOptions, require_target
from faithmeter.importance.measure import Explain, ImportanceMeasure, units_in
from faithmeter.importance.table import IMPORTANCE_MEASURES, as_measure
from faithmeter.in_distribution.masf import MaSF
from faithmeter.in_distribution.p_values import simes
from faithmeter.masking import STEPS, Purpose, random_stream
from faithmeter.measuring.curves import Floats, area_between_curves, mask_most_important, masking_walk
from faithmeter.models.classifier import Classifier
from faithmeter.problems import CLASSES, NUMBER, in_words
from faithmeter.statistics.one_text import adjusted_p_values, randomisation_p_value

SAME_AREA = 1e-5  # areas of the same masks differ by less, because another batch rounds otherwise: a tie is no win


@dataclass(frozen=True)
class Piece:
    """A token or a word of the text: `text[start:end]` and its importance."""

    text: str
    start: int
    end: int
    importance: float


@dataclass(frozen=True)
class Step:
    """One masking step: the indices of the masked tokens, and the model's output for the rest."""

    masked: tuple[int, ...]
    predicted: str
    probability: float
    p_value: float | None


@dataclass(frozen=True)
class Explanation:
    """The explanation of a text's class by one importance measure.

    `acu` and `racu` are the areas between `curve`, the probability of `target` as ever more important tokens are masked
    in `steps`, and `random_curve`: above 0 means that this explanation finds tokens that matter more than random ones.
    `p_value` tests whether the masked texts of the curve are in-distribution; None if that was not tested. `by` is what
    was masked and explained as a whole; where that is not a token, `units` are its pieces. `unread` counts the
    truncated tokens of the text and its context; `cut` says so in a sentence. `doubt` says why explanations by this
    measure should not be trusted, if the run's verdict says so.

    `orders` random orders of the same text test the explanation: it has a larger area than `beaten` of them, and
    `order_p_value` is the share of those that do as well, itself included (`order_p_adjusted`: Benjamini and Hochberg's
    over the texts explained together). `random_low` and `random_high` are the 2.5 % and 97.5 % quantiles of their
    curves at each step. All of it is about this text and this model.

    Where both texts of a pair are masked, `context_tokens`, `context_words` and `context_units` are the pieces of the
    context, and the indices in `steps` count the tokens of the text and then those of the context.

    `problem` says what the model answers. Of several `labels`, `predicted` names those above one half. Of a `number`,
    `probability` is that number, and a curve is how far it has moved from that of the unmasked text: 0, then below.
    """

    text: str
    context: str | None
    measure: str
    predicted: str
    target: str
    probability: float
    tokens: tuple[Piece, ...]
    words: tuple[Piece, ...]
    steps: tuple[Step, ...]
    curve: tuple[float, ...]
    random_curve: tuple[float, ...]
    acu: float
    racu: float | None
    p_value: float | None
    by: str = TOKEN
    units: tuple[Piece, ...] = ()
    unread: int = 0
    cut: str | None = None
    doubt: str | None = None
    orders: int = 0
    beaten: int | None = None
    order_p_value: float | None = None
    order_p_adjusted: float | None = None
    random_low: tuple[float, ...] = ()
    random_high: tuple[float, ...] = ()
    context_tokens: tuple[Piece, ...] = ()
    context_words: tuple[Piece, ...] = ()
    context_units: tuple[Piece, ...] = ()
    problem: str = CLASSES

    @property
    def answer(self) -> str:
        """What the model answers, in a few words: the prediction and the target's probability, or the number."""
        if self.problem == NUMBER:
            return f"{self.target} = {self.probability:.4g}"
        return f"{self.predicted}, p({self.target}) = {self.probability:.3f}"

    @property
    def against_orders(self) -> str | None:
        """How the explanation does against random orders, in a sentence; None where that was not tested."""
        if self.order_p_value is None:
            return None
        many = (
            "" if self.order_p_adjusted is None else f", {self.order_p_adjusted:.2f} adjusted for the number of texts"
        )
        return f"Better than {self.beaten} of {self.orders} random orders (p = {self.order_p_value:.2f}{many})."

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """What a reader is shown: the units that were explained as a whole, or the words where those were tokens."""
        return self.units or self.words

    @property
    def context_pieces(self) -> tuple[Piece, ...]:
        """The same of the context, where both texts of a pair are masked."""
        return self.context_units or self.context_words

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader should know before the text is shown, in sentences."""
        return tuple(said for said in (self.doubt, self.cut) if said is not None)

    def as_row(self) -> dict[str, Any]:
        """Return the explanation as plain lists and numbers, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        """Return the prediction, its most important words and its faithfulness in one line, after any warnings."""
        top = sorted((*self.pieces, *self.context_pieces), key=lambda word: -abs(word.importance))[:5]
        words = ", ".join(f"{word.text} {word.importance:+.3f}" for word in top)
        return "\n".join((*(f"Warning: {said}" for said in self.warnings), f"{self._says()}: {words}"))

    def _repr_html_(self) -> str:
        """Show the text coloured in a notebook."""
        warned = "".join(f"<p><strong>Warning:</strong> {visible(said)}</p>" for said in self.warnings)
        return f"{warned}<p>{self.coloured()}</p><p><small>{visible(self._says())}</small></p>"

    def coloured(self, *, tokens: bool = False, end: int | None = None) -> str:
        """Return the text, up to `end`, as HTML with its words, or units, coloured by importance, or its tokens.

        Where both texts of a pair are masked, the context follows on a line of its own.
        """
        pieces, beside = self.tokens if tokens else self.pieces, self.context_tokens if tokens else self.context_pieces
        strongest = max((abs(piece.importance) for piece in (*pieces, *beside)), default=0.0)
        text = heat_map(self.text[:end], [(one.start, one.end, one.importance) for one in pieces], strongest)
        if not beside or self.context is None:
            return text
        spans = [(one.start, one.end, one.importance) for one in beside]
        return f"{text}<br>{heat_map(self.context, spans, strongest, first=len(pieces))}"

    def _says(self) -> str:
        tested = "" if self.beaten is None else f", better than {self.beaten} of {self.orders} random orders"
        return f"{self.answer}, by {self.measure}, ACU {self.acu:.3f}{tested}"


def explain_texts(
    classifier: Classifier,
    texts: Texts,
    contexts: Texts | None = None,
    options: ExplainOptions | None = None,
    *,
    measure: str | Explain | ImportanceMeasure,
    masf: MaSF | None = None,
) -> list[Explanation]:
    """Explain texts one by one. A string is one text, explained as the only one of a list.

    Needs no run: `explain_texts(Classifier(model, tokenizer), texts, measure="loo-signed")` takes a transformers model
    and tokenizer that you have, and does not change them.
    """
    chosen, options = [as_measure(measure)], options or ExplainOptions()
    texts, contexts = listed(texts, contexts)
    require_texts(texts)
    require_texts(contexts or ())
    pairs = zip(texts, [None] * len(texts) if contexts is None else contexts, strict=True)
    explanations = [
        explanation
        for row, (text, context) in enumerate(pairs)
        for explanation in explain_text(classifier, text, context, options, measures=chosen, masf=masf, row=row)
    ]
    return adjusted(explanations)


def adjusted(explanations: Sequence[Explanation]) -> list[Explanation]:
    """Return explanations of several texts with p-values adjusted for their number (Benjamini and Hochberg, 1995).

    A single one, or those that were not tested, as they are.
    """
    p_values = [explanation.order_p_value for explanation in explanations]
    if len(explanations) < 2 or None in p_values:
        return list(explanations)
    together = adjusted_p_values(np.array(p_values, dtype=np.float64)).tolist()
    return [replace(each, order_p_adjusted=p) for each, p in zip(explanations, together, strict=True)]


def explain_text(
    classifier: Classifier,
    text: str,
    context: str | None,
    options: ExplainOptions,
    *,
    measures: Sequence[ImportanceMeasure],
    masf: MaSF | None = None,
    row: int = 0,
) -> list[Explanation]:
    """Explain one text by several measures, with the same random masking.

    All that is random comes from the seed and the dataset row: with those of a measurement, and as many random runs,
    the areas are those that were measured.
    """
    require_target(options.target, classifier.labels)
    contexts = None if context is None else [context]
    by, chunk = options.units
    encoded = with_units(classifier.encode([text], contexts), classifier, [text], contexts, by=by, chunk=chunk)
    batch = replace(encoded.batch([0]), rows=torch.tensor([row]))
    likeliest = int(classifier.predict_with_features(batch)[0].argmax())
    explained = likeliest if options.target == PREDICTED else classifier.labels.index(options.target)
    targets, seed = torch.tensor([explained]), options.seed
    baseline = _random_curve(classifier, batch, targets, seed, options.random_runs)
    orders = _random_order_curves(classifier, batch, targets, seed, options.orders)
    unread = classifier.unread(text, context) if encoded.truncated else 0
    return [
        replace(
            _against(
                orders,
                _explain(classifier, batch, text, context, measure, targets, baseline, masf, seed),
            ),
            by=f"{by} of {chunk}" if by == CHUNKED else by,
            unread=unread,
            cut=_cut_in_words(classifier, unread, int(encoded.lengths[0]), context is not None) if unread else None,
        )
        for measure in measures
    ]


def _cut_in_words(classifier: Classifier, unread: int, read: int, pair: bool) -> str:
    """Return that a text was cut, by how much, and what to do."""
    what = "text and its context are" if pair else "text is"
    enough = min(classifier.limit, read + unread)
    wider = (
        f"This model can read {classifier.limit}: make its run with --max-length {enough} "
        "(in Python, max_length) to have more of it read, or explain it in parts."
        if classifier.limit > classifier.max_length
        else "Explain it in parts, or take a model that reads longer texts."
    )
    return (
        f"The {what} too long: {unread} of {read + unread} tokens were cut off and had no part in this answer, because "
        f"{classifier.max_length} are read at most. {wider}"
    )


def _random_curve(classifier: Classifier, batch: Batch, targets: Tensor, seed: int, runs: int) -> Floats:
    """Return the mean probability of the target at every step of masking at random (see `_curves`)."""
    random, batch = IMPORTANCE_MEASURES["random"], batch.to(classifier.device)
    walks = [step for run in range(runs) for step in masking_walk(classifier, batch, random, targets, seed=seed + run)]
    masked = torch.cat([step.masked for step in walks])
    logits = classifier.logits_of_masks(batch, torch.zeros(len(walks), dtype=torch.long, device=masked.device), masked)
    curves = _curves(classifier, logits, int(targets)).view(runs, -1)
    return curves.mean(dim=0).cpu().numpy()


def _random_order_curves(classifier: Classifier, batch: Batch, targets: Tensor, seed: int, orders: int) -> Floats:
    """Return (orders, steps + 1) probabilities of the target as one text is masked in random orders (see `_curves`).

    They are of other draws than the baseline and than any measure, from the seed and the text's row. Maskings that
    several orders share, such as all of it, are predicted once.
    """
    if orders == 0:
        return np.zeros((0, STEPS + 1))
    batch = batch.to(classifier.device)
    random = random_stream(seed, Purpose.RANDOM_ORDERS, int(batch.rows[0]))
    (units,) = units_in(batch, batch.maskable)
    drawn = np.stack([units.spread(random.random(units.count)) for _ in range(orders)])
    importance = torch.from_numpy(drawn).to(classifier.device)
    walks, every = [batch.masked.expand(orders, -1)], Batch.stacked([batch] * orders)
    for step in range(1, STEPS):
        every = every.with_masked(mask_most_important(every, importance, step))
        walks.append(every.masked)
    walks.append(every.masked | every.maskable)
    masked, place = torch.stack(walks, dim=1).flatten(0, 1).unique(dim=0, return_inverse=True)
    logits = classifier.logits_of_masks(batch, torch.zeros(len(masked), dtype=torch.long, device=masked.device), masked)
    return _curves(classifier, logits[place], int(targets)).view(orders, STEPS + 1).cpu().numpy()


def _curves(classifier: Classifier, logits: Tensor, target: int) -> Tensor:
    """Return what is followed as a text is masked, of logits that begin with the unmasked text's.

    That is the target's probability. A number has none: it is how near it stays to that of the unmasked text.
    """
    answers = classifier.problem.scores(logits.double())[:, target]
    return -(answers - answers[0]).abs() if classifier.problem.name == NUMBER else answers


def _against(orders: Floats, explanation: Explanation) -> Explanation:
    """Return an explanation with its test against the curves of random orders; as it is where there are none."""
    if len(orders) == 0:
        return explanation
    baseline = np.broadcast_to(np.array(explanation.random_curve), orders.shape)
    areas, _ = area_between_curves(orders, baseline)
    p_value = randomisation_p_value(explanation.acu - SAME_AREA, areas)
    low, high = np.quantile(orders, (0.025, 0.975), axis=0)
    return replace(
        explanation,
        orders=len(orders),
        beaten=len(orders) + 1 - round(p_value * (len(orders) + 1)),
        order_p_value=p_value,
        random_low=tuple(low.tolist()),
        random_high=tuple(high.tolist()),
    )


def _explain(
    classifier: Classifier,
    batch: Batch,
    text: str,
    context: str | None,
    measure: ImportanceMeasure,
    targets: Tensor,
    baseline: Floats,
    masf: MaSF | None,
    seed: int,
) -> Explanation:
    importance = measure.explain(classifier, batch, targets, seed)
    walk = list(masking_walk(classifier, batch, measure, targets, seed=seed, importance=importance))
    logits, p_values = _follow(classifier, walk, masf)
    answers, curve = classifier.problem.scores(logits.double()), _curves(classifier, logits, int(targets)).numpy()
    predicted = [in_words(classifier.problem, classifier.labels, each) for each in answers.tolist()]
    acu, racu = area_between_curves(curve, baseline)
    first, tokens, words, units = _pieces(classifier, batch, text, context, importance[0])
    second, *beside = _pieces(classifier, batch, text, context, importance[0], CONTEXT)
    positions = [*first, *second]
    steps = tuple(
        Step(
            masked=tuple(number for number, position in enumerate(positions) if bool(masked.masked[0, position])),
            predicted=predicted[step],
            probability=float(answers[step, int(targets)]),
            p_value=None if p_values is None else float(p_values[step]),
        )
        for step, masked in enumerate(walk)
    )
    return Explanation(
        text=text,
        context=context,
        measure=measure.name,
        predicted=predicted[0],
        target=classifier.labels[int(targets)],
        probability=float(answers[0, int(targets)]),
        tokens=tokens,
        words=words,
        units=units,
        steps=steps,
        curve=tuple(curve.tolist()),
        random_curve=tuple(baseline.tolist()),
        acu=float(acu),
        racu=None if np.isnan(racu) else float(racu),
        p_value=None if p_values is None else float(simes(p_values)),
        context_tokens=beside[0],
        context_words=beside[1],
        context_units=beside[2],
        problem=classifier.problem.name,
    )


def _follow(classifier: Classifier, walk: list[Batch], masf: MaSF | None) -> tuple[Tensor, Tensor | None]:
    """Return the (steps, classes) logits along a walk, and each step's p-value of being in-distribution."""
    steps = Batch.stacked(walk)
    logits, features = classifier.predict_with_features(steps)
    if masf is None:
        return logits, None
    return logits, masf.walk_p_values(steps, features, torch.arange(len(walk)))[1]


def _pieces(
    classifier: Classifier, batch: Batch, text: str, context: str | None, importance: Tensor, part: int = TEXT
) -> tuple[list[int], tuple[Piece, ...], tuple[Piece, ...], tuple[Piece, ...]]:
    """Return the positions of the text's tokens, the tokens, the words, and the units if they are not tokens.

    A word belongs to (sequence, word): those of the context are not the text's. They are returned for `part` CONTEXT,
    if the context is masked.

    The token of the largest absolute importance speaks for its word, which suits every kind of measure. The tokens of a
    unit all have its importance.
    """
    (encoding,) = classifier.encodings([text], None if context is None else [context])
    said = text if part == TEXT else context
    positions: list[int] = []
    tokens: list[Piece] = []
    words: dict[int, list[Piece]] = {}
    units: dict[int, list[Piece]] = {}
    if said is None or (part == CONTEXT and not classifier.both_texts):
        return positions, (), (), ()
    for position, (sequence, word) in enumerate(zip(encoding.sequence_ids, encoding.word_ids, strict=True)):
        if sequence != part:
            continue
        start, end = encoding.offsets[position]
        piece = _piece(said, start, end, float(importance[position]))
        positions.append(position)
        tokens.append(piece)
        words.setdefault(position if word is None else word, []).append(piece)
        if batch.units is not None and bool(batch.maskable[0, position]):
            units.setdefault(int(batch.units[0, position]), []).append(piece)
    return positions, tuple(tokens), _joined(said, words), _joined(said, units)


def _joined(text: str, groups: dict[int, list[Piece]]) -> tuple[Piece, ...]:
    """Return each group of tokens as one piece of the text."""
    joined = []
    for pieces in groups.values():
        loudest = max(pieces, key=lambda piece: abs(piece.importance))
        joined.append(_piece(text, pieces[0].start, pieces[-1].end, loudest.importance))
    return tuple(joined)


def _piece(text: str, start: int, end: int, importance: float) -> Piece:
    """Return `text[start:end]` without the space before it, which some tokenizers count as a part of the word."""
    said = text[start:end]
    start += len(said) - len(said.lstrip() or said)
    return Piece(text[start:end], start, end, importance)
