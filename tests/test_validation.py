"""Data sets of torch and braindecode as input: what they hold, and sentences for what they do not."""

from importlib.util import find_spec

import mne
import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from anchorinv import AnchorInvClassifier
from anchorinv.validation import Signals, read_signals, read_windows
from tests.models import windows


class Windows(Dataset):
    """As braindecode's WindowsDataset: items (signal, label, place), epochs, a row about the recording."""

    def __init__(self, X, y, *, ch_names=("C3", "Cz", "C4", "Pz"), sfreq=100.0, **description):
        info = mne.create_info(list(ch_names), sfreq, "eeg")
        self.windows = mne.EpochsArray(X, info, verbose="error")
        self.X, self.y, self.description = X, y, pd.Series(description)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.X[i].astype(np.float32), int(self.y[i]), [0, 0, self.X.shape[2]]


class Items(Dataset):
    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class Endless(IterableDataset):
    def __iter__(self):
        return iter([])


@pytest.fixture(scope="module")
def arrays():
    X, names = windows(36, classes=("left", "right", "feet"))
    return X, np.unique(names, return_inverse=True)[1]


def test_same_as_arrays(arrays):
    X, y = arrays
    base, new = np.flatnonzero(y < 2), np.flatnonzero(y == 2)
    everything = TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    model, other = (AnchorInvClassifier(method="lda", random_state=0) for _ in range(2))
    model.fit(Subset(everything, base.tolist())).partial_fit(Subset(everything, new.tolist()))
    other.fit(X[base], y[base]).partial_fit(X[new], y[new])
    model.add_shots(Subset(everything, [int(new[0])]))
    other.add_shots(X[new[:1]], y[new[:1]])
    np.testing.assert_array_equal(model.predict_proba(everything), other.predict_proba(X))
    assert model.classes_.tolist() == [0, 1, 2]


def test_braindecodes_windows_bring_names_rate_and_groups(arrays):
    X, y = arrays
    parts = [slice(12 * i, 12 * i + 12) for i in range(3)]
    people = [Windows(X[part], y[part], subject=i, session="a") for i, part in enumerate(parts)]
    found = read_signals(ConcatDataset(people))
    assert (found.sfreq, found.ch_names) == (100.0, ("C3", "Cz", "C4", "Pz"))
    assert found.columns["subject"].tolist() == ["0"] * 12 + ["1"] * 12 + ["2"] * 12
    model = AnchorInvClassifier(method="lda", group_by="subject", random_state=0).fit(ConcatDataset(people))
    assert (model.sfreq_, model.ch_names_) == (100.0, ("C3", "Cz", "C4", "Pz"))
    turned = Windows(X[:, ::-1], y, ch_names=("Pz", "C4", "Cz", "C3"))
    np.testing.assert_array_equal(model.predict(turned), model.predict(X.astype(np.float32)))
    some = read_signals(Subset(ConcatDataset(people), [0, 12, 13]))
    assert some.columns["subject"].tolist() == ["0", "1", "1"] and len(some.values) == 3
    with pytest.raises(ValueError, match="sampled at 250 Hz"):
        model.predict(Windows(X, y, sfreq=250.0))


def test_windows_of_integers_do_not_round_those_of_floats():
    data = Items(*(np.full((2, 8), value) for value in (1, 0.5, np.float32(0.25))))
    assert read_windows(data).values[:, 0, 0].tolist() == [1, 0.5, 0.25]


def test_y_goes_before_the_labels_of_the_data_set(arrays):
    X, y = arrays
    model = AnchorInvClassifier(method="lda").fit(Windows(X, y), np.array(["a", "b", "c"])[y])
    assert model.classes_.tolist() == ["a", "b", "c"]
    named = Signals(Windows(X, y), unit="µV", ch_names=("A", "B", "C", "D"))
    assert AnchorInvClassifier(method="lda").fit(named).ch_names_ == ("A", "B", "C", "D")


def test_items_without_labels_are_predicted_and_cannot_teach(arrays):
    X, y = arrays
    model = AnchorInvClassifier(method="lda", random_state=0).fit(X, y)
    for data in (TensorDataset(torch.from_numpy(X)), Items(*X)):
        np.testing.assert_array_equal(model.predict(data), model.predict(X))
        with pytest.raises(ValueError, match="labels are missing"):
            AnchorInvClassifier().fit(data)
        AnchorInvClassifier(method="lda").fit(data, y)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            Items((np.zeros((4, 64)), 0), (np.zeros((4, 60)), 1)),
            r"item 1 .* \(4, 60\), the first has \(4, 64\)",
        ),
        (Items({"x": np.zeros((4, 64))}), "item 0 of the data set is a dict; items must be signals"),
        (Items((np.zeros((4, 1)), 0)), "single samples, not windows; .*create_windows_from_events"),
        (Items((np.zeros(64), 0)), r"float64 and shape \(64,\); items must be signals \(channels, times\)"),
        (Items(("left", 0)), "items must be signals"),
        (Items((np.zeros((4, 64)), [0, 1]), (np.zeros((4, 64)), [0, 1])), "holds several values"),
        (Items(), "the data set is empty"),
        (Endless(), "without a length"),
        (DataLoader(Items(0)), r"a DataLoader yields batches.*pass its \.dataset"),
        (
            ConcatDataset(
                [Windows(np.zeros((1, 4, 64)), [0]), Windows(np.zeros((1, 4, 64)), [0], sfreq=50.0)]
            ),
            "parts of the data set differ.*same channels and rate",
        ),
    ],
)
def test_what_cannot_be_read_is_said(data, sentence):
    with pytest.raises(ValueError, match=sentence):
        AnchorInvClassifier().fit(data)


@pytest.mark.filterwarnings(
    "ignore:.drop_last_window. is deprecated:DeprecationWarning"
)  # by its own function
def test_braindecodes_own_data_set(arrays):
    """Windows of braindecode itself, where it is installed (extra braindecode)."""
    if find_spec("braindecode") is None:  # importing it alone would need torchaudio's compiled part
        pytest.skip("the extra braindecode is not installed")
    from anchorinv.backbones import braindecode_models

    braindecode_models()  # imports torchaudio without the part that needs CUDA
    from braindecode.datasets import create_from_X_y

    X, y = arrays
    data = create_from_X_y(
        X, y, drop_last_window=False, sfreq=100, ch_names=["C3", "Cz", "C4", "Pz"],
        window_size_samples=X.shape[2], window_stride_samples=X.shape[2],
    )  # fmt: skip
    model = AnchorInvClassifier(method="lda", random_state=0).fit(data)
    assert (model.sfreq_, model.ch_names_) == (100.0, ("C3", "Cz", "C4", "Pz"))
    assert model.counts_.sum() == len(y) and len(model.predict(data)) == len(y)
