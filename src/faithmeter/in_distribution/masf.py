"""Is masked text in-distribution for a model? MaSF (Haroush et al., 2022), as used by Madsen et al. (2024).

Sec. 3.3, App. F.2 and Algorithm 2 of the latter.

MaSF tests whether some channel of some layer is atypical for a text, compared with reference texts. Features are the
maximum of a channel over a text's tokens; their empirical CDFs give one p-value per channel, Simes one per layer,
Fisher (or a similar sum) one number per text, its `atypicality`, whose rank among reference texts is the text's
p-value.

Two forms. `paper` fits all levels on the same rows, which were masked as in training; it does not hold its level.
`calibrated` is a split-conformal test, one for each masking ratio: the score is fitted on one half of the reference
texts and calibrated on the other. It holds its level by exchangeability, however good or bad the features are, as long
as reference texts and tested texts come from one source.

So `calibrated` may use more features, and needs to: the maximum of a channel detects an atypical token only if it is
extreme in that channel. On one of three plain bAbI models the mask token was extreme in none, and 9 % of texts with a
tenth of their tokens masked were rejected; on SST2 random words in place of half of the tokens were detected in 59 % of
texts. It also uses the Mahalanobis distance of the mean over a text's tokens, in every layer. With both: 98 %, and 99
%.

Short texts are atypical more often than long ones, whatever is done to them: a mean over few tokens strays. So a row's
place is that among calibrating rows of about its length (conformal prediction by groups, Mondrian; Vovk et al., 2005,
Sec. 4.5), five groups where there are rows enough. The level then holds in each of them, by the same argument.

Two questions, two p-values. `own` asks whether a row differs from rows masked at random at its own ratio; masking by
importance often does, and is nothing that the model could not have met. So a row is called out-of-distribution only if
it is atypical at every ratio: `outside` is the largest p-value over all of them, and that among rows masked at any
ratio. As it is no smaller than `own`, it holds its level at every ratio.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from faithmeter.data.batch import Batch, Encoded
from faithmeter.errors import InputError, first_line
from faithmeter.files import new_folder, read_json, require_whole
from faithmeter.in_distribution.p_values import (
    counts,
    design_effect,
    fisher,
    inverse_roots,
    lower_add_one,
    simes,
    sorted_columns,
    two_sided,
    two_sided_add_one,
)
from faithmeter.masking import STEPS, Purpose, random_count_mask, random_stream
from faithmeter.models.classifier import Classifier
from faithmeter.progress import Advance
from faithmeter.statistics import LEVEL

BEFORE_LENGTHS, FORMAT = 2, 3  # of the stored test
ROWS_NEEDED = 2000  # below this, the share of texts under 5 % varies by more than ±1.5 points between splits
ROWS_FOR_TERCILES = 5000
LENGTH_GROUPS = 5
ROWS_A_GROUP = 30  # that describe, and about as many that calibrate: the most atypical row then has p ≤ 1/31
# Equal inputs differ by about 1e-6 from batch to batch. Without a grid that noise decides ties, and where most rows
# are alike (all tokens masked) it decides the test: a value 1e-7 above a thousand equal ones is their maximum.
GRID_DECIMALS = 3
ROWS_AT_ONCE = 128
DESCRIBING_ROWS = 1000  # enough to know what is typical; what more there are make the level surer, and cost no space
WIDEST = 128  # directions in which the spread of means is known one by one; that in the others is taken as the same
SHRINK = 0.1


@dataclass(frozen=True)
class Reference:
    """What typical rows look like: sorted `channels` (L, H, n), sorted statistics of `layers` (L or 2L, n), and
    `atypicality` (m,) of the calibrating rows: `sizes` of each length group, one after the other, each sorted. Of the
    rows' means: `centre` (L, H), `directions` (L, H, k) and the variances in them and in all
    others, `spread` (L, k + 1); empty in the paper's form.

    It costs about n·L·H numbers of 4 bytes: 12 MB for 1,000 rows of MiniLM (7 × 384), 45 MB of RoBERTa-base (13 × 768).
    """

    channels: Tensor
    centre: Tensor
    directions: Tensor
    spread: Tensor
    layers: Tensor
    atypicality: Tensor
    sizes: Tensor


def channel_statistics(channels: Tensor, features: Tensor, form: str) -> Tensor:
    """Return the (L, rows) Simes values of (rows, L, 2, H) features: levels 1 and S of Algorithm 2."""
    p_value = two_sided if form == "paper" else two_sided_add_one
    largest = features[:, :, 0]
    parts = [simes(p_value(channels, part.permute(1, 2, 0)), dim=1) for part in largest.split(ROWS_AT_ONCE)]
    return torch.cat(parts, dim=1)


def fit_means(means: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return centre, widest directions and variances of (rows, L, H) means, the variances shrunk towards their mean."""
    centre = means.mean(dim=0)
    kept = min(WIDEST, means.shape[2])
    directions, spread = [], []
    for layer in (means - centre).double().unbind(dim=1):
        values, vectors = torch.linalg.eigh(layer.T @ layer / max(len(layer) - 1, 1))  # the widest last
        # rounding to the grid has a variance too, which is all there is where rows are alike
        values = (1 - SHRINK) * values + SHRINK * values.mean() + 10.0 ** (-2 * GRID_DECIMALS) / 12
        others = values[:-kept].mean() if kept < len(values) else values.mean()
        directions.append(vectors[:, len(values) - kept :])
        spread.append(torch.cat((values[len(values) - kept :], others[None])))
    return centre, torch.stack(directions).float(), torch.stack(spread).float()


