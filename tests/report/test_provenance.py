"""The paper's figures, and how a run's settings differ from its text."""

import html

import pytest

from anchorinv.report.gather import deviations, gather
from anchorinv.report.page import make_report
from anchorinv.report.tables import CHOSEN_BY_TEST, paper_table, published
from anchorinv.study.loading import load, shipped
from tests.report.made import made, smoke

TABLES = (
    "bci2a",
    "nhie",
    "grabmyo",
    "grabmyo-6base",
    "grabmyo-4base",
    "bci2a-real-replay",
    "grabmyo-reduced-base",
    "anchor-selection",
    "bci2a-base-pairs",
)


@pytest.mark.parametrize("config", TABLES)
def test_every_number_belongs_to_the_config(config):
    study, numbers = load(config), published(config)
    assert numbers and {number.table for number in numbers} == {study.paper}
    for number in numbers:
        experiment = study.variants[number.variant]
        assert number.method in experiment.methods
        assert number.session <= len(experiment.protocol.sessions)
        assert number.std is not None or number.session == 0


#: Those whose table has ten trials: 7a and 7b, 8, 9.
OF_TEN_TRIALS = {"grabmyo-6base", "grabmyo-4base", "bci2a-real-replay", "bci2a-base-pairs"}


@pytest.mark.parametrize("config", [*TABLES, "bci2a-published", "grabmyo-published", "demo"])
def test_beside_tables_of_ten_trials_it_is_said_that_the_test_set_may_have_chosen(tmp_path, config):
    (run,) = gather([made(tmp_path / "run", smoke(config))])
    table = paper_table(run)
    assert (table is not None and CHOSEN_BY_TEST in table.notes) == (config in OF_TEN_TRIALS)


@pytest.mark.parametrize("config", ["bci2a-real-replay", "bci2a"])
def test_the_page_says_so_too(tmp_path, undrawn, config):
    run = made(tmp_path / "run", smoke(config, trials=3))
    page = html.unescape(make_report([run], tmp_path / "report").read_text())
    assert (CHOSEN_BY_TEST in page) == (config in OF_TEN_TRIALS)


def test_trials_are_those_of_the_captions_and_of_the_configs():
    told = {config: {number.trials for number in published(config)} for config in TABLES}
    assert {config for config, trials in told.items() if trials == {10}} == OF_TEN_TRIALS
    for config, trials in told.items():
        asked = {each.protocol.trials for each in load(config).variants.values()}
        assert trials in ({None}, asked), config


def test_published_settings_have_the_same_table_and_others_none():
    assert published("nhie-published") == published("nhie")
    assert not published("emg-longterm") and not published("eeg-motor-imagery-published")
    assert {name for name in shipped() if published(name)} == {*TABLES} | {
        f"{n}-published" for n in TABLES[:3]
    }


@pytest.mark.parametrize("config", ["bci2a", "nhie"])
def test_what_does_not_add_up_is_what_is_marked(config):
    # Over all classes the mean is that of the two base classes and the new ones, up to rounding
    # (and 0.025 in one place).
    numbers = {(n.method, n.score, n.session): n for n in published(config)}
    for (method, score, session), number in numbers.items():
        if score == "f1_all" and session > 0:
            base, new = numbers[method, "f1_base", session], numbers[method, "f1_new", session]
            together = (2 * base.mean + session * new.mean) / (2 + session)
            assert (abs(together - number.mean) > 0.05) == bool(base.doubt or new.doubt), (method, session)


def test_identical_columns_are_marked():
    numbers = {(n.method, n.variant): n for n in published("bci2a-base-pairs")}
    for method in {method for method, _ in numbers}:
        one, other = numbers[method, "0 & 2"], numbers[method, "2 & 3"]
        assert bool(one.doubt and other.doubt) == ((one.mean, one.std) == (other.mean, other.std))


def keys(tmp_path, study):
    (run,) = gather([made(tmp_path / "run", study)])
    found = deviations(run)
    return found if found is None else {each.key: each for each in found}


def test_deviations_of_a_full_run_are_those_of_its_config(tmp_path):
    full = load("bci2a", protocol={"trials": 2})
    found = keys(tmp_path, full)
    assert set(found) == {"protocol.trials", "standardise.by"}
    assert (found["protocol.trials"].paper, found["protocol.trials"].run) == ("100", "2")


def test_deviations_of_the_authors_settings(tmp_path):
    found = keys(tmp_path, load("nhie-published", protocol={"trials": 1}))
    assert {"training.betas", "finetuning.betas", "inversion.smoothness", "standardise.per_channel"} <= set(
        found
    )
    assert "standardise.by" not in found
    for key in ("anchors.measure", "inversion.noise", "inversion.new_batch", "inversion.l2"):
        assert "authors" in found[key].why
    assert (found["training.epochs"].run, found["training.epochs"].why) == ("1500", "as in the authors' run")
    assert (found["protocol.trials"].run, found["protocol.trials"].why) == ("1", "")


def test_deviations_of_the_authors_trials(tmp_path):
    trials = keys(tmp_path, load("grabmyo-published"))["protocol.trials"]
    assert (trials.paper, trials.run, trials.why) == ("20", "100", "as in the authors' run")


def test_deviations_of_a_small_run_name_the_data(tmp_path):
    found = keys(tmp_path, smoke("grabmyo"))
    assert found["data"].run == "synthetic recordings" and "256 Hz" in found["data.sfreq"].why
    assert {"training.epochs", "protocol.trials", "inversion.steps"} <= set(found)


@pytest.mark.parametrize(
    "config", ["demo", "demo-emg", "emg-longterm", "eeg-stress", "eeg-motor-imagery-published"]
)
def test_a_study_that_is_not_the_papers_deviates_from_nothing(tmp_path, config):
    assert keys(tmp_path, smoke(config)) is None
