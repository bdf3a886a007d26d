"""Ways to damage or craft a model file, each drawn from a generator of random numbers."""

import copy
import json
import random
from dataclasses import asdict

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from anchorinv import Conformer, Geometry
from anchorinv.persistence.format import assemble

ODD = [
    None,
    True,
    0,
    1,
    -1,
    2**24,
    2**31,
    2**63,
    2**70,
    10**400,
    0.5,
    -1e308,
    1e12,
    float("nan"),
    float("inf"),
    "",
    "x",
    "µ" * 40,
    "n" * 300_000,
    "left",
    "left\0",
    "le\u200bft",
    "\x1b[31mred\nand a line",
    "\u202eright",
    [],
    {},
    [1],
    [[[[]]]] * 50,
    {"a": 1},
]


def split(content):
    """The header, as text, and the payload of a whole model file."""
    n_header = int.from_bytes(content[12:16], "little")
    return content[56 : 56 + n_header], content[56 + n_header :]


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


def places_in(value, path=()):
    """Where anything stands in a value of JSON."""
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
    match draw.randrange(5):
        case 0 | 1 | 2:
            parent[path[-1]] = draw.choice(ODD)
        case 3:
            del parent[path[-1]]
        case _ if isinstance(parent, list):
            parent.append(copy.deepcopy(draw.choice(parent)))
        case _:
            parent[draw.choice(["more", "\x1b[2J", "k" * 100_000])] = draw.choice(ODD)
    return facts


def tampered(tensors, draw):
    """Tensors of which one is renamed, dropped, added, of another shape or type, or has odd values."""
    tensors = dict(tensors)
    name = draw.choice(sorted(tensors))
    tensor = tensors.pop(name)
    match draw.randrange(10):
        case 0:
            tensors[f"{name}.more"] = tensor
        case 1 if tensor.ndim:
            tensors[name] = tensor[1:].contiguous()
        case 2:
            kinds = [torch.float64, torch.int64, torch.float16, torch.bfloat16, torch.uint8, torch.bool]
            tensors[name] = tensor.to(draw.choice(kinds))
        case 3:
            odd = [float("nan"), float("inf"), 1e38, -1e38, 1e-45, 0.0, -1.0]
            tensors[name] = torch.full_like(tensor.float(), draw.choice(odd))
        case 4:
            tensors[name] = tensor[None].contiguous() if draw.random() < 0.5 else tensor.reshape(-1)
        case 5 if len(tensors):
            tensors[name] = tensors[draw.choice(sorted(tensors))].clone()
        case 6:
            stowaway = draw.choice(
                ["stowaway.recordings", "curves.77", "signals.values", "\x1b[2J", "n" * 90_000]
            )
            tensors |= {name: tensor, stowaway: torch.zeros(3, 4, 64)}
        case 7 if tensor.ndim:
            tensors[name] = torch.cat([tensor] * draw.choice([2, 50]))
        case 8 if tensor.dtype == torch.int64:
            tensors[name] = tensor + draw.choice([1, 2**40])
        case _:
            pass
    return tensors


def reshaped(payload, draw):
    """A payload whose own header says something else of one tensor."""
    n_header = int.from_bytes(payload[:8], "little")
    facts = json.loads(payload[8 : 8 + n_header])
    each = facts[draw.choice(sorted(facts))]
    match draw.randrange(4):
        case 0:
            each["shape"] = draw.choice(
                [[0, 2**62, 2**62], [2**62, 4], [0], [-1], [2**64], [1] * 500, [0.5], None]
            )
        case 1:
            each["dtype"] = draw.choice(["F8_E4M3", "BF16", "U64", "C64", "X", 3])
        case 2:
            each["data_offsets"] = draw.choice([[0, 0], [0, 2**63], [-1, 4], [9, 1], []])
        case 3:
            facts["__metadata__"] = {"m" * 50_000: "x"}
    text = json.dumps(facts).encode()
    return len(text).to_bytes(8, "little") + text + payload[8 + n_header :]


