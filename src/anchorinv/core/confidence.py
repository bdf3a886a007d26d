"""Calibrated probabilities, p-values of novelty, and conformal sets of classes.

All are based on held-out windows, see ``discriminant.py``. This file has the quantiles that are kept of them,
a few hundred numbers, and how they are used.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

#: Numbers of examples that taught classes are rehearsed with; a class of ``MANY`` is as well known as a base
#: class, and in between the logarithm of the number decides.
SHOTS = (3, 10)
MANY = 100
#: Of a table of scores; the quantiles in between are interpolated.
MOST_SCORES = 200
#: Scores above this quantile are too few to count: there a tail is extrapolated.
TAIL = 0.1
#: How the rate of false rejections is divided between the statistics of a head. The first separates known
#: from unknown classes, the others detect artefacts. These count only below a p-value of ``GATE``, so that
#: they add no noise to the first.
SHARES = {1: (1.0,), 3: (0.6, 0.2, 0.2), 5: (0.52, 0.12, 0.12, 0.12, 0.12)}
#: Files of former versions have tables of so many statistics only, the first of those that there are today.
FORMER = {5: 3}
GATE = 0.01
#: Windows of a class behind a conformal table of its own.
FEWEST = 50
_GATE = np.log(GATE)
#: Of the log of a probability: as far as doubles go.
_LEAST = -690.0
#: Of what a file may hold: far more than any windows give, and little enough to compute with.
_MOST = 1e30
_MOST_FACTOR = 1e3


@dataclass(frozen=True, eq=False)
class Scores:
    """Sorted scores of held-out windows, with which new scores are compared.

    Parameters
    ----------
    values : Tensor, shape (..., n_kept)
        Ascending along the last axis; quantiles where there were more scores than are kept.
    counts : Tensor, shape (...,), int64
        How many scores there were.

    Examples
    --------
    >>> scores = Scores.of(torch.arange(99.0))
    >>> scores.share_above(torch.tensor([-1.0, 49.5, 98.5]))
    tensor([1.0000, 0.4999, 0.0100])
    """

    values: Tensor
    counts: Tensor

    @classmethod
    def of(cls, scores: Tensor) -> "Scores":
        """Keep scores (n,), or of many so many quantiles."""
        kept = scores.double().sort().values
        if not len(kept):
            kept = torch.zeros(MOST_SCORES)
        elif len(kept) != MOST_SCORES:
            kept = torch.quantile(kept, torch.linspace(0, 1, MOST_SCORES).double())
        return cls(kept.float(), torch.tensor(len(scores)))

    @classmethod
    def stack(cls, each: "list[Scores]") -> "Scores":
        """Put tables into the rows of one."""
        return cls(torch.stack([s.values for s in each]), torch.stack([s.counts for s in each]))

    def lower(self, other: "Scores") -> "Scores":
        """Return the table of the lower quantiles of both, by which more scores are unusual."""
        return Scores(torch.minimum(self.values, other.values), self.counts)

    @property
    def is_sound(self) -> bool:
        """Whether values ascend, are not beyond bounds, and counts are not below 0."""
        ascend = (self.values.diff(dim=-1) >= 0).all()
        return bool(ascend and (self.values.abs() <= _MOST).all() and (self.counts >= 0).all())

    @cached_property
    def rows(self) -> "list[Scores]":
        """The tables one by one; they are looked up in for every window, and keep what that takes."""
        return [Scores(*row) for row in zip(self.values, self.counts, strict=True)]

    def share_above(self, scores: Tensor) -> Tensor:
        """Return the share of scores (one more than there were) that are as high as each of these (n,)."""
        n, last = int(self.counts), len(self.values) - 1
        right = torch.searchsorted(self.values, scores.contiguous())  # of kept scores, so many are lower
        low, high = self.values[(right - 1).clamp(min=0)], self.values[right.clamp(max=last)]
        between = ((scores - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
        below = torch.where(right > last, 1.0, (right - 1 + between).clamp(min=0) / last)
        return (1 + n * (1 - below)) / (n + 1)

    def log_p(self, scores: np.ndarray) -> np.ndarray:
        """Return the log of how likely scores as high as these (n,) are, the highest by an exponential.

        In numpy, which for a single window takes a tenth of torch's time.
        """
        places, logs = self.curve
        found: np.ndarray = np.interp(scores, places, logs)
        return found

    def log_p_of(self, score: float) -> float:
        """Return :meth:`log_p` of one score."""
        places, logs = self._points
        right = bisect_right(places, score)
        if right in (0, len(places)):
            return logs[min(right, len(places) - 1)]
        share = (score - places[right - 1]) / (places[right] - places[right - 1])
        return logs[right - 1] + share * (logs[right] - logs[right - 1])

    @cached_property
    def _points(self) -> tuple[list[float], list[float]]:
        places, logs = self.curve
        return places.tolist(), logs.tolist()

    @cached_property
    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Scores and logs of their p-values: those kept up to the tail, which is a straight line of logs."""
        values = self.values.double().numpy()
        start = float(np.quantile(values, 1 - TAIL))
        beyond = values[values > start]
        places = np.unique(np.append(values[values <= start], start))
        logs = self.share_above(torch.from_numpy(places).float()).double().log().numpy()
        if not len(beyond):  # all above is as unusual as what was never seen
            unseen = -np.log(float(self.counts) + 1)
            return np.append(places, np.nextafter(start, np.inf)), np.append(logs, unseen)
        # At the start both ways agree but for one part in n; the line then falls as far as doubles go.
        logs[-1] = min(logs[-1], np.log(TAIL))
        end = start + (logs[-1] - _LEAST) * float((beyond - start).mean())
        return np.append(places, end), np.append(logs, _LEAST)


