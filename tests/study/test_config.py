"""The shipped configs say what the paper says; a config with mistakes is answered in words."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from anchorinv.core.inversion import energy, length
from anchorinv.core.minimise import OneCycle
from anchorinv.core.networks import GEOMETRIES, Geometry
from anchorinv.core.prototypes import euclidean_distance
from anchorinv.core.registry import METHODS
from anchorinv.core.training import CrossValidatedFinetune
from anchorinv.datasets.dataset import Dataset
from anchorinv.datasets.npz_sets import ECG_BEATS, EEG_MOTOR_IMAGERY, EEG_STRESS, EMG_LONGTERM
from anchorinv.study.config import Experiment, Study, dotted
from anchorinv.study.loading import base_spec_of, geometry_of, load, methods_of, scaled, shipped

NAMES = [
    "bci2a", "nhie", "grabmyo", "bci2a-published", "nhie-published", "grabmyo-published",
    "grabmyo-6base", "grabmyo-4base", "grabmyo-reduced-base", "bci2a-base-pairs", "bci2a-real-replay",
    "anchor-selection", "bci2a-shots", "bci2a-anchors",
]  # fmt: skip
#: Real recordings that the paper does not have.
OURS = {
    "emg-longterm": EMG_LONGTERM,
    "eeg-stress": EEG_STRESS,
    "eeg-motor-imagery": EEG_MOTOR_IMAGERY,
    "ecg-beats": ECG_BEATS,
}
#: Other questions to the same recordings.
BESIDE = ["bnci2014-001", "eeg-stress-people", "eeg-motor-imagery-people", "eeg-motor-imagery-published"]
FINETUNED = [name for name, spec in METHODS.items() if spec.finetunes]
PUBLISHED = [name for name, spec in METHODS.items() if spec.published]
SEVEN = ("finetune", "nc-fscil", "protonet", "teen", "deepdream", "deepinv", "anchorinv")


def made_by(experiment, geometry, base_classes):
    """The methods of an experiment on signals of a geometry."""
    return methods_of(experiment, base_spec_of(experiment, geometry, base_classes))


def only(name: str) -> Experiment:
    study = load(name)
    assert list(study.variants) == [""]
    return study.variants[""]


def test_every_table_and_figure_is_shipped():
    assert set(shipped()) == {*NAMES, *OURS, *BESIDE, "demo", "demo-emg"}
    assert {name for name in shipped() if load(name).paper} == set(NAMES)


class TestPaper:
    """Constants of the text (appendix: training, adaptation, baselines) and of REFERENCE's two presets."""

    @pytest.mark.parametrize(("name", "dim"), [("bci2a", 2440), ("nhie", 2360), ("grabmyo", 2320)])
    def test_feature_sizes(self, name, dim):
        for config in (name, f"{name}-published"):
            experiment = only(config)
            data = Dataset.from_arrays([[[0.0]]], [0], sfreq=1, split=["train"])
            assert geometry_of(experiment, data) == GEOMETRIES[name]
            assert geometry_of(experiment, data).dim == dim

    @pytest.mark.parametrize(
        ("name", "epochs", "batch", "lr", "inversion", "trials", "steps", "ft_lr", "start"),
        [
            ("bci2a", 1500, 72, 2e-4, 4000, 100, (1275,), 2e-5, "random"),
            ("nhie", 2000, 256, 1e-5, 4000, 100, (975,), 1e-5, "random"),
            ("grabmyo", 2000, 256, 5e-5, 2000, 20, (1100, 1300, 0), 5e-6, "mean"),
        ],
    )
    def test_settings_of_the_text(self, name, epochs, batch, lr, inversion, trials, steps, ft_lr, start):
        found = only(name)
        assert (found.training.epochs, found.training.batch_size, found.training.lr) == (epochs, batch, lr)
        assert found.training.betas == found.finetuning.betas == found.inversion.betas == (0.9, 0.999)
        assert (found.inversion.steps, found.inversion.lr) == (inversion, 1e-2)
        assert not found.inversion.from_zeros and found.inversion.smoothness == 0
        assert (found.protocol.trials, found.protocol.shots, found.protocol.ways) == (trials, 10, 1)
        assert found.protocol.seeds == (5,)
        assert (found.anchors.per_class, found.anchors.select) == (50, "random")
        assert (found.finetuning.start, found.finetuning.lr) == (start, ft_lr)
        assert found.finetuning.replay_weight == 1
        lengths = found.finetuning.steps
        assert lengths["anchorinv"] == lengths["real-replay"] == lengths["latent-replay"] == steps
        middles = {"finetune": (75,), "nc-fscil": (575,), "deepdream": (1725,), "deepinv": (1725,)}
        assert {method: lengths[method] for method in middles} == middles
        assert {f"finetuning.steps.{method}" for method in middles} <= set(found.not_published)
        assert found.methods == SEVEN
        assert found.standardise.by == "base" and found.standardise.per_channel == (name == "nhie")
        assert found.training.class_weights is (name == "nhie")

    def test_classes(self):
        for name in ("bci2a", "nhie"):
            assert only(name).protocol.base_classes == (0, 1) and only(name).protocol.sessions == (2, 3)
        course = only("grabmyo").protocol
        assert course.base_classes == tuple(range(10)) and course.sessions == tuple(range(10, 16))
        for name, n_base in (("grabmyo-6base", 6), ("grabmyo-4base", 4)):
            course = only(name).protocol
            assert course.base_classes == tuple(range(n_base)) and course.trials == 10
            assert course.sessions == tuple(range(10, 16))

    @pytest.mark.parametrize(
        ("name", "different"),
        [
            (
                "bci2a",
                {
                    "data.filtered": True,
                    "standardise.by": "paper",
                    "training.epochs": 1501,
                    "training.betas": (0.5, 0.999),
                    "finetuning.betas": (0.5, 0.999),
                    "finetuning.steps.anchorinv": (1250, 700),
                    "finetuning.steps.real-replay": (1250, 700),
                    "finetuning.steps.latent-replay": (1250, 700),
                },
            ),
            (
                "nhie",
                {
                    "standardise.by": "paper",
                    "standardise.per_channel": False,
                    "training.epochs": 1500,
                    "training.betas": (0.5, 0.999),
                    "training.class_weights": (104, 31),
                    "finetuning.betas": (0.5, 0.999),
                    "inversion.smoothness": 0.05,
                    "finetuning.steps.anchorinv": (1500, 1000),
                    "finetuning.steps.real-replay": (1500, 1000),
                    "finetuning.steps.latent-replay": (1500, 1000),
                },
            ),
            (
                "grabmyo",
                {
                    "standardise.by": "paper",
                    "protocol.trials": 100,
                    "training.epochs": 1901,
                    "training.betas": (0.5, 0.999),
                    "finetuning.betas": (0.5, 0.999),
                },
            ),
        ],
    )
    def test_the_authors_runs_differ_from_the_text_in_these_and_no_others(self, name, different):
        text, runs = (dotted(only(each).model_dump()) for each in (name, f"{name}-published"))
        assert {
            key: runs[key] for key in runs if runs[key] != text[key] and key != "not_published"
        } == different | {
            "anchors.measure": "euclidean",
            "inversion.noise": "shared",
            "inversion.new_batch": 10,
            "inversion.l2": "norm",
        }

    def test_variants(self):
        shots = load("bci2a-shots").variants
        assert [v.protocol.shots for v in shots.values()] == [1, 5, 10, 15, 20, 25, 30]
        anchors = load("bci2a-anchors").variants
        assert [v.anchors.per_class for v in anchors.values()] == [1, 2, 5, *range(10, 101, 10)]
        pairs = load("bci2a-base-pairs").variants.values()
        assert {v.protocol.base_classes for v in pairs} == {(a, b) for b in range(4) for a in range(b)}
        assert all(set(v.protocol.base_classes + v.protocol.sessions) == {0, 1, 2, 3} for v in pairs)
        assert all(v.protocol.trials == 10 and v.methods == SEVEN for v in pairs)
        reduced = load("grabmyo-reduced-base").variants.values()
        assert [len(v.protocol.base_classes) for v in reduced] == [10, 8, 6, 4]
        assert all(v.methods == ("protonet",) and v.protocol.trials == 20 for v in reduced)
        assert only("bci2a-real-replay").methods == (*SEVEN, "real-replay", "latent-replay")
        assert only("bci2a-real-replay").protocol.trials == 10
        chosen = load("anchor-selection").variants
        assert len(chosen) == 18
        assert {(v.data.name, v.anchors.select) for v in chosen.values()} == {
            (data, select)
            for data in ("bci2a", "nhie", "grabmyo")
            for select in (
                "random", "closest", "kmeans", "random-closest-30", "random-closest-50", "random-closest-70",
            )
        }  # fmt: skip
        assert {v.protocol.trials for v in chosen.values() if v.data.name == "grabmyo"} == {20}
        assert {v.anchors.measure for v in chosen.values()} == {"euclidean"}

    def test_variants_share_a_base_model(self):
        for name in ("bci2a-shots", "bci2a-anchors"):
            variants = list(load(name).variants.values())
            geometry = GEOMETRIES["bci2a"]
            assert len({made_by(v, geometry, (0, 1))["anchorinv"].base_spec.training for v in variants}) == 1

    def test_what_is_not_published_says_so_in_the_file_too(self):
        for path in shipped().values():
            text = path.read_text()
            if "finetuning.steps]" in text and load(path.stem).paper:
                assert "not_published" in text


