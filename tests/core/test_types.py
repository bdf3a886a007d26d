"""Streams: a draw depends on seed and path, and on nothing else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorinv.core.types import scoped_seed, stream

quick = settings(max_examples=50)
# torch's CPU generator looks at the lower 32 bits of a seed.
seeds = st.integers(0, 2**32 - 1)
steps = st.one_of(st.text("ab1', ", max_size=6), st.integers(-100, 100))
paths = st.lists(steps, max_size=4).map(tuple)


def draws(rng: torch.Generator) -> list[int]:
    return torch.randint(2**62, (4,), generator=rng).tolist()


@quick
@given(seeds, paths)
def test_same_seed_and_path_same_draws(seed: int, path: tuple[str | int, ...]) -> None:
    assert draws(stream(seed, *path)) == draws(stream(seed, *path))


@quick
@given(seeds, st.tuples(paths, paths).filter(lambda two: two[0] != two[1]))
def test_other_path_other_draws(seed: int, two: tuple[tuple[str | int, ...], tuple[str | int, ...]]) -> None:
    assert draws(stream(seed, *two[0])) != draws(stream(seed, *two[1]))


@quick
@given(st.tuples(seeds, seeds).filter(lambda two: two[0] != two[1]), paths)
def test_other_seed_other_draws(two: tuple[int, int], path: tuple[str | int, ...]) -> None:
    assert draws(stream(two[0], *path)) != draws(stream(two[1], *path))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1,), ("1",)),
        (("a", "b"), ("ab",)),
        (("a", "b"), ("b", "a")),
        (("a",), ("a", "")),
        (("ab",), ("a, b",)),
    ],
    ids=["type", "joined", "order", "empty", "separator"],
)
def test_paths_that_read_alike_differ(one: tuple[str | int, ...], other: tuple[str | int, ...]) -> None:
    assert draws(stream(5, *one)) != draws(stream(5, *other))


@quick
@given(st.integers(0, 2**63 - 1), paths, st.integers(0, 20), paths)
def test_a_generator_stands_for_its_seed_however_much_was_drawn(
    seed: int, path: tuple[str | int, ...], n_drawn: int, further: tuple[str | int, ...]
) -> None:
    rng = stream(seed, *path)
    expected = draws(stream(rng, *further))
    torch.rand(n_drawn, generator=rng)
    assert draws(stream(rng, *further)) == expected


@quick
@given(st.integers(0, 2**63 - 1), paths)
def test_a_fresh_generator_is_as_good_as_its_seed(seed: int, path: tuple[str | int, ...]) -> None:
    assert draws(stream(stream(seed), *path)) == draws(stream(seed, *path))


def test_branching_draws_nothing_from_the_parent() -> None:
    rng = stream(5)
    stream(rng, "child")
    assert draws(rng) == draws(stream(5))


def test_draws_are_these() -> None:
    # Frozen: published results can be repeated only while seeds mean the same draws.
    assert torch.randint(1000, (5,), generator=stream(5, "support", 2, 0)).tolist() == [515, 808, 72, 522, 1]


def test_neither_streams_nor_draws_touch_the_global_generator() -> None:
    before = torch.get_rng_state()
    draws(stream(5, "a"))
    assert torch.equal(torch.get_rng_state(), before)


class TestScopedSeed:
    def test_inside_draws_come_from_the_seed(self) -> None:
        drawn = []
        for _ in range(2):
            with scoped_seed(stream(5, "dropout")):
                drawn.append(torch.rand(3))
            torch.rand(1)
        with scoped_seed(stream(6, "dropout")):
            other = torch.rand(3)
        assert torch.equal(*drawn)
        assert not torch.equal(drawn[0], other)

    def test_outside_the_global_generator_is_as_before(self) -> None:
        before = torch.get_rng_state()
        with scoped_seed(stream(5)):
            torch.rand(3)
            assert not torch.equal(torch.get_rng_state(), before)
        assert torch.equal(torch.get_rng_state(), before)

    def test_also_after_an_exception(self) -> None:
        before = torch.get_rng_state()
        with pytest.raises(ZeroDivisionError), scoped_seed(stream(5)):
            torch.rand(3)
            _ = 1 / 0
        assert torch.equal(torch.get_rng_state(), before)

    def test_scopes_nest(self) -> None:
        with scoped_seed(stream(5)):
            plain = torch.rand(2)
        with scoped_seed(stream(5)):
            with scoped_seed(stream(6)):
                torch.rand(7)
            assert torch.equal(torch.rand(2), plain)

    def test_how_much_was_drawn_from_its_generator_does_not_matter(self) -> None:
        rng = stream(5)
        with scoped_seed(rng):
            first = torch.rand(2)
        torch.rand(3, generator=rng)
        with scoped_seed(rng):
            assert torch.equal(torch.rand(2), first)
