"""Where recordings come from: for now, a synthetic generator for the demo, the docs and the tests."""
