"""Predict windows by an exported model, with numpy and onnxruntime alone.

    pip install numpy onnxruntime
    python predict.py model.onnx windows.f32

``windows.f32`` holds float32 values, window after window, channel after channel, in the unit and after the
filter that model.json names. A line of JSON comes out for each window.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

graph, windows = map(Path, sys.argv[1:3])
facts = json.loads(graph.with_suffix(".json").read_text(encoding="utf-8"))
session = onnxruntime.InferenceSession(graph)

_, n_chans, n_times = facts["input"]["shape"]
signals = np.fromfile(windows, dtype="<f4").reshape(-1, n_chans, n_times)

names = [output["name"] for output in facts["outputs"]]
said = dict(zip(names, session.run(names, {facts["input"]["name"]: signals}), strict=True))

for i, label in enumerate(said["label"]):
    row = {
        "class": facts["reject_label"] if label == facts["rejected"] else facts["classes"][label],
        "probability": round(float(said["probabilities"][i].max()), 4),
    }
    if "novelty" in said:
        row["novelty"] = round(float(said["novelty"][i]), 4)
    print(json.dumps(row))
