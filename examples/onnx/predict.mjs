// Predict windows by an exported model in JavaScript; the same package runs in a browser.
//
//     npm ci
//     node predict.mjs model.onnx windows.f32
//
// windows.f32 holds float32 values, window after window, channel after channel, in the unit and after the
// filter that model.json names. A line of JSON comes out for each window.

import { readFile } from "node:fs/promises";
import * as ort from "onnxruntime-web";

const [graph, windows] = process.argv.slice(2);
const facts = JSON.parse(await readFile(graph.replace(/\.onnx$/, ".json"), "utf8"));
ort.env.wasm.numThreads = 1;
const session = await ort.InferenceSession.create(await readFile(graph));

const [, nChans, nTimes] = facts.input.shape;
const bytes = await readFile(windows);
const values = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
const n = values.length / (nChans * nTimes);
const signals = new ort.Tensor("float32", values, [n, nChans, nTimes]);

const said = await session.run({ [facts.input.name]: signals });
const nClasses = facts.classes.length;

for (let i = 0; i < n; i++) {
  const label = Number(said.label.data[i]);
  const own = said.probabilities.data.slice(i * nClasses, (i + 1) * nClasses);
  const row = {
    class: label === facts.rejected ? facts.reject_label : facts.classes[label],
    probability: Number(Math.max(...own).toFixed(4)),
  };
  if (said.novelty) row.novelty = Number(said.novelty.data[i].toFixed(4));
  console.log(JSON.stringify(row));
}
