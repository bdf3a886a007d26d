"""Small networks on one thread: more would mostly wait for each other, the longer the busier the machine."""

from collections.abc import Iterator

import pytest

from tests.core.small import one_thread


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield
