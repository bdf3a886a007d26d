"""Ridge outputs are scikit-learn's, every class counting alike."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from anchorinv.core import catalogue
from anchorinv.core.heads import Cosine, Mlp
from anchorinv.core.ridge import ByRidge
from anchorinv.core.rng import stream
from anchorinv.core.types import Batch, State
from tests.core.small import foundation, randn, toy


def state(prototypes: torch.Tensor) -> State:
    fitted = catalogue.protonet(foundation()).fit_base(toy().of(0, 1, 2), rng=stream(0))
    return replace(fitted, head=Cosine(prototypes[:0], prototypes))


@pytest.mark.parametrize("dim", [4, 60])
def test_is_weighted_ridge_regression(dim: int) -> None:
    labels = torch.tensor([0] * 20 + [1] * 5 + [2] * 10)
    known = Batch(randn(35, dim, seed=0) + 2 * randn(3, dim, seed=1)[labels], labels)
    head = ByRidge(0.3)(state(randn(3, dim, seed=2)), known)
    weights = 1 / (3 * np.array([20, 5, 10]))[labels.numpy()]
    X, Y = known.values.numpy(), np.eye(3)[labels.numpy()]
    centred = X - np.average(X, axis=0, weights=weights)
    penalty = 0.3 * (weights[:, None] * centred**2).sum() / 35
    expected = Ridge(alpha=penalty).fit(X, Y, sample_weight=weights)
    features = randn(9, dim, seed=3)
    np.testing.assert_allclose(head(features).numpy() / 16, expected.predict(features.numpy()), atol=1e-9)


def test_needs_prototypes_to_place_new_classes_by() -> None:
    odd = replace(state(randn(3, 4, seed=0)), head=Mlp.start(3, 4))
    with pytest.raises(TypeError, match="Cosine"):
        ByRidge()(odd, Batch(randn(6, 4, seed=1), torch.arange(6) % 3))
