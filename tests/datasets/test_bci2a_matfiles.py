"""MATLAB files that claim more than they hold."""

import struct
import zlib

import numpy as np
import pytest
from scipy.io import savemat

from anchorinv.datasets.paper_sets import form_of, read_bnci, read_converted
from tests.datasets import making
from tests.signal.test_headers import within

HEAD = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"


def element(kind, content):
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def matrix(kind, dims, *parts, name=b"data"):
    head = element(6, struct.pack("<II", kind, 0)) + element(5, struct.pack(f"<{len(dims)}i", *dims))
    return element(14, head + element(1, name) + b"".join(parts))


def packed(content):
    return struct.pack("<II", 15, len(zlib.compress(content))) + zlib.compress(content)


def zeros(n_bytes):
    """A variable of so many zeros, compressed."""
    return packed(matrix(6, (1, n_bytes // 8), element(9, bytes(n_bytes))))


CLAIMS = {
    "a variable that expands": zeros(64 << 20),
    "a variable cut short": packed(matrix(6, (1, 1), element(9, bytes(8))))[:-3],
    "structs without fields": matrix(2, (2**30, 1), element(5, struct.pack("<i", 8)), element(1, b"")),
    "fields times structs": matrix(2, (1, 9000), element(5, struct.pack("<i", 1)), element(1, bytes(9000))),
    "numbers without a block": matrix(6, (1, 1)) + matrix(6, (1, 1), element(9, bytes(8))),
    "an unknown type": matrix(6, (1, 1), element(8, bytes(8))),
    "an array in numbers": matrix(6, (1, 1), element(14, bytes(8))),
    "cells": matrix(1, (2**30, 2**30)),
    "numbers in bytes": matrix(6, (2**31 - 1, 2**31 - 1), element(2, bytes(8))),
    "text": matrix(4, (1, 2**30), element(16, b"ab")),
    "packed numbers": packed(matrix(6, (1, 2**30), element(2, bytes(8)))),
    "packed twice": packed(packed(matrix(6, (1, 1), element(9, bytes(8))))),
    "two in one": packed(2 * matrix(6, (1, 1), element(9, bytes(8)))),
}  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS)
def test_variables_that_claim_more_than_there_is(tmp_path, claim):
    (tmp_path / "A01T.mat").write_bytes(HEAD + CLAIMS[claim])
    for read in (form_of, read_bnci, read_converted):
        with within(60 << 20), pytest.raises(ValueError, match=r"A01T\.mat cannot be read"):
            read(tmp_path / "A01T.mat")


def test_the_newest_form_is_named(tmp_path):
    head = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02"
    (tmp_path / "A01T.mat").write_bytes(head + b"IM" + bytes(380) + b"\x89HDF\r\n\x1a\n" + bytes(500))
    with pytest.raises(ValueError, match=r"A01T\.mat"):
        form_of(tmp_path / "A01T.mat")


@pytest.mark.parametrize("trials", [list(range(1, 900)), [1, 2], [-5], [np.nan], [2**40]])
def test_trials_that_lie_within_each_other_or_nowhere(tmp_path, trials):
    """As many windows as there are trials would be cut, each as large as the next."""
    run = {"X": np.zeros((3500, 25)), "trial": trials, "y": [1] * len(trials)}
    making.bnci(tmp_path / "A01T.mat", [run])
    with within(), pytest.raises(ValueError, match=r"A01T\.mat is cut short"):
        read_bnci(tmp_path / "A01T.mat")


def test_sound_variables_are_read_packed_or_not(tmp_path):
    for packing in (False, True):
        data = np.random.default_rng(0).normal(size=(10, 22, 3))
        savemat(tmp_path / "a.mat", {"data": data, "label": [1, 2, 4]}, do_compression=packing)
        np.testing.assert_array_equal(read_converted(tmp_path / "a.mat").windows, data.transpose(2, 1, 0))