@pytest.mark.parametrize("name", OURS)
class TestOurs:
    """Configs of real recordings beyond the paper fit what is prepared, and claim nothing of the paper."""

    def test_shape_rate_and_classes_are_those_prepared(self, name):
        found, form = only(name), OURS[name]
        assert found.data.name == name and found.data.sfreq == form.sfreq
        n_times = 512 if name == "eeg-stress" else form.n_times
        assert found.geometry is not None
        assert (found.geometry.n_chans, found.geometry.n_times) == (len(form.ch_names), n_times)
        course = found.protocol
        assert max(*course.base_classes, *course.sessions) < len(form.classes)

    def test_many_methods_several_seeds_and_no_word_of_the_paper(self, name):
        found = only(name)
        later = name in ("eeg-motor-imagery", "ecg-beats")
        left_out = ("finetune", "nc-fscil", "deepdream", "deepinv") if later else ()
        assert found.methods == tuple(m for m in METHODS if m not in left_out)
        assert found.protocol.seeds == (1, 2, 3)
        assert set(FINETUNED) <= set(found.finetuning.steps), "--methods may name any"
        assert load(name).reference == found.methods[-1] == "discriminant"
        assert found.standardise.per_channel and found.standardise.by == "base" and found.inversion.lbfgs
        assert not load(name).paper and not found.not_published
        text = shipped()[name].read_text()
        assert "chosen on" in text and "--hold-out" in text

    @pytest.mark.parametrize("scale", ["tiny", "smoke"])
    def test_it_can_be_small(self, name, scale):
        small = scaled(load(name), scale).variants[""]
        rates = {"emg-longterm": 240, "eeg-stress": 128, "eeg-motor-imagery": 160, "ecg-beats": 360}
        assert small.data.sfreq == rates[name], "as slow as EMG is made up"
        assert small.protocol.seeds == (1, 2), "enough to be compared over seeds"
        assert small.synthetic is not None and (small.geometry == only(name).geometry) == (scale == "tiny")


