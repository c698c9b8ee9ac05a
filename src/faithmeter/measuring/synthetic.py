"""The synthetic problem with a known answer for Recursive ROAR (Madsen et al., 2022, Sec. 3.3, Fig. 3).

x = a z / 10 + d η + ε / 10 with 16 features, of which 4 are informative and redundant; y = [z > 0]. ε is one number per
example, so that four features still hold z without noise. The explanation is the weight of a linear model of the
standardised features; a feature is removed by setting it to 0.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from faithmeter.masking import Purpose, random_stream
from faithmeter.measuring.curves import Floats
from faithmeter.performance import Ints

FEATURES, INFORMATIVE = 16, 4
TRAIN_ROWS, TEST_ROWS = 200_000, 50_000


@dataclass(frozen=True)
class SyntheticCurves:
    """Test accuracy after 0, 1 … 16 features were removed, in the order of each."""

    truth: list[float]
    recursive: list[float]
    roar: list[float]
    worst: list[float]


def synthetic_curves(seed: int, *, train_rows: int = TRAIN_ROWS, test_rows: int = TEST_ROWS) -> SyntheticCurves:
    """Remove features in the true order, by ROAR, by Recursive ROAR, and in the worst order, retraining each time."""
    inputs, labels = _draw(seed, train_rows + test_rows)
    inputs /= inputs[:train_rows].std(axis=0)  # weights of features of unlike scale would not compare
    train, test = (inputs[:train_rows], labels[:train_rows]), (inputs[train_rows:], labels[train_rows:])
    order = list(range(FEATURES))
    _, weights = _accuracy(train, test, [])
    return SyntheticCurves(
        truth=_curve(train, test, order),
        recursive=_recursive_curve(train, test),
        roar=_curve(train, test, np.argsort(-weights, kind="stable").tolist()),
        worst=_curve(train, test, order[INFORMATIVE:] + order[:INFORMATIVE]),
    )


def _draw(seed: int, rows: int) -> tuple[Floats, Ints]:
    random = random_stream(seed, Purpose.SYNTHETIC)
    a, d = random.standard_normal(FEATURES), random.standard_normal(FEATURES)
    a[INFORMATIVE:] = 0
    z, eta, epsilon = random.standard_normal((3, rows))
    inputs = np.outer(z, a) / 10 + np.outer(eta, d) + epsilon[:, None] / 10
    return inputs, (z > 0).astype(np.int64)


def _without(inputs: Floats, removed: list[int]) -> Floats:
    left = inputs.copy()
    left[:, removed] = 0
    return left


def _fitted(inputs: Floats, labels: Ints) -> tuple[Floats, float]:
    """Return weights and bias of an unpenalised logistic regression: the shortest of the weights that fit equally well.

    Sixteen features span three dimensions (z, η and ε), so many weights fit; as descent from 0 would, this finds those
    within what the features span. Fitted there, scaled, it is a small problem that converges.
    """
    spread, directions = np.linalg.eigh(inputs.T @ inputs / len(inputs))
    directions = directions[:, spread > 1e-10]
    if not directions.size:  # every feature is removed: nothing is left to go by
        return np.zeros(FEATURES), float(labels.mean() - 0.5)
    within = inputs @ directions
    scale = within.std(axis=0)
    with warnings.catch_warnings():
        # the classes can be told apart without error, so weights grow until stopped: only their direction counts
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression(C=np.inf, solver="lbfgs", max_iter=300).fit(within / scale, labels)
    return directions @ (model.coef_[0] / scale), float(model.intercept_[0])


def _accuracy(train: tuple[Floats, Ints], test: tuple[Floats, Ints], removed: list[int]) -> tuple[float, Floats]:
    """Return the accuracy without the removed features, and the importance of the others: their |weight|."""
    (inputs, labels), (unseen, expected) = train, test
    left, unseen = _without(inputs, removed), _without(unseen, removed)
    weights, bias = _fitted(left, labels)
    return float(((unseen @ weights + bias > 0) == expected).mean()), np.abs(weights)


def _curve(train: tuple[Floats, Ints], test: tuple[Floats, Ints], order: list[int]) -> list[float]:
    return [_accuracy(train, test, order[:count])[0] for count in range(FEATURES + 1)]


def _recursive_curve(train: tuple[Floats, Ints], test: tuple[Floats, Ints]) -> list[float]:
    removed: list[int] = []
    curve = []
    for _ in range(FEATURES + 1):
        accuracy, weights = _accuracy(train, test, removed)
        curve.append(accuracy)
        weights[removed] = -1
        removed = [*removed, int(weights.argmax())]
    return curve
