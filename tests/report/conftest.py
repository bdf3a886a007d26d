"""Reports that several tests look at, made once."""

from pathlib import Path

import pytest

from anchorinv.report import formats
from anchorinv.report.page import make_report
from anchorinv.study.execute import run_study
from tests.report.made import made, smoke
from tests.study.little import little


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a run whose results were drawn: seven methods, eight trials, beside the paper.

    Its figures are those of the page; `with_features` has them in all formats.
    """
    folder = made(tmp_path_factory.mktemp("drawn") / "run", smoke("bci2a", trials=8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "FORMATS", {"svg": {"Date": None}})
        return make_report([folder], folder / "report").parent


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A true run, small, with base models and replay in its folder."""
    folder = tmp_path_factory.mktemp("ran") / "run"
    run_study(little("bci2a"), folder)
    return folder


@pytest.fixture(scope="session")
def with_features(ran: Path) -> Path:
    """The report of the true run."""
    return make_report([ran], ran / "report").parent


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are composed but not rendered, which is what takes the time."""
    from anchorinv.report import feature_figures, formats, score_figures

    def stub(drawing, slug, title, alt, caption):  # type: ignore[no-untyped-def]
        width = float(drawing.get_size_inches()[0])
        return formats.Figure(slug, title, alt, caption, width, "<svg/>", b"", b"")

    for module in (feature_figures, score_figures):
        monkeypatch.setattr(module, "render_figure", stub)