class TestBeside:
    """Configs that ask something else of the recordings beyond the paper."""

    @pytest.mark.parametrize("name", ["eeg-stress", "eeg-motor-imagery"])
    def test_people_that_are_not_known(self, name):
        found, whole = dotted(only(f"{name}-people").model_dump()), dotted(only(name).model_dump())
        assert {key: value for key, value in found.items() if value != whole[key]} == {
            "methods": (
                "protonet",
                "anchorinv",
                "fecam",
                "anchorinv-plus",
                "ranpac",
                "lda",
                "mdm",
                "discriminant",
            ),
            "protocol.leave_one_out": True,
            "protocol.trials": 2,
            "protocol.seeds": (1,),
        }
        assert load(f"{name}-people").reference == "discriminant"

    def test_published_lengths_are_those_of_the_paper_for_data_of_this_kind(self):
        study, paper = load("eeg-motor-imagery-published"), only("bci2a").finetuning
        published, *validated = study.variants.values()
        assert published.methods == ("protonet", "anchorinv", "real-replay", "nc-fscil") and not study.paper
        assert (published.finetuning.start, published.finetuning.lr) == (paper.start, paper.lr)
        for method in ("anchorinv", "real-replay", "nc-fscil"):
            assert published.finetuning.steps[method] == paper.steps[method]
        assert published.finetuning.select == "fixed"
        assert [each.finetuning.refresh for each in validated] == [False, True]
        for each in validated:
            assert (each.finetuning.select, each.finetuning.start) == ("validation", "mean")
            replaying = {name for name in METHODS if METHODS[name].replays}
            assert set(each.methods) == set(published.methods) & replaying
        whole = only("eeg-motor-imagery")
        for each in study.variants.values():
            assert (each.training, each.geometry, each.protocol) == (
                whole.training, whole.geometry, whole.protocol
            )  # fmt: skip

    @pytest.mark.parametrize("scale", ["tiny", "smoke"])
    def test_validated_lengths_are_cut_too(self, scale):
        small = scaled(load("eeg-motor-imagery-published"), scale).variants
        assert all(max(n) <= 3 for each in small.values() for n in each.finetuning.steps.values())
        for name, each in small.items():
            chosen = each.finetuning.lengths
            assert ("validated" in name) == (max(chosen) <= 3) and len(set(chosen)) == len(chosen)


