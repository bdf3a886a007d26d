"""A model as a file, and what people do with one: keep it, hand it over, teach it, ask it."""