def large(header, payload, draw):
    """A file whose parts fit each other, and of which something is far too large."""
    facts = json.loads(header)
    tensors = dict(load_tensors(payload))
    match draw.randrange(7):
        case 0:  # few long names make all of them long
            many = draw.choice([100, 4000, 20_000])
            facts["classes"] = ["n" * draw.choice([100, 10_000, 250_000]), *(f"c{i}" for i in range(many))]
            facts["state"]["classes"] = list(range(many + 1))
            facts["counts"] = [1] * (many + 1)
            for name in ("head.fixed", "head.trust", "head.weights", "head.bias"):
                if name in tensors:
                    rows = many + 1 - (len(tensors["head.free"]) if name == "head.fixed" else 0)
                    tensors[name] = torch.ones(rows, *tensors[name].shape[1:])
        case 1:  # many labels weigh little where their values have no size
            many = draw.choice([2_000, 20_000, 300_000])
            for part in ("anchors", "replay"):
                if f"{part}.labels" in tensors:
                    tensors[f"{part}.labels"] = torch.arange(many) % len(facts["classes"])
            if "anchors.pending" in tensors:
                each = tensors["anchors.pending"].shape[1:]
                tensors["anchors.pending"] = torch.zeros(many, *each)
                tensors["anchors.inverted"] = torch.zeros(0, *each).half()
                for name in ("replay.labels", "replay.values", "signals.labels", "signals.values"):
                    tensors.pop(name, None)
        case 2:
            steps = draw.choice([10**5, 10**6, 10**12])
            facts["settings"] |= {draw.choice(["finetune_steps", "inversion_steps", "epochs"]): steps}
        case 3:
            facts["sfreq"] = draw.choice([1e-300, 1e-3, 1e6, 1e9, 1e300])
        case 4:
            facts["counts"] = [draw.choice([2**31, 2**53])] * len(facts["counts"])
        case _:
            return _with_geometry(facts, tensors, draw)
    return assemble(json.dumps(facts).encode(), save_tensors(tensors))


def _with_geometry(facts, tensors, draw):
    """Another network, as large as its few weights allow, and all that depends on it."""

    def size(low, high):
        return round(2 ** draw.uniform(np.log2(low), np.log2(high)))

    while True:
        width = size(1, 16)
        try:
            n_chans, n_times = size(1, 4096), size(16, 2**22)
            kernel, pool = size(1, min(n_times, 2**20)), size(1, min(n_times, 2**16))
            g = Geometry(
                n_chans,
                n_times,
                kernel,
                size(1, 64),
                pool,
                size(1, 64),
                width,
                draw.choice([1, width]),
                size(1, 8),
            )
        except ValueError:
            continue
        if width * width * n_chans + width * kernel + g.dim * 8 < 2_000_000:
            break
    with torch.device("meta"):
        network = Conformer(g)
    facts["geometry"], facts["state"]["shape"] = asdict(g), [g.n_chans, g.n_times]
    facts |= {"ch_names": None, "preprocessing": None, "method": "anchorinv", "memory": "synthetic"}
    facts["state"] |= {"head": {"kind": "cosine", "scale": 16.0}, "views": [], "curves": []}
    n = len(facts["classes"])
    labels = torch.arange(n) if facts["state"]["classes"] == list(range(n)) else torch.zeros(n).long()
    made = {f"{k}": torch.full(v.shape, 0.01) for k, v in network.state_dict().items() if "num_b" not in k}
    made |= {k: torch.zeros((), dtype=torch.int64) for k in network.state_dict() if "num_b" in k}
    made |= {"head.fixed": torch.rand(n, g.dim), "head.free": torch.zeros(0, g.dim)}
    made |= {
        f"{a}.{b}": torch.ones(g.n_chans, 1).double()
        for a in ("statistics", "standardisation")
        for b in ("mean", "std")
    }
    made |= {
        "anchors.labels": labels,
        "anchors.pending": torch.zeros(n, g.dim),
        "anchors.inverted": torch.zeros(0, g.dim),
    }
    return assemble(json.dumps(facts).encode(), save_tensors(made))


def crafted(content, seed):
    """Damage a whole model file in one of many ways; return what was done, and the bytes."""
    draw = random.Random(seed)
    header, payload = split(content)
    kind = draw.choice(
        [
            "accident",
            "header",
            "header",
            "headers",
            "payload",
            "tensors",
            "tensors",
            "shapes",
            "large",
            "large",
        ]
    )
    match kind:
        case "accident":
            return kind, corrupted(content, draw)
        case "header" | "headers":
            facts = json.loads(header)
            for _ in range(1 if kind == "header" else 3):
                facts = rewritten(facts, draw)
            return kind, assemble(json.dumps(facts).encode()[: 4 << 20], payload)
        case "payload":
            return kind, assemble(header, corrupted(payload, draw))
        case "tensors":
            return kind, assemble(header, save_tensors(tampered(load_tensors(payload), draw)))
        case "shapes":
            return kind, assemble(header, reshaped(payload, draw))
    return kind, large(header, payload, draw)
