"""Networks of all kinds in two parts: the same features, a frozen trunk, a tail that learns; or why not."""

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorinv.core.cut import BackboneError, classifier_of, random_signals
from anchorinv.core.heads import Cosine
from anchorinv.core.inversion import Inversion, invert, statistics
from anchorinv.core.minimise import Optimiser
from anchorinv.core.networks import frozen
from anchorinv.core.splitting import SplitNetwork, Tail, Unit, split
from anchorinv.core.training import finetune
from anchorinv.core.types import Batch

SHAPE = (2, 24)


class Residual(nn.Module):
    """The tail adds to what the first block gave; a weight of its own stands between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv1d(2, 4, 5, padding=2), nn.BatchNorm1d(4), nn.ReLU())
        self.gain = nn.Parameter(torch.full((4, 1), 0.5))
        self.second = nn.Conv1d(4, 4, 5, padding=2)
        self.third = nn.Conv1d(4, 4, 5, padding=2)
        self.classifier = nn.Linear(4 * 24, 3)

    def features(self, signals: Tensor) -> Tensor:
        early = self.first(signals)
        later = self.third(F.relu(self.second(early)) * self.gain)
        return (early + later).flatten(1)

    def forward(self, signals: Tensor) -> Tensor:
        return F.log_softmax(self.classifier(self.features(signals)), dim=1)


class Recurrent(nn.Module):
    """Time first, tuples between modules, one activation called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.act = nn.LSTM(2, 5), nn.ReLU(inplace=True)
        self.middle, self.last = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, signals: Tensor) -> Tensor:
        steps, (hidden, _) = self.lstm(signals.permute(2, 0, 1))
        hidden = self.act(hidden[-1]) + steps.mean(0)
        return self.last(self.act(self.middle(hidden)))