def mean_statistics(reference: Reference, features: Tensor, lengths: Tensor) -> Tensor:
    """Return for each layer and row minus the log of the Mahalanobis distance of the row's mean; small is atypical.

    The mean over few tokens strays further than that over many: its squared distance would fall with their number if
    tokens were independent, which they are not. The root of the number, in between, found most.
    """
    # in double precision, for a product of matrices rounds differently from batch to batch
    away = (features[:, :, 1].double() - reference.centre).transpose(0, 1)  # (L, rows, H)
    within = (away @ reference.directions.double()).square()
    others = (away.square().sum(dim=-1) - within.sum(dim=-1)).clamp_min(0)
    distance = (within / reference.spread[:, None, :-1]).sum(dim=-1) + others / reference.spread[:, -1:]
    return -torch.round(torch.log1p(distance * lengths.sqrt()), decimals=GRID_DECIMALS)


def layer_statistics(reference: Reference, features: Tensor, lengths: Tensor, form: str) -> Tensor:
    """Return the (L, rows) statistics of the paper's form, or (2L, rows) of the calibrated one; small is atypical."""
    by_channel = channel_statistics(reference.channels, features, form)
    if form == "paper":
        return by_channel
    return torch.cat((by_channel, mean_statistics(reference, features, lengths)))


def atypicality(reference: Reference, features: Tensor, lengths: Tensor, form: str) -> Tensor:
    """Return one number per row from its layers' p-values: levels 2 and F of Algorithm 2; large is atypical.

    The calibrated form adds up p^(−½) instead of −2 log p. A layer's p-value cannot fall below 1/(n + 1), and Fisher's
    sum hides one such layer among several ordinary ones: on a plain bAbI model every row with a tenth of its tokens
    masked was outside anything the embedding layer had seen, and Fisher let up to 23 % pass. The harmonic mean, 1/p,
    catches them too, but loses where many layers are a little atypical (SST2, all masked: 91 against 98 %).
    """
    statistics = layer_statistics(reference, features, lengths, form)
    if form == "paper":
        return fisher(two_sided(reference.layers, statistics).T)
    return inverse_roots(lower_add_one(reference.layers, statistics).T)


def fit_reference(
    describe: tuple[Tensor, Tensor],
    calibrate: tuple[Tensor, Tensor],
    form: str,
    groups: Tensor | None = None,
    count: int = 1,
) -> Reference:
    """Fit levels 1 and 2 on the features and lengths of one half of the rows, and level 3 on the other's.

    `groups` are the length groups of the calibrating rows, numbers below `count`. In a group without calibrating rows
    p-values are pure chance.
    """
    features, lengths = describe
    none = torch.zeros(0)
    means = (none, none, none) if form == "paper" else fit_means(features[:, :, 1])
    reference = Reference(sorted_columns(features[:, :, 0]), *means, none, none, none)
    layers = layer_statistics(reference, features, lengths, form).sort(dim=-1).values
    reference = replace(reference, layers=layers)
    scores = atypicality(reference, *calibrate, form)
    groups = torch.zeros(len(scores), dtype=torch.long) if groups is None else groups
    order = scores.argsort(stable=True)
    order = order[groups[order].argsort(stable=True)]
    return replace(reference, atypicality=scores[order], sizes=groups.bincount(minlength=count))


@dataclass(frozen=True)
class MaSF:
    """A fitted in-distribution test. `references[k][t]` is for masking step k and length tercile t; `anywhere[t]` for
    rows masked at any step, each as likely.

    With one step only, it stands for every masking ratio: the paper's form, and a plain model's unmasked rows; then
    `anywhere` is empty. `tercile_edges` are the first lengths (tokens of a row) of the second and third tercile, if
    they are described apart, and `length_edges` those of all groups but the first whose rows are calibrated apart.
    `design_effect` is by how much rows of one story or author, that are alike, count for less than as many others.
    `every_ratio` is False for a test of format 2, which asks the mixture alone whether a text is out-of-distribution:
    what was measured with it before, and what is measured further, are judged alike.
    """

    form: str
    references: tuple[tuple[Reference, ...], ...]
    anywhere: tuple[Reference, ...]
    length_edges: tuple[int, ...]
    seed: int
    rows: int
    tercile_edges: tuple[int, ...] = ()
    design_effect: float = 1.0
    every_ratio: bool = True

    @property
    def calibration_rows(self) -> tuple[int, ...]:
        """How many rows calibrate the p-values, in each length group."""
        return tuple(int(size) for reference in self.references[0] for size in reference.sizes)

    @property
    def caution(self) -> str | None:
        """A sentence to show when there are too few reference rows for the 5 % to be 5 %."""
        if self.rows >= ROWS_NEEDED:
            return None
        spread = 100 * (LEVEL * (1 - LEVEL) * self.design_effect / sum(self.calibration_rows)) ** 0.5
        return (
            f"The in-distribution test was fitted on {self.rows} validation texts. With so few, the share of typical "
            f"texts called atypical at 5 % is itself uncertain by ±{2 * spread:.1f} points: {ROWS_NEEDED} texts are "
            f"needed, {2 * ROWS_NEEDED} are better."
        )

    def length_groups(self, lengths: Tensor) -> Tensor:
        """Return the group of each row by its number of tokens."""
        return _groups(lengths, self.length_edges)

    def p_values(self, features: Tensor, lengths: Tensor, rows: Tensor, steps: Tensor | int) -> tuple[Tensor, Tensor]:
        """Return the p-values (own, outside) of (rows, L, 2, H) features of rows masked at `steps`, one or one per row.

        `own` is at the step. `outside` is exact where it matters, up to the level: the largest over all steps and their
        mixture. A text that is typical at its own step is not asked about at the others; its `outside` is `own`. `rows`
        are the texts' numbers in their dataset: the randomised share of a tie comes from them and the seed, so batches
        do not change an answer.
        """
        steps = torch.as_tensor(steps).cpu().expand(len(features))
        return self._own_and_outside(features, lengths, rows, (steps,))

    def _own_and_outside(
        self, features: Tensor, lengths: Tensor, rows: Tensor, at: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        """Return `own`, the largest of the p-values at these steps of each text, and `outside`."""
        single = len(self.references) == 1
        own = torch.zeros(len(features), dtype=torch.float64)
        for steps in at:
            for step in (0,) if single else steps.unique().tolist():
                chosen = torch.arange(len(features)) if single else torch.nonzero(steps == step)[:, 0]
                given = features[chosen], lengths[chosen], rows[chosen]
                own[chosen] = torch.maximum(own[chosen], self.p_value_table(*given, (self.references[step],))[0])
        if not self.every_ratio and self.anywhere:
            return own, torch.maximum(own, self.p_value_table(features, lengths, rows, (self.anywhere,))[0])
        outside, atypical = own.clone(), torch.nonzero(own <= LEVEL)[:, 0]
        if len(atypical) and not single:
            outside[atypical] = self.p_value_table(features[atypical], lengths[atypical], rows[atypical]).amax(dim=0)
        return own, outside

    def p_value_table(
        self, features: Tensor, lengths: Tensor, rows: Tensor, every: tuple[tuple[Reference, ...], ...] | None = None
    ) -> Tensor:
        """Return the (references, rows) p-values of rows against `every` reference.

        By default against those of all steps and, last, their mixture's.
        """
        features = _finite(features) if self.form == "paper" else _on_grid(features)
        groups, terciles = self.length_groups(lengths), _groups(lengths, self.tercile_edges)
        uniform = torch.tensor(
            [random_stream(self.seed, Purpose.TIES, int(row)).random() for row in rows], dtype=torch.float64
        )
        if every is None:
            every = (*self.references, self.anywhere) if self.anywhere else self.references
        table = torch.zeros(len(every), len(features), dtype=torch.float64)
        for tercile in terciles.unique().tolist():
            chosen = torch.nonzero(terciles == tercile)[:, 0]
            own_groups = groups[chosen] - _first_group(self.tercile_edges, self.length_edges, tercile)
            given = features[chosen], lengths[chosen], own_groups, uniform[chosen]
            for number, references in enumerate(every):
                table[number, chosen] = _row_p_values(references[tercile], *given, self.form)
        return table

    def against_unmasked(self) -> "MaSF":
        """Return the test of a model that never saw masks: its unmasked rows are the reference for every ratio.

        They are those of step 0, so nothing is fitted again.
        """
        return replace(self, references=self.references[:1], anywhere=())

    def walk_p_values(self, batch: Batch, features: Tensor, step: Tensor | int) -> tuple[Tensor, Tensor]:
        """Return `p_values` of a batch as a walk has masked it by `step`, each text at the share that is masked.

        A share between two steps is judged at both, and the larger p-value counts: what is typical of either is. Where
        a walk has gone on and nothing of a text is masked yet, both p-values are 1: nothing that masking did is
        atypical.
        """
        below, above = (steps.cpu() for steps in neighbouring_steps(batch, step))
        lengths = batch.attention_mask.sum(dim=1).cpu()
        own, outside = self._own_and_outside(features, lengths, batch.rows, (below, above))
        untouched = ~(batch.masked & batch.maskable).any(dim=1).cpu() & (torch.as_tensor(step).cpu() > 0)
        return own.masked_fill(untouched, 1), outside.masked_fill(untouched, 1)

    def save(self, folder: Path) -> None:
        """Store the test as safetensors, one file a masking step."""
        with new_folder(folder) as new:
            for step, references in enumerate(self.references):
                _save_step(new, f"step-{step:02}", references)
            _save_step(new, "anywhere", self.anywhere)
            _save_header(new, self)

    @classmethod
    def load(cls, folder: Path) -> "MaSF":
        """Read a stored test. Its columns stay in the file until they are looked at (memory-mapped)."""
        remedy = "`faithmeter check` with the same options fits the same test again, and measurements are kept."
        header = read_json(require_whole(folder, remedy) / "masf.json", remedy)
        stored = header.pop("format", None)
        if stored not in (BEFORE_LENGTHS, FORMAT):
            raise InputError(f"{folder} was fitted by another version of faithmeter: run `faithmeter check` again.")
        if stored == BEFORE_LENGTHS:
            header |= {"tercile_edges": header["length_edges"], "every_ratio": False}
        header |= {name: tuple(header[name]) for name in ("length_edges", "tercile_edges")}
        steps, terciles = int(header.pop("steps")), len(header["tercile_edges"]) + 1
        try:
            references = tuple(_load_step(folder, f"step-{step:02}", terciles) for step in range(steps))
            anywhere = _load_step(folder, "anywhere", terciles if steps > 1 else 0)
        except (OSError, SafetensorError) as error:  # of a test that was stored without checksums
            raise InputError(f"{folder} is not complete: {first_line(error)}. {remedy}") from error
        return cls(references=references, anywhere=anywhere, **header)


def fit_paper(features: Tensor, *, seed: int = 0) -> MaSF:
    """Fit the paper's form (Algorithm 2) on the features of validation rows masked by the training masker."""
    rows = _finite(features), torch.zeros(len(features))
    return MaSF("paper", ((fit_reference(rows, rows, "paper"),),), (), (), seed, len(features))


def fit_calibrated(
    features: Iterable[Tensor],
    lengths: Tensor,
    *,
    steps: int = STEPS + 1,
    seed: int = 0,
    groups: Tensor | None = None,
    folder: Path | None = None,
) -> MaSF:
    """Fit the calibrated form on the (rows, L, 2, H) features of the same rows at each of the masking steps, in order.

    `features` may be lazy (`step_features`): one step is looked at at a time. With a `folder` each fitted step goes
    there and is read back as it is needed; without, the fitted halves of all steps stay in memory. A model that was
    not trained on masked text is given its unmasked rows only, which then are the reference for every ratio: against
    masked references random masking would pass by construction.

    `groups` names the story or author of each row, where several rows have one: a group describes or calibrates as a
    whole. With siblings in the describing half a calibrating row looks more typical than a new one can, most of all to
    a decoder, whose states of a common beginning are the same. By default every row is a group of its own.
    """
    if len(lengths) < 4:
        raise InputError(f"An in-distribution test cannot be fitted on {len(lengths)} texts: {ROWS_NEEDED} are needed.")
    terciles = _tercile_edges(lengths)
    groups = torch.arange(len(lengths)) if groups is None else groups
    describing = _describing(groups, min(len(lengths) // 2, DESCRIBING_ROWS * (len(terciles) + 1)), seed)
    edges = tuple(sorted({*terciles, *_length_edges(lengths[describing], int((~describing).sum()))}))
    in_group, in_tercile = _groups(lengths, edges), _groups(lengths, terciles)
    halves = [
        tuple(torch.nonzero((in_tercile == tercile) & half)[:, 0] for half in (describing, ~describing))
        for tercile in range(len(terciles) + 1)
    ]
    # each row is shown once more at a step drawn for it: what the model is at home with, whatever the ratio
    drawn = torch.from_numpy(random_stream(seed, Purpose.REFERENCE_STEPS).integers(0, steps, len(lengths)))
    mixed, effects = torch.zeros(0), [1.0]
    alike = len(groups.unique()) < len(groups)

    def fit(values: Tensor) -> tuple[Reference, ...]:
        found, places = list[Reference](), torch.zeros(len(values), dtype=torch.float64)
        for tercile, (a, b) in enumerate(halves):
            first, end = (_first_group(terciles, edges, number) for number in (tercile, tercile + 1))
            own, given = in_group[b] - first, ((values[a], lengths[a]), (values[b], lengths[b]))
            found.append(fit_reference(*given, "calibrated", own, end - first))
            if alike:
                half = torch.full((len(b),), 0.5, dtype=torch.float64)
                places[b] = _row_p_values(found[-1], values[b], lengths[b], own, half, "calibrated")
        effects.append(design_effect(places[~describing], groups[~describing]))
        return tuple(found)

    fitted: list[tuple[Reference, ...]] = []
    with nullcontext() if folder is None else new_folder(folder) as new:
        for step, values in enumerate(map(_on_grid, features)):
            mixed = mixed if len(mixed) else torch.empty_like(values)
            mixed[drawn == step] = values[drawn == step]
            fitted.append(_kept(new, f"step-{step:02}", fit(values)))
            del values  # before the next step's features are computed
        anywhere = () if steps == 1 else fit(mixed)
        every = tuple(fitted), _kept(new, "anywhere", anywhere)
        masf = MaSF("calibrated", *every, edges, seed, len(lengths), terciles, max(effects))
        if new is not None:
            _save_header(new, masf)
    return masf


def _kept(folder: Path | None, name: str, references: tuple[Reference, ...]) -> tuple[Reference, ...]:
    """Return the references, from a file and no longer in memory where there is a folder for them."""
    if folder is None:
        return references
    _save_step(folder, name, references)
    return _load_step(folder, name, len(references))


def step_features(
    classifier: Classifier,
    encoded: Encoded,
    *,
    seed: int,
    steps: Iterable[int] = range(STEPS + 1),
    progress: Advance | None = None,
) -> Iterator[Tensor]:
    """Yield for each masking step the features of all rows, in row order, with floor(n·k/10) random tokens masked.

    Lazy, so that one step's features are in memory at a time. `progress` is told the rows done, of rows × steps.
    """
    for step in steps:
        yield classifier.features(masked_at_random(encoded, step, (seed, Purpose.REFERENCE_MASKS)), progress=progress)


def masked_at_random(encoded: Encoded, step: int, keys: tuple[int, ...]) -> Encoded:
    """Return the split with exactly floor(n·k/10) random tokens of each row masked, drawn from (*keys, row).

    Rows to be tested need other keys than the reference rows, whose masks they would share otherwise.
    """
    return encoded.masked_by(lambda row, maskable: random_count_mask(maskable, step, STEPS, random_stream(*keys, row)))


def neighbouring_steps(batch: Batch, step: Tensor | int) -> tuple[Tensor, Tensor]:
    """Return the two steps between whose references each text of a batch belongs, where its walk is at `step`.

    References have floor(n·k/10) of n tokens masked. Where a text has as many as `step` gives, both are that step: so
    by tokens always. Whole units mask more or less, down to none; then it is the last step that masks no more of such a
    text than is masked, and the first that masks no less. That is ceil(10·m/n), but its references alone have up to a
    tenth more masked than the text: random sentences of an untrained RoBERTa then are atypical in 8 to 32 % (39 to
    86 % at `step` itself), and in 4 to 6 % where both are asked.
    """
    size, masked = batch.maskable.sum(dim=1), (batch.masked & batch.maskable).sum(dim=1)
    of_step = size[:, None] * torch.arange(STEPS + 1, device=size.device) // STEPS
    below, above = (of_step <= masked[:, None]).sum(dim=1) - 1, (of_step < masked[:, None]).sum(dim=1)
    exact = masked == size * step // STEPS
    return torch.where(exact, step, below), torch.where(exact, step, above)


def _finite(features: Tensor) -> Tensor:
    if not bool(torch.isfinite(features).all()):
        raise InputError("The model's hidden states are not finite, so its masked texts cannot be tested.")
    return features.float().cpu()


def _on_grid(features: Tensor) -> Tensor:
    return torch.round(_finite(features), decimals=GRID_DECIMALS)


def _groups(lengths: Tensor, edges: tuple[int, ...]) -> Tensor:
    """Return how many of the edges are at most as large as each length."""
    return torch.bucketize(lengths, torch.tensor(edges, dtype=lengths.dtype), right=True)


def _tercile_edges(lengths: Tensor) -> tuple[int, ...]:
    """Return the terciles of the lengths where there are rows enough for three tests, and lengths that differ."""
    if len(lengths) < ROWS_FOR_TERCILES:
        return ()
    ordered = lengths.sort().values
    edges = tuple(int(ordered[len(ordered) * third // 3]) for third in (1, 2))
    groups = _groups(lengths, edges).bincount(minlength=3)
    return edges if int(groups.min()) >= ROWS_NEEDED // 2 else ()


def _length_edges(lengths: Tensor, calibrating: int) -> tuple[int, ...]:
    """Return the first lengths of the groups that are calibrated apart, up to five and as even as lengths allow.

    They come from the rows that describe alone: of a group that was cut with a look at the calibrating rows, these
    would not be exchangeable with a new row.
    """
    wanted = max(1, min(LENGTH_GROUPS, len(lengths) // ROWS_A_GROUP, calibrating // ROWS_A_GROUP))
    ordered, edges, start = lengths.sort().values, list[int](), 0
    for part in range(1, wanted):
        edge = int(ordered[len(ordered) * part // wanted])
        below, left = int((lengths < edge).sum()), int((lengths >= edge).sum())
        if min(below - start, left) >= 2 * ROWS_A_GROUP // 3:
            edges.append(edge)
            start = below
    return tuple(edges)


def _first_group(terciles: tuple[int, ...], edges: tuple[int, ...], tercile: int) -> int:
    """Return the number of the first length group of a tercile: every tercile begins with a group. One past the last
    tercile, it is the number of groups.
    """
    if tercile == 0:
        return 0
    return edges.index(terciles[tercile - 1]) + 1 if tercile <= len(terciles) else len(edges) + 1


def _describing(groups: Tensor, wanted: int, seed: int) -> Tensor:
    """Return which rows describe what is typical: whole groups, in an order drawn at random, `wanted` rows at most.

    The others calibrate.
    """
    numbers = groups.unique(return_inverse=True)[1]
    order = torch.from_numpy(random_stream(seed, Purpose.REFERENCE_HALVES).permutation(int(numbers.max()) + 1))
    before = numbers.bincount()[order].cumsum(0)
    chosen = torch.zeros(len(order), dtype=torch.bool)
    chosen[order[before <= wanted]] = True
    if not bool(chosen.any()):
        raise InputError(
            f"An in-distribution test cannot be fitted on {len(groups)} rows of {len(order)} stories or authors, where "
            "one has most of the rows: it needs rows of many."
        )
    return chosen[numbers]


def _row_p_values(
    reference: Reference, features: Tensor, lengths: Tensor, groups: Tensor, uniform: Tensor, form: str
) -> Tensor:
    """Return level 3's p-values: 1 − F (paper), or the conformal (#> + U·(1 + #=))/(m + 1) among a group's m rows."""
    scores = atypicality(reference, features, lengths, form)
    found = torch.zeros(len(scores), dtype=torch.float64)
    for group, calibrating in enumerate(reference.atypicality.split(reference.sizes.tolist())):
        mine = groups == group
        smaller, at_most = counts(calibrating, scores[mine])
        size = len(calibrating)
        if form == "paper":
            found[mine] = 1 - smaller.double() / size
        else:
            found[mine] = (size - at_most + uniform[mine] * (1 + at_most - smaller)) / (size + 1)
    return found


def _save_step(folder: Path, name: str, references: tuple[Reference, ...]) -> None:
    tensors = {f"{part}.{g}": t.contiguous() for g, r in enumerate(references) for part, t in vars(r).items()}
    save_file(tensors, folder / f"{name}.safetensors")


def _load_step(folder: Path, name: str, groups: int) -> tuple[Reference, ...]:
    with safe_open(folder / f"{name}.safetensors", framework="pt") as file:
        kept, found = set(file.keys()), list[Reference]()
        for group in range(groups):
            parts = {field.name: f"{field.name}.{group}" for field in fields(Reference)}
            tensors = {field: file.get_tensor(part) for field, part in parts.items() if part in kept}
            tensors.setdefault("sizes", torch.tensor([len(tensors["atypicality"])]))  # of a test before lengths
            found.append(Reference(**tensors))
        return tuple(found)


def _save_header(folder: Path, masf: MaSF) -> None:
    header = {
        "format": FORMAT,
        "form": masf.form,
        "length_edges": masf.length_edges,
        "tercile_edges": masf.tercile_edges,
        "design_effect": masf.design_effect,
        "seed": masf.seed,
        "rows": masf.rows,
        "steps": len(masf.references),
    }
    (folder / "masf.json").write_text(json.dumps(header, indent=2) + "\n", encoding="utf-8")
