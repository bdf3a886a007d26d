"""A data set of MOABB that is learned in a moment: MOABB's own fake, with a louder channel for each class."""

from moabb.datasets.fake import FakeDataset

CLASSES = ("left_hand", "right_hand", "feet")


class TinyImagery(FakeDataset):
    """Two or three people, two sessions of two runs; class k is loud in channel k for a second."""

    def __init__(self, event_list=CLASSES, n_subjects=2, n_events=12, duration=24, **options):
        super().__init__(
            event_list, n_subjects=n_subjects, n_events=n_events, duration=duration, seed=1, **options
        )

    def _generate_raw(self, n_events, duration):
        raw = super()._generate_raw(n_events, duration)
        events = self._generate_events(n_events, duration)
        for start, _, code in events:
            raw._data[code - 1, start : start + int(self.sfreq)] *= 6
        return raw
