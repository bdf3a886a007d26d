"""Damaged model files: whatever happened to them, one clear sentence or a whole model; nothing else."""

import copy
import json
import random
import struct
import tracemalloc

import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from anchorinv import AnchorInvClassifier
from anchorinv.container import MAGIC, MOST_HEADER, assemble, read_container
from tests.models import fitted, windows

N_BYTES, N_FACTS, N_TENSORS = 2500, 500, 250


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "model.anchorinv"
    fitted(n_anchors=2).save(path, with_signals=True)
    return path.read_bytes()


@pytest.fixture
def place(tmp_path):
    return tmp_path / "model.anchorinv"


def outcome(place, content):
    """Load what was made of a file: a model that predicts, or one sentence that names the file."""
    place.write_bytes(content)
    try:
        model = AnchorInvClassifier.load(place)
    except (ValueError, OSError) as error:
        told = str(error)
        assert place.name in told and "\n" not in told and 20 < len(told) < 600, told
        return told
    assert model.predict_proba(windows(2)[0]).shape == (2, len(model.classes_))
    return model


def corrupted(content, draw):
    """One accident: bits flipped, bytes replaced, cut short, cut out, grown, swapped or wiped."""
    data = bytearray(content)
    at = draw.choice([draw.randrange(len(data)), draw.randrange(min(200, len(data)))])
    length = draw.randrange(1, 64)
    match draw.randrange(8):
        case 0:
            data[at] ^= 1 << draw.randrange(8)
        case 1:
            data[at : at + length] = draw.randbytes(len(data[at : at + length]))
        case 2:
            del data[at:]
        case 3:
            del data[at : at + length]
        case 4:
            data[at:at] = draw.randbytes(length)
        case 5:
            data += draw.randbytes(length)
        case 6:
            data[at : at + length] = bytes(len(data[at : at + length]))
        case 7:
            other = draw.randrange(len(data) - length)
            data[at : at + length], data[other : other + length] = (
                data[other : other + length],
                data[at : at + length],
            )
    return bytes(data)


def test_accidents_of_all_kinds(whole, place):
    draw, refused = random.Random(0), 0
    for _ in range(N_BYTES):
        damaged = corrupted(whole, draw)
        found = outcome(place, damaged)
        assert isinstance(found, str) or damaged == whole
        refused += isinstance(found, str)
    assert refused > 0.95 * N_BYTES  # the others happened to change nothing


ODD = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**63,
    2**70,
    0.5,
    -1e308,
    "",
    "x",
    "µ" * 40,
    [],
    {},
    [1],
    {"a": 1},
]


def places_in(value, path=()):
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places_in(each, (*path, key))


def rewritten(facts, draw):
    """Facts in which one thing is replaced, removed, doubled or added, wherever it stands."""
    facts = copy.deepcopy(facts)
    path = draw.choice([path for path in places_in(facts) if path])
    parent = facts
    for key in path[:-1]:
        parent = parent[key]
    match draw.randrange(4):
        case 0 | 1:
            parent[path[-1]] = draw.choice(ODD)
        case 2:
            del parent[path[-1]]
        case 3 if isinstance(parent, list):
            parent.append(copy.deepcopy(draw.choice(parent)))
        case _:
            parent["more"] = draw.choice(ODD)
    return facts


def test_facts_that_were_tampered_with(whole, place):
    place.write_bytes(whole)
    _, header, payload = read_container(place)
    facts, draw, refused = json.loads(header), random.Random(1), 0
    for _ in range(N_FACTS):
        text = json.dumps(rewritten(facts, draw)).encode()
        refused += isinstance(outcome(place, assemble(text, payload)), str)
    assert refused > N_FACTS / 2  # a name or a number of seconds may be anything