class TestMistakes:
    @staticmethod
    def told(tmp_path: Path, text: str, *, extends: str = "bci2a") -> str:
        path = tmp_path / "mine.toml"
        path.write_text(f'extends = "{extends}"\n{text}')
        with pytest.raises(ValueError) as error:
            load(str(path))
        assert "mine.toml" in str(error.value)
        return str(error.value)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("[training]\nepoch = 3", r"unknown key 'training.epoch'; did you mean 'epochs'\?"),
            ("[protokol]\nshots = 3", r"unknown key 'protokol'; did you mean 'protocol'\?"),
            ("[geometry]\nkernal = 3", r"unknown key 'geometry.kernal'; did you mean 'kernel'\?"),
            ("[training]\nlr = -1", r"'training.lr'.*greater than 0, got -1"),
            ("[training]\nschedule = 'cosine'", r"'training.schedule'.*'constant' or 'one-cycle'"),
            ("[training]\nlr = 'fast'", r"'training.lr'.*got 'fast'"),
            ("[geometry]\nkernel = 5000", r"n_times \(=1000\) is shorter than the temporal kernel \(=5000\)"),
            ("methods = ['protonett']", r"unknown method 'protonett'; did you mean 'protonet'\?"),
            ("methods = ['teen', 'teen']", "not distinct"),
            ("methods = []", "at least 1 item"),
            ("[anchors]\nselect = 'closets'", r"unknown selection 'closets'; did you mean 'closest'\?"),
            ("[anchors]\nmeasure = 'manhattan'", r"'anchors.measure'.*'cosine' or 'euclidean'"),
            ("[inversion]\nnoise = 'none'", r"'inversion.noise'.*'trial' or 'shared'"),
            ("[inversion]\nnew_batch = 0", r"'inversion.new_batch'.*got 0"),
            ("[inversion]\nl2 = 'mean'", r"'inversion.l2'.*'square' or 'norm'"),
            ("[finetuning.steps]\nanchorin = [1]", r"did you mean 'anchorinv'\?"),
            ("[finetuning.steps]\nprotonet = [1]", "unknown method with finetuning steps 'protonet'"),
            ("[finetuning]\nstart = 'zero'", r"'finetuning.start'.*'mean' or 'random'"),
            ("[protocol]\nsessions = [1, 2]", "class 1 is both a base and a new class"),
            ("[protocol]\nsessions = [2, 2]", "is learned twice"),
            ("[protocol]\nsessions = [2, 3, 4]\nways = 2", "3 new classes do not fill sessions of 2"),
            ("[protocol]\nbase_classes = [1]", "two classes at least"),
            ("[protocol]\nper_subject = true\nleave_one_out = true", "choose one"),
            ("[protocol]\nseeds = [5, 5]", "not distinct"),
            ("[protocol]\ntrials = 0", r"'protocol.trials'.*got 0"),
            ("[training]\nclass_weights = [1, 2, 3]", "3 sizes for 2 base classes"),
            ("not_published = ['training.epoch']", r"did you mean 'training.epochs'\?"),
            ("[[variants]]\nname = 'a'\n[[variants]]\nname = 'a'", "unique name"),
            ("[[variants]]\nprotocol.shots = 1", "unique name"),
            ("variants = 3", r"\[\[variants\]\]"),
            ("[training", "is not valid TOML"),
            ("titel = 'x'", r"unknown key 'titel'"),
            ("title = 3", "'title'"),
            ("reference = 'protonett'", r"did you mean 'protonet'\?"),
        ],
    )  # fmt: skip
    def test_are_named_with_key_file_and_the_nearest_valid_name(self, tmp_path, text, words):
        assert re.search(words, self.told(tmp_path, text), re.DOTALL)

    def test_are_all_told_at_once(self, tmp_path):
        told = self.told(tmp_path, "methods = ['x']\n[training]\nepoch = 3\nlr = -1")
        assert "'x'" in told and "epoch" in told and "lr" in told

    def test_a_variant_is_named(self, tmp_path):
        told = self.told(tmp_path, "[[variants]]\nname = 'few'\nprotocol.shot = 1")
        assert "variant 'few'" in told and "did you mean 'shots'?" in told

    def test_a_missing_length_says_what_to_add(self, tmp_path):
        path = tmp_path / "own.toml"
        path.write_text("methods = ['anchorinv']\n[protocol]\nbase_classes = ['a', 'b']\nsessions = ['c']")
        with pytest.raises(ValueError, match=r"finetuning.steps lacks anchorinv; add anchorinv ="):
            load(str(path))

    def test_unknown_names_and_files(self, tmp_path):
        with pytest.raises(ValueError, match="did you mean 'bci2a'"):
            load("bci2b")
        with pytest.raises(ValueError, match="there is no file"):
            load(str(tmp_path / "nothing.toml"))
        self.told(tmp_path, "", extends="nowhere")

    def test_a_file_that_extends_itself(self, tmp_path):
        (tmp_path / "a.toml").write_text('extends = "b.toml"')
        (tmp_path / "b.toml").write_text('extends = "a.toml"')
        with pytest.raises(ValueError, match="extends itself"):
            load(str(tmp_path / "a.toml"))

    def test_nothing_changes_after_it_was_read(self):
        with pytest.raises(ValidationError):
            only("bci2a").training.epochs = 3


