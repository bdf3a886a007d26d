"""The textbook twin: what usual research code does, plain and fair.

FROZEN: speed ratios are measured against it, so a change here changes what they mean.

Nothing here comes from ``anchorinv``. Fair means: no gradients for weights that do not move, eval mode where
the paper has it, the same batches, no needless work inside a step. Plain means: two convolutions, and the
whole network in every step.

Functions change the network they are given, as such scripts do: pass a fresh one.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

SCALE = 16.0  # logits are 16 times the cosine


class Residual(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.fn = nn.Sequential(*layers)

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens + self.fn(tokens)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.keys = nn.Linear(width, width)
        self.queries = nn.Linear(width, width)
        self.values = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.projection = nn.Linear(width, width)

    def split(self, tokens: Tensor) -> Tensor:
        n, length, width = tokens.shape
        return tokens.view(n, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        queries = self.split(self.queries(tokens))  # (n, heads, tokens, width / heads)
        keys = self.split(self.keys(tokens))
        values = self.split(self.values(tokens))
        # EEG-Conformer divides by the root of the width, not of the size of a head.
        energy = queries @ keys.transpose(2, 3) / math.sqrt(tokens.shape[2])  # (n, heads, tokens, tokens)
        weights = self.dropout(energy.softmax(dim=3))
        mixed = (weights @ values).transpose(1, 2).flatten(2)  # (n, tokens, width)
        return self.projection(mixed)


class Tokens(nn.Module):
    def forward(self, maps: Tensor) -> Tensor:
        return maps.flatten(2).transpose(1, 2)  # (n, width, h, w) -> (n, h * w, width)


class PatchEmbedding(nn.Module):
    def __init__(
        self, n_chans: int, kernel: int, stride: int, pool: int, pool_stride: int, width: int, dropout: float
    ) -> None:
        super().__init__()
        self.shallownet = nn.Sequential(
            nn.Conv2d(1, width, (1, kernel), (1, stride)),
            nn.Conv2d(width, width, (n_chans, 1)),
            nn.BatchNorm2d(width),
            nn.ELU(),
            nn.AvgPool2d((1, pool), (1, pool_stride)),
            nn.Dropout(dropout),
        )
        self.projection = nn.Sequential(nn.Conv2d(width, width, (1, 1)), Tokens())

    def forward(self, images: Tensor) -> Tensor:
        return self.projection(self.shallownet(images))


def block(width: int, heads: int, dropout: float) -> nn.Sequential:
    mlp = nn.Sequential(
        nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(4 * width, width)
    )
    return nn.Sequential(
        Residual(nn.LayerNorm(width), Attention(width, heads, dropout), nn.Dropout(dropout)),
        Residual(nn.LayerNorm(width), mlp, nn.Dropout(dropout)),
    )


class TwoConvConformer(nn.Sequential):
    """(n, n_chans, n_times) -> (n, dim); parameter names as in the usual EEG-Conformer code."""

    def __init__(
        self,
        *,
        n_chans: int,
        n_times: int,
        kernel: int,
        stride: int,
        pool: int,
        pool_stride: int,
        width: int,
        heads: int,
        depth: int,
        dropout: float = 0.5,
    ) -> None:
        super().__init__(
            PatchEmbedding(n_chans, kernel, stride, pool, pool_stride, width, dropout),
            nn.Sequential(*(block(width, heads, dropout) for _ in range(depth))),
        )
        frames = (n_times - kernel) // stride + 1
        self.dim = ((frames - pool) // pool_stride + 1) * width

    def forward(self, signals: Tensor) -> Tensor:
        tokens = super().forward(signals.unsqueeze(1))  # (n, tokens, width)
        return tokens.flatten(1)


def cosine_logits(features: Tensor, prototypes: Tensor) -> Tensor:
    return SCALE * functional.normalize(features) @ functional.normalize(prototypes).T  # (n, classes)


def invert(network: nn.Module, anchors: Tensor, start: Tensor, steps: int, lr: float) -> Tensor:
    """Move ``start`` until its features reach the anchors; returns the inverted signals."""
    network.eval().requires_grad_(False)
    signals = start.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([signals], lr=lr)
    distance = nn.L1Loss()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = distance(network(signals), anchors)
        loss.backward()
        optimizer.step()
    return signals.detach()


def train_step(
    network: nn.Module,
    head_weight: nn.Parameter,
    optimizer: torch.optim.Optimizer,
    signals: Tensor,
    labels: Tensor,
) -> Tensor:
    """One step of base training on one batch; returns the loss before the step."""
    network.train()
    optimizer.zero_grad()
    loss = functional.cross_entropy(cosine_logits(network(signals), head_weight), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


def finetune(
    network: TwoConvConformer,
    prototypes: Tensor,
    new_prototype: Tensor,
    shots: Tensor,
    shot_labels: Tensor,
    replay: Tensor,
    replay_labels: Tensor,
    steps: int,
    lr: float,
    lam: float,
) -> Tensor:
    """Adapt the last block (in place) and the new prototypes, which are returned."""
    network.eval().requires_grad_(False)
    # Only the last block moves, so autograd stops there by itself and never enters the frozen part.
    moving = list(network[1][-1].requires_grad_(True).parameters())
    new = new_prototype.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([*moving, new], lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        classifier = torch.cat([prototypes, new])
        loss_new = functional.cross_entropy(cosine_logits(network(shots), classifier), shot_labels)
        loss_old = functional.cross_entropy(cosine_logits(network(replay), classifier), replay_labels)
        loss = loss_new + lam * loss_old
        loss.backward()
        optimizer.step()
    return new.detach()


@torch.no_grad()
def predict(network: nn.Module, prototypes: Tensor, signals: Tensor, batch: int) -> Tensor:
    """The index of the nearest prototype of every signal, (n,)."""
    network.eval()
    return torch.cat(
        [cosine_logits(network(part), prototypes).argmax(dim=1) for part in signals.split(batch)]
    )


def filtered(values, sfreq, band):
    """Signals (n_chans, n) within a band by scipy alone: both ways, or forwards as if always so before."""
    from scipy.signal import sosfilt, sosfilt_zi, sosfiltfilt

    sections = band.sections(sfreq)
    if not band.causal:
        return sosfiltfilt(sections, values, axis=-1, padlen=min(band.padlen(sfreq), values.shape[-1] - 1))
    start = sosfilt_zi(sections)[:, None, :] * values[None, :, :1]
    return sosfilt(sections, values, axis=-1, zi=start)[0]


def refiltered_window(sections, recording, n_times):
    """The last window of all that was recorded so far (n_chans, n), filtered anew from its first sample."""
    from scipy.signal import sosfilt, sosfilt_zi

    steady = sosfilt_zi(sections)[:, None, :] * recording[None, :, :1]
    whole, _ = sosfilt(sections, recording, axis=1, zi=steady)
    return whole[:, -n_times:].copy()


def live_windows(sections, chunks, n_times):
    """A window after each chunk (n_chans, n): filter it with a memory, append, keep the latest samples."""
    import numpy as np
    from scipy.signal import sosfilt, sosfilt_zi

    held = memory = None
    for chunk in chunks:
        if held is None:
            held, memory = chunk[:, :0], sosfilt_zi(sections)[:, None, :] * chunk[None, :, :1]
        filtered, memory = sosfilt(sections, chunk, axis=1, zi=memory)
        held = np.concatenate([held, filtered], axis=1)[:, -n_times:]
        yield held.copy()


@torch.no_grad()
def discriminant(features, targets, n_base, shrinkage, windows):
    """Log-densities (n, n_classes) and novelty (n, 5) of windows, by whole covariances of the features.

    Class means with a normal prior that base classes show, shrunk by 2 / n_base and four times as wide;
    Student's t. Directions of most variance by nine steps of subspace iteration, of least by three.
    """
    n_classes, (n, dim), eye = int(targets.max()) + 1, features.shape, torch.eye(features.shape[1]).double()
    counts = targets.bincount().double()
    means = torch.stack([features[targets == c].mean(0) for c in range(n_classes)])
    residuals = features - means[targets]
    pooled = residuals.T @ residuals / (n - n_classes)
    covariance = (1 - shrinkage) * pooled + (shrinkage + 1e-6) * pooled.trace() / dim * eye
    factor = torch.linalg.cholesky(covariance)
    root = torch.linalg.inv(factor).T
    centre = means[:n_base].mean(0)
    observed, z = (means - centre) @ root, (windows - centre) @ root
    shown = observed[:n_base].T @ observed[:n_base] / (n_base - 1)
    share, level = min(1.0, 2 / n_base), (shown.trace() / dim - (1 / counts[:n_base]).mean()).clamp(min=1e-3)
    between = (1 - share) * shown + share * level * eye
    squares, determinants, weights, expected = [], [], [], []
    for count, mean in zip(counts, observed, strict=True):
        kept = 4 * between @ torch.linalg.inv(4 * between + eye / count)
        predictive = eye + 4 * between - 4 * kept @ between
        off = z - kept @ mean
        squares.append((torch.linalg.solve(predictive, off.T).T * off).sum(1))
        determinants.append(torch.logdet(predictive))
        weights.append((0.75 * (1 + count * level) / (1 + 4 * count * share * level)).clamp(max=0.6))
        expected.append(kept @ mean)
    squares, determinants = torch.stack(squares, 1), torch.stack(determinants)
    freedom = max(1, n - n_classes - dim + 1)
    densities = (freedom + dim) * (squares / freedom).log1p() + torch.stack(weights) * determinants

    nearest = (squares + determinants).argmin(1)
    distance = squares.gather(1, nearest[:, None])[:, 0]
    anywhere = (torch.linalg.solve(eye + between, z.T).T * z).sum(1) + torch.logdet(eye + between)
    off = z - torch.stack(expected)[nearest]
    across = 1 + 4 * share * level / (1 + 4 * counts * share * level)
    leading = eye[:, covariance.diagonal().argsort(descending=True)[:8]]
    for _ in range(9):
        leading, _ = torch.linalg.qr(covariance @ leading)
    precision = root @ root.T
    trailing = eye[:, precision.diagonal().argsort(descending=True)[: max(1, round(dim / 6))]]
    for _ in range(3):
        trailing, _ = torch.linalg.qr(precision @ trailing)
    along, others = ((off @ torch.linalg.qr(factor.T @ basis)[0]).square() for basis in (leading, trailing))
    parts = torch.stack([along.sum(1), along[:, :2].sum(1), others.sum(1)], 1) / across[nearest][:, None]
    logs = torch.cat([distance[:, None], parts], 1).log()
    ratio = 0.5 * (distance + determinants[nearest] - anywhere)
    return -0.5 * densities, torch.cat([ratio[:, None], logs], 1)
