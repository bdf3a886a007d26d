"""The model file: format, validation, limits, provenance, and what it contains about people."""