class Branches(nn.Module):
    """Outputs of two classifiers are averaged, as by ATCNet."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(2, 4, 5)
        self.blocks = nn.ModuleList(nn.Conv1d(4, 3, 5) for _ in range(2))
        self.ends = nn.ModuleList(nn.Linear(3, 2) for _ in range(2))

    def forward(self, signals: Tensor) -> Tensor:
        early = self.first(signals)
        pairs = zip(self.blocks, self.ends, strict=True)
        return torch.stack([end(block(early).mean(2)) for block, end in pairs]).mean(0)


class Planes(nn.Sequential):
    def __init__(self) -> None:
        layers = [nn.Conv2d(1, 3, (1, 5)), nn.BatchNorm2d(3), nn.Conv2d(3, 4, (2, 1)), nn.Flatten()]
        super().__init__(*layers, nn.Linear(4 * 20, 3))


def parts_of(network: nn.Module, **names: str) -> SplitNetwork:
    torch.manual_seed(0)
    return split(network, SHAPE, **names)


@pytest.mark.parametrize(
    ("make", "dim", "latent"),
    [(Residual, 96, (4, 24 * 2)), (Recurrent, 6, None), (Branches, 6, None), (Planes, 80, (3, 2, 20))],
)
def test_features_are_what_the_classifier_was_given(make: type[nn.Module], dim: int, latent: object) -> None:
    torch.manual_seed(0)
    network = make().eval()
    names = set(classifier_of(network, SHAPE))
    given: list[Tensor] = []
    parts = parts_of(copy.deepcopy(network))
    for name in sorted(names):
        network.get_submodule(name).register_forward_pre_hook(
            lambda m, args: given.append(args[0].flatten(1))
        )
    signals = random_signals(7, SHAPE).detach()
    with torch.no_grad():
        network(signals.unsqueeze(1) if make is Planes else signals)
        torch.testing.assert_close(parts(signals), torch.cat(given, dim=1))
    assert parts.dim == dim
    if make is Planes:
        assert parts.latent_shape == latent
    else:
        assert parts.n_activations > 0


def test_the_tail_is_the_last_block_and_what_it_adds_to() -> None:
    parts = parts_of(Residual())
    # The third convolution alone: the gain before it stays with the trunk, and so does what is added.
    names = [name for name, _ in parts.tail.named_parameters()]
    assert {name.split(".")[1] for name in names} == {"third", "gain"}
    assert "gain" not in " ".join(name for name, _ in parts.trunk.named_parameters())
    assert parts.latent_shape == (2 * 4 * 24,)


def test_a_tail_by_name() -> None:
    parts = parts_of(Residual(), tail="second")
    assert {name.split(".")[1] for name, _ in parts.tail.named_parameters()} == {"second", "third", "gain"}
    assert parts.latent_shape == (4, 24)  # the first block's output is all that is needed
    with pytest.raises(BackboneError, match=r"no module 'nowhere' is called before its classifier.*first"):
        parts_of(Residual(), tail="nowhere")


def test_a_classifier_by_name() -> None:
    parts = parts_of(Residual(), classifier="third")
    assert parts.dim == 96 and "third" not in " ".join(parts.state_dict())
    with pytest.raises(BackboneError, match="calls no module 'nowhere'"):
        parts_of(Residual(), classifier="nowhere")


def test_own_parts_are_taken_as_they_are() -> None:
    network = nn.Module()
    network.trunk, network.tail = nn.Conv1d(2, 3, 5), nn.Sequential(nn.Conv1d(3, 2, 5), nn.Flatten())
    parts = parts_of(network)
    assert parts.trunk is network.trunk and parts.latent_shape == (3, 20) and parts.dim == 32


def test_a_large_last_block_is_looked_into() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.body, self.head = nn.Linear(2, 8), body, nn.Linear(8, 3)

        def forward(self, signals: Tensor) -> Tensor:
            return self.head(self.body(self.embed(signals.transpose(1, 2))).mean(1))

    parts = parts_of(Transformer())
    units = [u.name for u in parts.tail.modules() if isinstance(u, Unit) and u.inner is not None]
    assert units == ["body.layers.2"] and parts.latent_shape == (24, 8)
    assert not {p.data_ptr() for p in parts.trunk.parameters()} & {
        p.data_ptr() for p in parts.tail.parameters()
    }


def test_weights_that_need_no_gradient_are_never_trained() -> None:
    network = Residual()
    network.first.requires_grad_(False)
    parts = parts_of(network)
    assert not any("first" in name for name, _ in parts.named_parameters())
    assert any("first" in name for name in parts.state_dict())


def test_norms_rest_while_a_tail_is_finetuned_and_where_there_is_one_window() -> None:
    network = nn.Sequential(
        nn.Conv1d(2, 4, 5), nn.ReLU(), nn.Conv1d(4, 6, 5), nn.Flatten(), nn.BatchNorm1d(96), nn.Linear(96, 3)
    )
    parts = frozen(parts_of(network))
    assert isinstance(parts.tail, Tail)
    before = {name: values.clone() for name, values in parts.tail.state_dict().items()}
    latents = parts.trunk(random_signals(6, SHAPE).detach())
    shots = Batch(latents, torch.arange(6) % 2)
    head = Cosine.start(2, parts.dim)
    tail, _, _ = finetune(parts.tail, head, shots, None, Optimiser(3, 1e-2))
    for name, values in tail.state_dict().items():
        assert torch.equal(values, before[name]) == (name.split(".")[-1] not in ("weight", "bias")), name
    assert all(torch.equal(values, before[name]) for name, values in parts.tail.state_dict().items())
    training = copy.deepcopy(parts).train()
    one = training(random_signals(1, SHAPE).detach())  # a BatchNorm of (1, 96) alone would refuse it
    torch.testing.assert_close(one, parts(random_signals(1, SHAPE).detach()))
    assert all(module.training for module in training.modules())
    with pytest.raises(RuntimeError):
        training(torch.zeros(1, 99, SHAPE[1]))
    assert all(module.training for module in training.modules())  # after an error, too


def test_inversion_and_the_statistics_of_the_first_norm() -> None:
    parts = frozen(parts_of(Residual()))
    start = random_signals(2, SHAPE).detach()
    anchors = parts(random_signals(4, SHAPE).detach()[:2])
    found = invert(parts, anchors, start, Inversion.lbfgs(20))
    assert (found.errors < found.curve[0]).all()
    network = nn.Sequential(parts.trunk, parts.tail)
    conv, norm = (next(m for m in parts.modules() if isinstance(m, k)) for k in (nn.Conv1d, nn.BatchNorm1d))
    with torch.no_grad():
        steps = conv(start)
        mean, variance = steps.mean((0, 2)), steps.var((0, 2), correction=0)
        wanted = (mean - norm.running_mean).norm() + (variance - norm.running_var).norm()
    torch.testing.assert_close(statistics(network, start), wanted)
    plain = parts_of(nn.Sequential(nn.Conv1d(2, 3, 5), nn.Conv1d(3, 3, 5), nn.Flatten(), nn.Linear(48, 2)))
    with pytest.raises(ValueError, match="this backbone has none; use deepdream"):
        statistics(nn.Sequential(plain.trunk, plain.tail), start)


def test_threads_do_not_see_each_other() -> None:
    parts = frozen(parts_of(Residual()))
    batches = [random_signals(n, SHAPE).detach() for n in (2, 3, 4, 5)]
    wanted = [parts(batch) for batch in batches]
    wrong: list[int] = []

    def look(i: int) -> None:
        wrong.extend(i for _ in range(20) if not torch.equal(parts(batches[i]), wanted[i]))

    threads = [threading.Thread(target=look, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Through(nn.Module):
    """Two convolutions and a linear layer, with something between them."""

    def __init__(self, between: object) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv1d(2, 3, 5), nn.Conv1d(3, 3, 5), nn.Linear(48, 2)
        self.between = between

    def forward(self, signals: Tensor) -> Tensor:
        return self.last(self.between(self.second(self.first(signals))).flatten(1))


SHARED = nn.Conv1d(2, 2, 5, padding=2)
REFUSED = {
    "no gradient": (Through(torch.Tensor.detach), "no finite gradient"),
    "rounding": (Through(torch.round), "no finite gradient"),
    "depends on the batch": (Through(lambda x: x - x.mean(0)), "depend on the other windows"),
    "not finite": (Through(lambda x: x / torch.zeros(())), "not finite"),
    "no block": (nn.Sequential(nn.Flatten(), nn.Linear(48, 2)), "no block with weights"),
    "no weights": (nn.Sequential(nn.Flatten()), "a backbone needs trainable weights, and it has none"),
    "frozen": (Through(torch.relu).requires_grad_(False), "requires_grad is False for all of them"),
    "lazy": (nn.Sequential(nn.LazyConv1d(3, 5), nn.Flatten(), nn.LazyLinear(2)), "lazy modules"),
    "other shape": (
        nn.Sequential(nn.Conv1d(5, 3, 5), nn.Flatten(), nn.Linear(60, 2)),
        "does not take signals of 2",
    ),
    "shared": (
        nn.Sequential(SHARED, nn.ReLU(), SHARED, nn.Flatten(), nn.Linear(48, 2)),
        "both before and after",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_a_backbone_is_told_why(kind: str) -> None:
    network, words = REFUSED[kind]
    with pytest.raises(BackboneError, match=words):
        split(copy.deepcopy(network), SHAPE)
