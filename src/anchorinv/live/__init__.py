"""Live use: sources of samples, and a page in the browser on which a model is watched and taught."""