def test_a_config_of_ones_own_needs_few_keys(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(
        "methods = ['protonet', 'teen']\n[protocol]\nbase_classes = ['left', 'right']\nsessions = ['feet']"
    )
    study = load(str(path))
    assert study.name == study.title == "own" and study.variants[""].geometry is None


def test_title_and_table_are_not_inherited_but_the_reference_is_one_that_runs(tmp_path):
    path = tmp_path / "few.toml"
    path.write_text('extends = "bci2a"\nmethods = ["protonet", "teen"]')
    study = load(str(path))
    assert (study.title, study.paper, study.reference) == ("few", "", "teen")
    assert all(load(name).paper for name in NAMES)


def test_overrides_reach_every_variant():
    study = load("bci2a-shots", protocol={"trials": 7, "seeds": [9]}, threads=1)
    assert {(v.protocol.trials, v.protocol.seeds, v.threads) for v in study.variants.values()} == {
        (7, (9,), 1)
    }


class TestScale:
    @pytest.mark.parametrize("name", NAMES)
    def test_tiny_keeps_geometry_and_classes(self, name):
        full, tiny = load(name), scaled(load(name), "tiny")
        assert scaled(full, "full") is full
        for variant, experiment in tiny.variants.items():
            before = full.variants[variant]
            assert experiment.geometry == before.geometry and experiment.synthetic is not None
            assert experiment.protocol == before.protocol.model_copy(update={"trials": 2})
            assert experiment.training.epochs < 5 and experiment.inversion.steps < 5
            assert experiment.anchors == before.anchors and experiment.methods == before.methods
            made = experiment.synthetic
            assert made.n_per_class * made.n_subjects * (made.n_sessions - 1) > experiment.protocol.shots

    def test_smoke_has_short_signals(self):
        for experiment in scaled(load("nhie"), "smoke").variants.values():
            assert experiment.geometry is not None
            assert experiment.geometry.n_times < 200 and experiment.geometry.n_chans == 8


def test_class_sizes_follow_their_classes():
    sizes = only("nhie-published")
    for order, wanted in (((0, 1), (104, 31)), ((1, 0), (31, 104))):
        made = made_by(sizes, GEOMETRIES["nhie"], order)["protonet"]
        assert made.base_spec.training.class_weights == wanted


def test_the_rate_stays_unless_asked_otherwise():
    plain = only("bci2a")
    cycled = plain.model_copy(
        update={"training": plain.training.model_copy(update={"schedule": "one-cycle"})}
    )
    for experiment, wanted in ((plain, None), (cycled, OneCycle())):
        training = made_by(experiment, GEOMETRIES["bci2a"], (0, 1))["protonet"].base_spec.training
        assert training.schedule == wanted and training.patience is None


def test_all_methods_can_be_made_of_a_config():
    made = made_by(load("demo").variants[""], GEOMETRIES["bci2a"], range(5))
    assert list(made) == list(PUBLISHED)
    assert [recipe.name for recipe in made.values()] == list(PUBLISHED)


def test_the_authors_settings_reach_the_methods():
    ours, theirs = (made_by(only(name), GEOMETRIES["bci2a"], (0, 1)) for name in ("bci2a", "bci2a-published"))
    for name in ("anchorinv", "deepdream", "deepinv"):
        one, other = (each[name].memory.inversion for each in (ours, theirs))
        assert (one.batch, one.new_batch, one.shared_noise) == (100, 100, False)
        assert other == replace(one, new_batch=10, shared_noise=True)
    for name in ("deepdream", "deepinv"):
        terms = [each[name].memory.priors[0].term for each in (ours, theirs)]
        assert terms == [energy, length]
    for variant, experiment in load("anchor-selection").variants.items():
        select = made_by(experiment, GEOMETRIES["bci2a"], range(10))["anchorinv"].memory.select
        assert "closest" not in variant or select.measure is euclidean_distance


def test_how_far_to_finetune_can_be_left_to_validation():
    course = {"base_classes": [0, 1], "sessions": [2]}
    chosen = {"select": "validation", "lengths": [0, 7], "lrs": [1e-3], "folds": 4, "refresh": True}
    steps = {name: [5] for name in FINETUNED}
    experiment = Experiment(protocol=course, finetuning={"start": "mean", "steps": steps, **chosen})
    made = made_by(experiment, Geometry(3, 40, kernel=5, pool=6, pool_stride=3), (0, 1))
    for name, recipe in made.items():
        choosing = METHODS[name].replays
        assert recipe.refresh == choosing and isinstance(recipe.adapt, CrossValidatedFinetune) == choosing
    adapt = made["anchorinv"].adapt
    assert (adapt.lengths, adapt.lrs, adapt.folds, adapt.refresh) == ((0, 7), (1e-3,), 4, True)
    assert Experiment(protocol=course, methods=["protonet"]).finetuning.select == "fixed"
    with pytest.raises(ValueError, match="select"):
        Experiment(protocol=course, finetuning={"select": "test"}, methods=["protonet"])


@pytest.mark.parametrize("name", ["emg-longterm-select", "eeg-stress-select"])
def test_the_choices_on_the_results_page_extend_the_studies(name):
    page = Path(__file__).parents[2] / "docs" / "results"
    found = load(str(page / f"{name}.toml")).variants
    whole = only(name.removesuffix("-select"))
    for variant, experiment in found.items():
        assert ("validation" in variant) == (experiment.finetuning.select == "validation")
        assert ("refreshed" in variant) == experiment.finetuning.refresh
        assert (experiment.training, experiment.geometry) == (whole.training, whole.geometry)


class TestKeysThatWereRenamed:
    """``inversion.swift`` is ``inversion.lbfgs`` now."""

    TEXT = 'extends = "bci2a"\nnot_published = ["inversion.swift"]\n[inversion]\nswift = true\n'

    def test_are_read_with_a_note(self, tmp_path, caplog):
        own = tmp_path / "own.toml"
        own.write_text(self.TEXT)
        experiment = load(str(own)).variants[""]
        assert experiment.inversion.lbfgs and experiment.not_published == ("inversion.lbfgs",)
        assert "'inversion.swift' is called 'inversion.lbfgs' now" in caplog.text

    def test_win_over_what_they_extend(self, tmp_path):
        own = tmp_path / "own.toml"
        own.write_text('extends = "emg-longterm"\n[inversion]\nswift = false\n')
        assert not load(str(own)).variants[""].inversion.lbfgs

    def test_in_a_variant(self, tmp_path):
        own = tmp_path / "own.toml"
        own.write_text('extends = "bci2a"\n[[variants]]\nname = "a"\ninversion.swift = true\n')
        assert load(str(own)).variants["a"].inversion.lbfgs

    def test_in_a_folder_of_a_former_version(self):
        study = load("emg-longterm")
        text = study.model_dump_json()
        assert Study.model_validate_json(text.replace('"lbfgs"', '"swift"')) == study