@dataclass(frozen=True, eq=False)
class Confidence:
    """Calibration of a model's predictions by held-out windows.

    Parameters
    ----------
    factors : Tensor, shape (n_shots + 2,)
        Inverse temperatures (Guo et al., ICML 2017): of classes taught with :data:`SHOTS` examples, then of
        base classes, and last of base classes after others were taught.
    base, taught : Scores, shape (n_statistics + 1,)
        The statistics of :meth:`~anchorinv.core.heads.Head.novelty`, of base classes and of classes taught
        with ten examples, and last :meth:`surprise`, what they say together.
    misfits : Scores, shape (n_base + 3,)
        How far the logit of the right class is below the largest, 0 if it is that: of each base class and of
        all of them before anything was taught, then of all of them and of taught ones where some were.

    Examples
    --------
    >>> some = Scores.stack([Scores.of(torch.linspace(0, 1, 100))] * 2)
    >>> sure = Confidence(torch.tensor([1.0, 1.0, 2.0, 1.5]), some, some, Scores.stack([some.rows[0]] * 5))
    >>> sure.scaled(torch.tensor([[0.0, 1.0]]), torch.tensor([50, 50]), n_base=2).round(decimals=3)
    tensor([[0., 2.]])
    >>> sure.p_values(torch.tensor([[0.3], [3.0]]), torch.tensor([False, False])).round(decimals=2)
    tensor([0.6500, 0.0000])
    """

    factors: Tensor
    base: Scores
    taught: Scores
    misfits: Scores

    @property
    def n_statistics(self) -> int:
        """Statistics that there are tables of."""
        return len(self.base.counts) - 1

    def scaled(self, logits: Tensor, counts: Tensor | None, *, n_base: int) -> Tensor:
        """Return calibrated logits (n, n_classes), the largest the same; ``counts`` of examples if known.

        A window takes the factor of its likeliest class.
        """
        n_classes = logits.shape[1]
        if n_classes == n_base:
            return logits * self._known_factors[len(SHOTS)]
        if len(logits) != 1:  # a single one, as of a live source, is faster below
            return scaled_by(logits, self.factors_of(n_classes, counts, n_base))
        factors = _factors_of(self._known_factors, n_classes, _as_tuple(counts), n_base)
        one: list[float] = logits[0].tolist()
        return logits * factors[one.index(max(one))]

    def factors_of(self, n_classes: int, counts: Tensor | None, n_base: int) -> Tensor:
        """Return the inverse temperature of logits that predict each class (n_classes,)."""
        factors = _factors_of(self._known_factors, n_classes, _as_tuple(counts), n_base)
        return torch.tensor(factors, dtype=torch.float64)

    @cached_property
    def _known_factors(self) -> tuple[float, ...]:
        return tuple(self.factors.tolist())

    def p_values(self, statistics: Tensor, taught: Tensor) -> Tensor:
        """Return p-values (n,) of "this is of a class that the model knows"; small ones speak against it.

        Parameters
        ----------
        statistics : Tensor, shape (n, n_statistics)
            Those beyond the tables are left out.
        taught : Tensor, shape (n,), bool
            Whether the nearest class was taught, or is a base class.
        """
        inside, lessons = statistics[:, : self.n_statistics].double().numpy(), taught.numpy()
        log_p = self._log_p(-1, self._surprise(inside, lessons), lessons)
        return torch.from_numpy(np.exp(log_p)).to(statistics).clamp(min=torch.finfo(statistics.dtype).tiny)

    def p_value(self, statistics: list[float], *, taught: bool) -> float:
        """Return the p-value of one window, as of a live source, for a tenth of :meth:`p_values`' time."""
        *rows, last = (self.taught if taught else self.base).rows
        shares = SHARES[len(rows)]
        first, *others = (row.log_p_of(value) for row, value in zip(rows, statistics, strict=False))
        if first < -20:
            smallest = first - math.log(shares[0])
        else:
            inside = math.log(-math.expm1(min(first, -1e-12))) / shares[0]
            smallest = math.log(-math.expm1(inside))
        for log_p, share in zip(others, shares[1:], strict=True):
            smallest = min(smallest, log_p - math.log(share) if log_p < _GATE else 0.0)
        return math.exp(last.log_p_of(-max(smallest, _LEAST)))

    def surprise(self, statistics: Tensor, taught: Tensor) -> Tensor:
        """Return minus the log of the smallest p-value that one of the statistics gives (n,)."""
        return torch.from_numpy(self._surprise(statistics.double().numpy(), taught.numpy())).to(statistics)

    def _surprise(self, statistics: np.ndarray, taught: np.ndarray) -> np.ndarray:
        shares = SHARES[statistics.shape[1]]
        # 1 - (1 - p) ** (1 / share), after Šidák, keeps the order of all; of small ones it is p / share.
        first = self._log_p(0, statistics[:, 0], taught)
        large = np.log(-np.expm1(np.log(-np.expm1(np.clip(first, -20, -1e-12))) / shares[0]))
        smallest = np.where(first < -20, first - np.log(shares[0]), large)
        for i, share in enumerate(shares[1:], start=1):
            log_p = self._log_p(i, statistics[:, i], taught)
            smallest = np.minimum(smallest, np.where(log_p < _GATE, log_p - np.log(share), 0.0))
        surprise: np.ndarray = -np.maximum(smallest, _LEAST)
        return surprise

    def _log_p(self, row: int, scores: np.ndarray, taught: np.ndarray) -> np.ndarray:
        base = self.base.rows[row].log_p(scores)
        return np.where(taught, self.taught.rows[row].log_p(scores), base) if taught.any() else base

    def conformal(self, logits: Tensor, *, n_base: int) -> Tensor:
        """Return p-values (n, n_classes) of "this is its class", by calibrated logits (Vovk et al., 2005).

        Before anything was taught each class is compared with its own windows, where :data:`FEWEST` were held
        out; otherwise with those of all base classes, and taught classes with those of taught ones. In
        rehearsal there were no more classes than base classes; each one more is another rival that may come
        first, as likely as any other, so the right class is behind more often.
        """
        counts, n_classes = self.misfits.counts, logits.shape[1]
        everybody, afterwards, lessons = (len(counts) - 3 + i for i in range(3))
        rows = list(range(n_base)) if n_classes == n_base else [afterwards] * n_base
        rows += [lessons] * (n_classes - n_base)
        rows = [row if counts[row] >= FEWEST else everybody for row in rows]
        columns = zip(rows, misfits_of(logits).T, strict=True)
        shares = torch.stack([self.misfits.rows[row].share_above(column) for row, column in columns], dim=1)
        rivals = (n_classes - 1) / max(1, n_base - 1)
        return 1 - (1 - shares) ** rivals if n_classes > n_base else shares

    def without(self, column: int, n_base: int) -> "Confidence":
        """Return what stays when a class is forgotten: nothing of a base class by itself."""
        if column >= n_base:
            return self
        kept = torch.arange(len(self.misfits.counts)) != column
        return replace(self, misfits=Scores(self.misfits.values[kept], self.misfits.counts[kept]))

    def packed(self) -> dict[str, Tensor]:
        """Return all of it as tensors by name."""
        pairs = [(name, part) for name in _TABLES for part in _PARTS]
        return {"factors": self.factors} | {f"{n}.{p}": getattr(getattr(self, n), p) for n, p in pairs}

    @classmethod
    def unpacked(cls, tensors: "dict[str, Tensor]", *, n_base: int, n_statistics: int) -> "Confidence":
        """Return what was packed, if it fits so many base classes and a head of so many statistics."""
        names = {"factors", *(f"{name}.{part}" for name in _TABLES for part in _PARTS)}
        if missing := sorted(names - set(tensors)):
            raise ValueError(f"its confidence lacks {', '.join(missing)}")
        tables = {name: Scores(*(tensors[f"{name}.{p}"] for p in _PARTS)) for name in _TABLES}
        factors = tensors["factors"]
        if factors.shape == (len(SHOTS) + 1,):  # a former version's: lessons changed nothing for base classes
            factors = torch.cat([factors, factors[-1:]])
        former = FORMER.get(n_statistics, 0)
        n_statistics = former if tables["base"].counts.numel() == former + 1 else n_statistics
        rows = {"base": n_statistics + 1, "taught": n_statistics + 1, "misfits": n_base + 3}
        if factors.shape != (len(SHOTS) + 2,) or any(
            tables[name].values.shape != (n, MOST_SCORES) or tables[name].counts.shape != (n,)
            for name, n in rows.items()
        ):
            raise ValueError("its confidence does not fit its classes")
        in_bounds = (factors.log10().abs() <= math.log10(_MOST_FACTOR)).all()
        sound = in_bounds and (tables["misfits"].values >= 0).all()
        if not sound or not all(table.is_sound for table in tables.values()):
            raise ValueError("its confidence holds values that no windows give")
        return cls(factors, **tables)


@lru_cache  # used for every live window
def _factors_of(
    factors: tuple[float, ...], n_classes: int, counts: tuple[float, ...] | None, n_base: int
) -> tuple[float, ...]:
    *taught, base, after = factors
    known = np.full(n_classes, SHOTS[-1]) if counts is None else np.array(counts)
    logs = np.log([*taught, base])
    each = np.exp(np.interp(np.log(np.maximum(known, 1)), np.log([*SHOTS, MANY]), logs))
    each[:n_base] = after if n_classes > n_base else base
    return tuple(each.tolist())


def _as_tuple(counts: Tensor | None) -> tuple[float, ...] | None:
    return None if counts is None else tuple(counts.tolist())


def scaled_by(logits: Tensor, factors: Tensor) -> Tensor:
    """Return logits (n, n_classes), each row by the factor (n_classes,) of its likeliest class."""
    return logits * factors.to(logits)[logits.argmax(1), None]


def misfits_of(logits: Tensor) -> Tensor:
    """Return how far each logit (n, n_classes) is below the largest, which more classes hardly change."""
    return logits.amax(1, keepdim=True) - logits


_TABLES = ("base", "taught", "misfits")
_PARTS = ("values", "counts")
