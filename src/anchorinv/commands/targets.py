"""What the commands on model files share: where to write, which class is meant, units, progress."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from anchorinv.estimator import AnchorInvClassifier


def check_target(path: Path, *sources: Path, such_as: str = "model.anchorinv") -> None:
    """Refuse a place where no file can be written, before anything is read or computed.

    Parameters
    ----------
    sources : files that are read, and must not be written over.
    such_as : a name for a file, to someone who gave a folder.
    """
    from anchorinv.files import check_writable

    check_writable(path, such_as=such_as)
    if path.exists() and any(source.exists() and source.samefile(path) for source in sources):
        raise ValueError(f"{path} is one of the inputs; name another file to write to")


def label_like(model: "AnchorInvClassifier", text: str) -> Any:
    """Return the class that a text on the command line means: of the kind of the model's classes."""
    kind = model.classes_.dtype.kind
    if kind == "U":
        return text
    try:
        return {"True": True, "False": False}[text] if kind == "b" else int(text)
    except (KeyError, ValueError):
        wanted = "True or False" if kind == "b" else "whole numbers"
        raise ValueError(f"the model's classes are {wanted}, got {text!r}") from None


def check_units(
    model: "AnchorInvClassifier", path: Path, windows: "np.ndarray", *, scale: float, force: bool
) -> None:
    """Refuse a file in another unit, unless forced; name the --scale that is right, whatever it was."""
    from anchorinv.inputs import refuse_drift

    if not force:
        try:
            refuse_drift(replace(model.check(windows), scaled=scale))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def progress(quiet: bool) -> AbstractContextManager[None]:
    """Show progress on standard error, unless told not to."""
    from anchorinv.bars import progress_bars

    return nullcontext() if quiet else progress_bars()
