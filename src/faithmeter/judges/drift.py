"""Embedding drift: how far do the representations of texts move while they are masked?

Crothers et al. (2023) show that masked texts leave the places where the original ones lie: what the model does with
them, and every number made of it, is its own affair. A text is masked by its explanation, the most important tokens
first, and its representation, what the head reads, is compared with that of the whole text and with the data.

The paper's distance is "to the original data". Taken here is the mean over the original texts and not the distance to
their centroid: the texts of different classes lie in different directions, and the middle between them may be a place
where no text is. The mean cosine distance to many vectors is one minus the product with the mean of their directions,
so it costs no more.

The plane of the map is of principal components, of directions (vectors of length 1), so that a distance in it is at
most what the cosine distance says: its square is at most twice that. Written by hand: it is one eigendecomposition, and
scikit-learn's would have to be told to keep its signs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from faithmeter.data.batch import Batch, Encoded
from faithmeter.files import require_whole, write_bytes
from faithmeter.importance.measure import ImportanceMeasure
from faithmeter.in_distribution.masf import MaSF
from faithmeter.judges.judge import Bench, By, Judge, Need, SectionData, ShownColumn
from faithmeter.judges.maskings import representations
from faithmeter.judges.ranking import Array, Columns, ranks
from faithmeter.masking import STEPS, Mask, Purpose, masked_count, random_count_mask, random_stream
from faithmeter.models.classifier import Classifier

SHARES = tuple(f"{share} %" for share in range(0, 101, 10))  # details of the rows: how much is masked

DATA_ROWS = 1000  # original texts that represent the data
COMPONENTS = 10  # kept of each masked text: two to plot, the others for a non-linear map (UMAP)
MAP = "map_"  # prefix of the columns with coordinates of the map, which have no mean
CLASS = f"{MAP}class"


@dataclass(frozen=True)
class Space:
    """The space of the original texts: their mean `direction`, and the principal components of the map.

    `centre` and `axes` (dimensions, components) are those of texts whole and masked at random, half and half: of whole
    ones alone, the map would not show where masking leads. `shares` are the parts of the variance along the axes.
    """

    direction: Tensor
    centre: Tensor
    axes: Tensor
    shares: Tensor

    def save(self, file: Path) -> None:
        """Store it as safetensors."""
        write_bytes(file, save({name: tensor.contiguous() for name, tensor in vars(self).items()}))

    @classmethod
    def load(cls, file: Path) -> "Space":
        """Read it again."""
        return cls(**load_file(require_whole(file, "`faithmeter audit` with the same options fits it again.")))


def fit_space(classifier: Classifier, encoded: Encoded, *, seed: int = 0) -> Space:
    """Fit it on the texts of a split, or a thousand drawn at random, unmasked and with a tenth up to all masked."""

    def mask_of(row: int, maskable: Mask) -> Mask:
        stream = random_stream(seed, Purpose.DRIFT_MAP, row)
        return random_count_mask(maskable, int(stream.integers(1, STEPS + 1)), STEPS, stream)

    rows = random_stream(seed, Purpose.AUDITED_ROWS).permutation(len(encoded))[:DATA_ROWS]
    whole, masked = (
        torch.cat([classifier.representations(batch)[0] for batch in split.batches(classifier.tokens_per_pass, rows)])
        for split in (encoded, encoded.masked_by(mask_of))
    )
    whole, masked = (one[one.norm(dim=1) > 0] for one in (_units(whole), _units(masked)))
    return Space(whole.mean(dim=0), *principal_components(torch.cat((whole, masked))))


def principal_components(vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the centre of (rows, dimensions) vectors, the axes along which they vary most, and their shares of it.

    The sign of an axis is free; that of its largest entry is positive here, so that a map is never another's mirror.
    """
    centre = vectors.mean(dim=0)
    values, axes = torch.linalg.eigh((vectors - centre).T @ (vectors - centre))
    values, axes = values.clamp_min(0).flip(0)[:COMPONENTS], axes.flip(1)[:, :COMPONENTS]
    signs = axes.take_along_dim(axes.abs().argmax(dim=0, keepdim=True), dim=0).sign()
    total = (vectors - centre).square().sum().clamp_min(torch.finfo(values.dtype).tiny)
    return centre, axes * signs, values / total


