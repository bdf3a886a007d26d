"""The model file: its bytes, facts and tensors, whether they are sound, what they say about people."""
