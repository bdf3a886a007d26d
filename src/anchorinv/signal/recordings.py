"""A continuous recording in a file: what it says of itself, and its samples piece by piece."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from anchorinv.core.progress import tick
from anchorinv.signal.channels import pick_channels, renamed
from anchorinv.signal.limits import check_reach, check_size, reading
from anchorinv.signal.preprocessing import Preprocessing

#: Values read at once, over all channels.
PIECE = 1 << 22


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A recording that stays in its file.

    Parameters
    ----------
    path : of the file.
    ch_names : of its signals; trigger channels are none.
    units : of its signals: "V" for voltages, whatever the file has them in; otherwise as the file says, ""
        where it does not.
    sfreq : in Hz; None where the file does not say.
    n_times : samples of each channel.
    read : (start, stop, channel numbers) -> (n, stop - start), voltages in volts, missing samples as NaN.
    """

    path: Path
    ch_names: tuple[str, ...]
    units: tuple[str, ...]
    sfreq: float | None
    n_times: int
    read: Callable[[int, int, list[int]], npt.NDArray[np.float64]]

    @property
    def seconds(self) -> float | None:
        """How long it lasts, where its rate is known."""
        return self.n_times / self.sfreq if self.sfreq else None

    def renamed(self, rename: Mapping[str, str] | None) -> "Recording":
        """Return it with other names for some channels."""
        return replace(self, ch_names=renamed(self.ch_names, rename, source=self.path.name))

    def pieces(self, channels: Sequence[int], *, task: str | None = None) -> Iterator[np.ndarray]:
        """Yield the channels (n, ...) piece by piece, and tell how far it is."""
        size = max(1, PIECE // max(1, len(self.ch_names)))
        for start in range(0, self.n_times, size):
            stop = min(start + size, self.n_times)
            with reading(self.path):
                piece = self.read(start, stop, list(channels))
                check_reach(self.path, piece)
            yield piece
            if task is not None:
                tick(task, stop, self.n_times)

    def load(self, channels: Sequence[int]) -> npt.NDArray[np.float64]:
        """Return the channels (n, n_times) in memory, if there is room for them."""
        check_size(self.path, len(channels), self.n_times)
        found, at = np.empty((len(channels), self.n_times)), 0
        for piece in self.pieces(channels):
            found[:, at : at + piece.shape[1]] = piece
            at += piece.shape[1]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """Which channels of a recording are taken, in order, and what each is multiplied by, (n, 1)."""

    channels: list[int]
    factors: npt.NDArray[np.float64]


def inputs_of(
    recording: Recording, how: Preprocessing, *, n_chans: int | None = None, scale: float = 1.0
) -> Inputs:
    """Find the channels that a preprocessing takes, and bring voltages to its unit.

    Parameters
    ----------
    n_chans : how many are needed where their names are not known; their order is then trusted. None takes
        all there are.
    scale : what all are multiplied by, beyond their unit.
    """
    name = recording.path.name
    if how.inputs is not None:
        channels = pick_channels(how.inputs, recording.ch_names, source=name)
    elif n_chans is not None and len(recording.ch_names) != n_chans:
        raise ValueError(
            f"{name} has {len(recording.ch_names)} channels, the model takes {n_chans} and does not know "
            f"their names; choose these channels, or train it with names (ch_names in its .npz)"
        )
    else:
        channels = list(range(len(recording.ch_names)))
    factors = [how.factor if recording.units[i] == "V" else 1.0 for i in channels]
    return Inputs(channels, scale * np.array(factors)[:, None])
