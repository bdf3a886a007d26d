"""Make a report: the page, and tables and figures as files beside it."""

import gc
from collections.abc import Mapping, Sequence
from pathlib import Path

from anchorinv.data.dataset import Dataset
from anchorinv.files import replacing
from anchorinv.report.cells import as_csv, as_latex, document
from anchorinv.report.chapters import chapter
from anchorinv.report.gather import gather
from anchorinv.report.page import Page, rendered
from anchorinv.report.together import side_by_side


def make_report(
    paths: Sequence[Path],
    out: Path,
    folders: Mapping[str, Dataset] | None = None,
    *,
    bases: Path | None = None,
    selections: Sequence[str] = (),
) -> Path:
    """Write ``report.html``, ``tables`` and ``figures`` into a folder, and return where the page is.

    Parameters
    ----------
    paths : run folders.
    folders : data sets by name, for the figures that show recordings or features.
    bases : where base models are, if not in the run folders.
    selections : of anchors to show in the feature space.
    """
    runs = gather(paths)
    asked = " ".join(["anchorinv report", *map(str, paths), f"--out {out}"])
    _made_writable(out)
    # Drawing makes objects by the million; collecting them need not look at all that was imported, too.
    gc.freeze()
    try:
        tables, plates = side_by_side(runs)
        page = Page([chapter(run, asked, folders or {}, bases, selections) for run in runs], tables, plates)
        every_table = [*page.tables, *(table for each in page.chapters for table in each.tables)]
        for table in every_table:
            _write(out / "tables" / f"{table.slug}.csv", as_csv(table))
            _write(out / "tables" / f"{table.slug}.tex", as_latex(table))
        _write(out / "tables" / "all-tables.tex", document([table.slug for table in every_table]))
        for plate in [*page.plates, *(plate for each in page.chapters for plate in each.plates)]:
            plate.write(out / "figures")
        _write(out / "report.html", rendered(page))
    finally:
        gc.unfreeze()
    return out / "report.html"


def _made_writable(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot write to {out}: {error.strerror}; choose another folder with --out") from None


def _write(path: Path, text: str) -> None:
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")