def test_tensors_that_were_tampered_with(whole, place):
    place.write_bytes(whole)
    _, header, payload = read_container(place)
    draw, refused = random.Random(2), 0
    for _ in range(N_TENSORS):
        tensors = load_tensors(payload)
        name = draw.choice(sorted(tensors))
        tensor = tensors.pop(name)
        match draw.randrange(7):
            case 0:
                tensors[f"{name}.more"] = tensor
            case 1 if tensor.ndim:
                tensors[name] = tensor[1:].contiguous()
            case 2:
                tensors[name] = tensor.double() if draw.random() < 0.5 else tensor.long()
            case 3:
                tensors[name] = tensor.float() * float("nan")
            case 4 if tensor.ndim:
                tensors[name] = tensor[..., None].contiguous()
            case 5:
                tensors[name] = tensors[draw.choice(sorted(tensors))].clone()
            case _:
                pass
        refused += isinstance(outcome(place, assemble(header, save_tensors(tensors))), str)
    assert refused > 0.6 * N_TENSORS  # some parts may be missing, and integers may stay integers


def test_raw_payloads_that_were_tampered_with(whole, place):
    place.write_bytes(whole)
    _, header, payload = read_container(place)
    draw = random.Random(3)
    for _ in range(300):
        outcome(place, assemble(header, corrupted(payload, draw)))


@pytest.mark.parametrize(("rows", "n_labels"), [(1, 100_000), (0, 100_000), (3, 2)])
def test_small_tensors_do_not_unfold_into_large_ones(rows, n_labels, whole, place):
    place.write_bytes(whole)
    _, header, payload = read_container(place)
    labels = torch.zeros(n_labels, dtype=torch.int64)
    tensors = load_tensors(payload) | {
        "anchors.pending": torch.zeros(rows, 100_000),
        "anchors.labels": labels,
    }
    tracemalloc.start()
    told = outcome(place, assemble(header, save_tensors(tensors)))
    assert "do not fit" in told and tracemalloc.get_traced_memory()[1] < 5e7
    tracemalloc.stop()


def front(content, *, magic=MAGIC, version=1, header=None, payload=None):
    _, _, n_header, n_payload = struct.unpack("<8sIIQ", content[:24])
    sizes = n_header if header is None else header, n_payload if payload is None else payload
    return struct.pack("<8sIIQ", magic, version, *sizes) + content[24:]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda c: b"", "no anchorinv model"),
        (lambda c: c[:7], "no anchorinv model"),
        (lambda c: c[:30], "cut short"),
        (lambda c: c[:-1], "cut short"),
        (lambda c: c + b"x", "longer than it says"),
        (lambda c: c[:-3] + bytes([c[-3] ^ 1]) + c[-2:], "do not match its digest"),
        (lambda c: front(c, magic=b"ANCHRINW"), "no anchorinv model"),
        (lambda c: front(c, version=2), r"format 2, and this anchorinv reads up to 1; update"),
        (lambda c: front(c, version=0), "damaged"),
        (lambda c: front(c, header=MOST_HEADER + 1), "damaged"),
        (lambda c: front(c, header=2**32 - 1), "damaged"),
        (lambda c: front(c, payload=2**63), "cut short"),
        (lambda c: save_tensors({"weight": torch.zeros(3)}), "safetensors file, but of another program"),
        (lambda c: assemble(b"[" * 100_000, b""), "header is wrong"),
        (lambda c: assemble(b'{"package": 1e999}', b""), "is wrong"),
        (lambda c: assemble(b"\xff\xfe", b""), "is wrong"),
        (lambda c: b"PK\x03\x04" + bytes(100), "no anchorinv model"),
    ],
)
def test_each_has_its_sentence(damage, words, whole, place):
    place.write_bytes(damage(whole))
    with pytest.raises(ValueError, match=words):
        AnchorInvClassifier.load(place)


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no model file"):
        AnchorInvClassifier.load(tmp_path / "nothing.anchorinv")
    with pytest.raises(ValueError, match="is a folder"):
        AnchorInvClassifier.load(tmp_path)


def test_a_file_that_claims_to_be_huge_is_not_read(place, whole):
    with place.open("wb") as file:
        file.write(front(whole, payload=2**40))
        file.truncate(2**40)  # takes no room
    with pytest.raises(ValueError, match="too large for a model file"):
        AnchorInvClassifier.load(place)
