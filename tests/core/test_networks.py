"""Sizes: the paper's three geometries, derived ones for any signal, and errors that name the values."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchorinv.core.networks import GEOMETRIES, MIN_TIMES, Geometry, one_thread, usual_threads

WORKING = Geometry(3, 40, kernel=5, pool=6, pool_stride=3, width=8, heads=2, depth=2)


@pytest.mark.parametrize(
    ("name", "shape", "n_tokens", "dim"),
    [("bci2a", (22, 1000), 61, 2440), ("nhie", (8, 3840), 59, 2360), ("grabmyo", (28, 1280), 58, 2320)],
)
def test_the_papers_geometries(name: str, shape: tuple[int, int], n_tokens: int, dim: int) -> None:
    geometry = GEOMETRIES[name]
    assert (geometry.n_chans, geometry.n_times) == shape
    assert (geometry.width, geometry.heads, geometry.depth, geometry.dropout) == (40, 10, 6, 0.5)
    assert (geometry.n_tokens, geometry.dim) == (n_tokens, dim)


def test_sizes_by_hand() -> None:
    # 40 samples, kernel 5: 36 steps; windows of 6 start at 0, 3, ..., 30: 11 tokens of 8 values.
    assert (WORKING.n_steps, WORKING.n_tokens, WORKING.dim) == (36, 11, 88)
    # Stride 4: starts at 0, 4, ..., 32: 9 steps; windows at 0 and 3.
    strided = replace(WORKING, stride=4)
    assert (strided.n_steps, strided.n_tokens, strided.dim) == (9, 2, 16)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kernel": 41}, ["n_times (=40)", "kernel (=41)"]),
        ({"pool": 37}, ["36 steps", "(=37)"]),
        ({"stride": 9}, ["4 steps", "(=6)"]),
        ({"heads": 3}, ["width (=8)", "heads (=3)"]),
        ({"dropout": 1.0}, ["dropout (=1.0)"]),
        ({"dropout": -0.1}, ["dropout (=-0.1)"]),
        *(
            ({name: 0}, [f"{name} (=0)", "at least 1"])
            for name in (
                *("n_chans", "n_times", "kernel", "stride", "pool", "pool_stride"),
                *("width", "heads", "depth"),
            )
        ),
    ],
)
def test_errors_name_the_values(change: dict[str, float], named: list[str]) -> None:
    with pytest.raises(ValueError, match="=") as error:
        replace(WORKING, **change)
    assert all(part in str(error.value) for part in named), str(error.value)


@pytest.mark.parametrize("change", [{"kernel": 40, "pool": 1}, {"pool": 36}])
def test_the_largest_that_fits_is_accepted(change: dict[str, int]) -> None:
    assert replace(WORKING, **change).n_tokens == 1


class TestForShape:
    def test_the_bci_geometry_comes_out(self) -> None:
        assert Geometry.for_shape(22, 1000) == GEOMETRIES["bci2a"]

    @given(st.integers(1, 300), st.integers(MIN_TIMES, 20_000))
    def test_proportions_are_the_papers_whatever_the_signal(self, n_chans: int, n_times: int) -> None:
        geometry = Geometry.for_shape(n_chans, n_times)
        assert (geometry.n_chans, geometry.n_times) == (n_chans, n_times)
        assert geometry.pool == 5 * geometry.pool_stride
        assert geometry.kernel <= n_times // 4
        assert (geometry.width, geometry.heads, geometry.depth) == (40, 10, 6)

    @given(st.integers(976, 20_000))
    def test_long_signals_give_close_to_61_tokens(self, n_times: int) -> None:
        assert 59 <= Geometry.for_shape(8, n_times).n_tokens <= 63

    @pytest.mark.parametrize(
        ("first", "fewest", "most"), [(MIN_TIMES, 9, 63), (100, 32, 63), (300, 37, 63), (700, 44, 63)]
    )
    def test_shorter_ones_roughly_40_and_never_more_than_long_ones(
        self, first: int, fewest: int, most: int
    ) -> None:
        tokens = [Geometry.for_shape(1, n_times).n_tokens for n_times in range(first, 2000)]
        assert (min(tokens), max(tokens)) == (fewest, most)

    def test_fewer_the_fewer_samples_below_57(self) -> None:
        tokens = [Geometry.for_shape(1, n_times).n_tokens for n_times in range(MIN_TIMES, 58)]
        assert tokens == sorted(tokens)
        assert (tokens[0], tokens[-2], tokens[-1]) == (9, 39, 40)

    @pytest.mark.parametrize("n_times", [0, 1, MIN_TIMES - 1])
    def test_too_short_a_signal_is_told_the_minimum(self, n_times: int) -> None:
        with pytest.raises(ValueError, match=rf"{n_times} samples .* at least {MIN_TIMES} ") as error:
            Geometry.for_shape(8, n_times)
        assert "longer windows" in str(error.value)

    @pytest.mark.parametrize("n_chans", [0, -1])
    def test_no_channels_is_an_error(self, n_chans: int) -> None:
        with pytest.raises(ValueError, match=rf"n_chans \(={n_chans}\)"):
            Geometry.for_shape(n_chans, 300)


class TestThreads:
    @pytest.fixture(autouse=True)
    def _two(self) -> None:
        torch.set_num_threads(2)  # a fixture of all these tests sets it back

    def test_closed_forms_have_one_and_networks_as_many_as_before(self) -> None:
        with one_thread():
            assert torch.get_num_threads() == 1
            with one_thread():
                assert torch.get_num_threads() == 1
            with usual_threads():
                assert torch.get_num_threads() == 2
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with usual_threads():
            assert torch.get_num_threads() == 2

    def test_an_error_leaves_them_as_they_were(self) -> None:
        with pytest.raises(ZeroDivisionError), one_thread():
            _ = 1 / 0
        assert torch.get_num_threads() == 2

    def test_a_decorated_function_has_one(self) -> None:
        assert one_thread()(torch.get_num_threads)() == 1
        assert torch.get_num_threads() == 2
