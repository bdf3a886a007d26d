"""Damaged and crafted model files in thousands, each tried in a process of its own, in bounded memory.

    python -m tests.campaigns.damaged_models --files 3000

Each file goes through ``info``, ``load`` and, if it is a model, ``predict``, a short lesson, ``save``,
``load`` again and ``forget_class``. What must hold: every refusal is one sentence, ``info`` and ``load``
agree, what is saved is read, and reading takes less than a gigabyte and ten seconds of a core.
"""

import argparse
import io
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, and so that it can be forked

import numpy as np

from anchorinv import AnchorInvClassifier
from anchorinv.cli.model import info
from anchorinv.core.registry import METHODS
from tests.campaigns.model_damage import crafted
from tests.models import fitted

#: Of a process, beyond what it has: what asks for more is reported, and does not take the machine with it.
ROOM = 3 << 30
MOST_BYTES, MOST_SECONDS = 1 << 30, 10
READS = ("load", "info", "predict", "load again")


def steps(path):
    """What is done with a file, step by step: each a name and a function of the model so far."""

    def look(_):
        with redirect_stdout(io.StringIO()):
            info(path, as_json=False)
            info(path, as_json=True)

    def signals(model, n=3):
        return np.random.default_rng(0).normal(size=(n, model.n_chans_, model.n_times_))

    def predict(model):
        model.predict_proba(signals(model))
        if model.state_.confidence is not None:
            p, sets = model.novelty(signals(model)), model.predict_set(signals(model))
            assert ((p > 0) & (p <= 1)).all() and sets.any(axis=1).all()

    def learn(model):
        steps = {name: min(getattr(model, name) or 2, 2) for name in ("finetune_steps", "inversion_steps")}
        new = {"U": "a new one", "i": 77, "b": None}[model.classes_.dtype.kind]
        model.set_params(**steps)
        return model if new is None else model.partial_fit(signals(model), [new] * 3)

    beside = path.with_name("again")
    yield "info", look
    yield "load", lambda _: AnchorInvClassifier.load(path, allow_recordings=True)
    yield "predict", predict
    yield "learn", learn
    yield "save", lambda model: model.save(beside, with_signals=True, allow_recordings=True)
    yield "load again", lambda model: AnchorInvClassifier.load(beside, allow_recordings=True)
    yield "forget", lambda model: model.forget_class(model.classes_.tolist()[0])


def tried(path):
    """Do it all, in this process; return a fact per step: refused or done, seconds, bytes, traceback."""
    facts, model = [], None
    for name, step in steps(path):
        if model is None and name not in ("info", "load"):
            break
        began, before, fault, refusal = time.process_time(), _bytes(), None, None
        try:
            result = step(model)
            model = result if name == "load" else model
        except (ValueError, OSError) as error:
            refusal = str(error)
            if "\n" in refusal or not refusal.isprintable() or len(refusal) > 700 or "alloc" in refusal:
                fault = f"{name}: {refusal[:300]!r}"
        except BaseException:
            fault = f"{name}: {traceback.format_exc()[-1500:]}"
        seconds = time.process_time() - began
        facts.append(
            {
                "step": name,
                "done": refusal is None and not fault,
                "refusal": refusal and refusal[:500],
                "fault": fault,
            }
        )
        facts[-1] |= {"seconds": seconds, "bytes": _bytes() - before}
        if name == "load again" and not facts[-1]["done"]:
            facts[-1]["fault"] = f"what save wrote load refuses: {refusal}"
    return facts


def _bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def in_a_child(path):
    """Do it all in a child of its own, within its room and time."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        status = 1
        try:
            taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, taken + ROOM))
            signal.alarm(300)
            os.write(write, json.dumps(tried(path)).encode()[:60_000])
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        report = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        return [{"step": "all", "done": False, "fault": f"ended by {status}", "seconds": 300, "bytes": 0}]
    return json.loads(report)


def campaign(n_files, seed):
    """Try so many files; return what came of them, and what must not be."""
    counts, faults = Counter(), []
    worst = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.anchorinv"
        wholes = []
        for method in METHODS:
            fitted(method, n_anchors=2).save(path, with_signals=True, allow_recordings=True)
            wholes.append(path.read_bytes())
        for number in range(n_files):
            kind, content = crafted(wholes[number % len(wholes)], seed + number)
            path.write_bytes(content)
            facts = in_a_child(path)
            done = {fact["step"]: fact["done"] for fact in facts}
            counts[f"{kind}: {'loaded' if done.get('load') else 'refused'}"] += 1
            if done.get("load") != done.get("info"):
                faults.append(f"{number} ({kind}): info and load disagree: {facts[:2]}")
            for fact in facts:
                if fact["fault"]:
                    faults.append(f"{number} ({kind}, {len(content)} bytes): {fact['fault']}")
                top = worst.setdefault(fact["step"], [0.0, 0])
                top[0], top[1] = max(top[0], fact["seconds"]), max(top[1], fact["bytes"])
                if fact["step"] in READS and (fact["seconds"] > MOST_SECONDS or fact["bytes"] > MOST_BYTES):
                    faults.append(f"{number} ({kind}): {fact}"[:500])
            if number % 100 == 99:
                print(f"{number + 1} files, {len(faults)} faults", file=sys.stderr, flush=True)
    return counts, worst, faults


def main():
    """Run the campaign and print its table."""
    options = argparse.ArgumentParser()
    options.add_argument("--files", type=int, default=3000)
    options.add_argument("--seed", type=int, default=0)
    asked = options.parse_args()
    warnings.simplefilter("ignore")
    counts, worst, faults = campaign(asked.files, asked.seed)
    for name, count in sorted(counts.items()):
        print(f"{name:<24} {count:>6}")
    for name, (seconds, size) in worst.items():
        print(f"worst {name:<18} {seconds:>6.2f} s {size / 1e6:>8.0f} MB")
    print(f"{len(faults)} faults")
    print("\n".join(faults[:50]))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
