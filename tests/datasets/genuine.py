"""Genuine recordings, where they are at hand; they are never part of the repository."""

import os
from pathlib import Path

import pytest

PLACE = Path(os.environ.get("ANCHORINV_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))


def shared(name: str) -> Path:
    """A file or folder of genuine recordings; a test that asks for one is skipped where there is none."""
    if not (PLACE / name).exists():
        pytest.skip(f"no genuine recordings here: {name} is not in {PLACE} (set ANCHORINV_SHARED_DATA)")
    return PLACE / name