def drift(
    classifier: Classifier, batch: Batch, importance: Tensor, space: Space, *, masf: MaSF | None = None
) -> Columns:
    """Return how far each row has moved when 10 %, 20 % … 100 % of its tokens are masked, the most important first.

    - `drift@10 %` …: the cosine distance to the representation of the whole text.
    - `distance_to_data@0 %` …: the mean cosine distance to the original texts (of which the row may be one).
    - with `masf`, `outside@0 %` …: 1 where the text masked so is out-of-distribution.
    - `map_1@0 %` …: its place on the map.

    The explanation is that of the whole text; ties go to the lowest position. A row without maskable tokens is nan, and
    so is a representation of length 0, which has no direction.
    """
    size = batch.maskable.sum(dim=1)
    rank = ranks(importance.to(size.device), batch.maskable)
    wanted = [[row, masked_count(n, step)] for row, n in enumerate(size.tolist()) for step in range(STEPS + 1)]
    # a short text has the same masks at several steps, and is evaluated once
    asked, place = torch.tensor(wanted, device=size.device).unique(dim=0, return_inverse=True)
    which, count = asked.T
    masked = batch.masked[which] | (batch.maskable[which] & (rank[which] < count[:, None]))
    vectors, strange = representations(classifier, batch, which, masked, masf)
    place = place.cpu().view(len(batch), STEPS + 1)
    units = _units(vectors)
    units = units.masked_fill(units.norm(dim=1, keepdim=True) == 0, torch.nan)[place]  # (rows, steps, dimensions)
    tables = {
        "drift": 1 - (units * units[:, :1]).sum(dim=-1),
        "distance_to_data": 1 - units @ space.direction,
        **({} if strange is None else {"outside": strange.double()[place]}),
    }
    along = (units - space.centre) @ space.axes
    tables |= {f"{MAP}{number + 1}": along[..., number] for number in range(along.shape[-1])}
    empty = (size == 0).cpu()
    return {
        f"{name}@{100 * step // STEPS} %": table[:, step].masked_fill(empty, torch.nan).numpy()
        for name, table in tables.items()
        for step in range(1 if name == "drift" else 0, STEPS + 1)  # an unmasked text has not moved
    }


def _units(vectors: Tensor) -> Tensor:
    """Return vectors scaled to length 1, in double precision; a vector of zeros stays."""
    return torch.nn.functional.normalize(vectors.double(), dim=1)


def _judge(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    assert bench.space is not None
    columns = drift(bench.classifier, batch, bench.explained(batch, measure), bench.space, masf=bench.masf)
    return {**columns, CLASS: bench.predicted(batch).double().numpy()}


# a distance does not show that a measure is good, so it ranks no measures
DRIFT = Judge(
    "drift",
    200,
    _judge,
    {},
    SectionData(
        "How far masked texts move",
        By.MASKED_TEXTS,
        (
            "Texts are masked in the order of importance. The representation that the head reads is compared with that "
            "of the unmasked text (drift) and, on average, with those of the original texts (distance to the data), "
            "by cosine distance: 0 is the same direction, 1 is orthogonal.",
            "It shows how far masking moves texts from the original ones. It cannot show that a measure is good: a "
            "text may move far because the important tokens are gone, or because the model never saw such a text. "
            "Distances cannot be compared across models; the in-distribution test tells where they are meaningful.",
        ),
        (
            *(ShownColumn("drift", f"drift at {share}", share) for share in ("10 %", "50 %", "100 %")),
            *(ShownColumn("distance_to_data", f"to the data at {share}", share) for share in ("0 %", "50 %", "100 %")),
            *(
                ShownColumn("outside", f"out-of-distribution at {share}", share, optional=True)
                for share in ("10 %", "50 %")
            ),
        ),
        table="Cosine distance by the share of masked tokens",
        caption="How far masked texts move, from the unmasked text and from the data, and how many are "
        "out-of-distribution (dotted: 5 %); ribbons are 95 % intervals.",
        outside=(
            (
                "outside",
                "With {detail} masked by {measure}, {share} % of the texts are out-of-distribution (chance gives "
                "{chance} %): their distance then means little.",
            ),
        ),
        layout="drift",
    ),
    passes=lambda _, explaining: explaining + STEPS + 1,
    needs=Need.SPACE,
    tests_masked=True,
    shares_explanations=True,
    curves=True,
)


@dataclass(frozen=True)
class Points:
    """Principal components of masked texts, by the measure that masked them: (texts, steps, components).

    `outside` is 1 where a text is out-of-distribution (empty if unchecked), `classes` the class predicted for each
    unmasked text, by number, `labels` their names, `shares` the share of variance of each component.
    """

    places: Mapping[str, Array]
    outside: Mapping[str, Array]
    classes: Array
    labels: Sequence[str]
    shares: Array
