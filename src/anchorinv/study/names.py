"""How methods and selections are called in tables and figures: by the paper's names."""

_METHODS = {
    "finetune": "Finetune",
    "nc-fscil": "NC-FSCIL",
    "protonet": "ProtoNet",
    "teen": "TEEN",
    "deepdream": "DeepDream",
    "deepinv": "DeepInv",
    "anchorinv": "AnchorInv",
    "real-replay": "RealReplay",
    "latent-replay": "LatentReplay",
    "ridge": "Ridge",
    "whitened": "Whitened",
    "fecam": "FeCAM",
    "anchorinv-plus": "AnchorInv+",
    "ranpac": "RanPAC",
    "lda": "LDA",
    "mdm": "MDM",
    "discriminant": "Discriminant",
}
_SELECTIONS = {
    "random": "Random sample",
    "closest": "Closest",
    "kmeans": "5 k-means clusters",
    "random-closest-30": "Random closest 30 %",
    "random-closest-50": "Random closest 50 %",
    "random-closest-70": "Random closest 70 %",
}


def method_name(method: str) -> str:
    """Return a method's name as the paper writes it; one's own methods keep theirs.

    Examples
    --------
    >>> method_name("nc-fscil"), method_name("mine")
    ('NC-FSCIL', 'mine')
    """
    return _METHODS.get(method, method)


def selection_name(selection: str) -> str:
    """Return a selection's name as in the paper's Table 3."""
    return _SELECTIONS.get(selection, selection)
