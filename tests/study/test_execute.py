"""A study in a folder: whole, interrupted, taken up, by person, with a method of one's own."""

import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorinv.core.catalogue import latent_replay
from anchorinv.core.recipe import BaseSpec, Recipe
from anchorinv.core.training import Finetune
from anchorinv.datasets.dataset import Dataset
from anchorinv.progress import Tick, listening
from anchorinv.study.config import Study
from anchorinv.study.execute import peak_mb, reset_peak, run_study
from anchorinv.study.folder import RunFolder
from anchorinv.study.loading import open_data, people, protocol_of, samples_of
from anchorinv.study.results import from_line, to_line
from tests.study.little import METHODS, lines, little


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """An uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run_study(little(), out)
    return out


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


class TestFolder:
    def test_holds_what_was_asked_for_and_what_came_out(self, whole):
        names = {path.name for path in whole.iterdir()}
        assert names == {"config.json", "environment.json", "results.jsonl", "bases", "lock"}
        about = json.loads((whole / "config.json").read_text())
        assert Study.model_validate(about["study"]) == little() == RunFolder(whole).study()
        assert about["hash"] and about["data"]["grabmyo"]["fingerprint"]
        (start,) = json.loads((whole / "environment.json").read_text())
        assert start["torch"] == torch.__version__ and start["cores"]

    def test_has_a_line_for_every_method_trial_and_session_in_order(self, whole):
        found = [(x["method"], x["trial"], x["session"]) for x in lines(whole)]
        per_method = [(None, 0), *((t, s) for t in range(3) for s in (1, 2))]
        assert found == [(m, t, s) for m in METHODS for t, s in per_method]

    def test_lines_say_how_long_and_how_much(self, whole):
        raw = [json.loads(line) for line in (whole / "results.jsonl").read_text().splitlines()]
        assert all(line["seconds"] >= 0 and 50 < line["peak_mb"] < 20_000 for line in raw)
        inverted = next(x for x in raw if x["method"] == "anchorinv" and x["session"] == 1)
        assert {"invert", "finetune"} <= inverted["facts"].keys()

    def test_weights_of_priors_are_recorded(self, tmp_path):
        run_study(little(methods=["deepinv"], protocol={"trials": 1}), tmp_path / "run")
        facts = lines(tmp_path / "run")[1]["facts"]
        assert {"weight of l2", "weight of tv", "weight of statistics"} <= facts.keys()

    def test_a_base_model_is_trained_once_for_all_that_share_it(self, whole):
        kept = sorted(path.name.split("-")[0] for path in (whole / "bases").iterdir())
        assert kept == ["base", "base", "replay"]  # cosine and perceptron heads; AnchorInv's replay


class TestAgain:
    def test_nothing_is_computed_twice(self, copy):
        before = (copy / "results.jsonl").read_bytes()
        run_study(little(), copy)
        assert (copy / "results.jsonl").read_bytes() == before
        assert len(json.loads((copy / "environment.json").read_text())) == 2

    @pytest.mark.parametrize("keep", [0, 1, 4, 5, 8, 12, 20])
    def test_after_any_line_it_ends_the_same(self, whole, copy, keep):
        path = copy / "results.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:keep]))
        run_study(little(), copy)
        assert lines(copy) == lines(whole)

    @pytest.mark.parametrize("torn", [b'{"method": "prot', b'{"method": 3}\n', b"\xff\xfe\n", b"\n"])
    def test_a_torn_line_is_said_and_mended(self, whole, copy, torn, caplog):
        path = copy / "results.jsonl"
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:6]) + torn)
        run_study(little(), copy)
        assert "had 1 damaged line (line 7" in caplog.text
        assert lines(copy) == lines(whole)
        assert (copy / "results.damaged.jsonl").read_bytes().endswith(torn.rstrip(b"\n") + b"\n")

    def test_damage_anywhere_costs_the_parts_it_is_in_and_no_others(self, whole, copy, caplog):
        path = copy / "results.jsonl"
        before = path.read_bytes().splitlines(keepends=True)
        damaged = [b"\xff" + before[4][1:], before[9].replace(b'"session": 2', b'"session": 1000000')]
        path.write_bytes(b"".join([*before[:4], damaged[0], *before[5:9], damaged[1], *before[10:]]))
        heard: list[Tick] = []
        with listening(heard.append):
            run_study(little(), copy)
        assert lines(copy) == lines(whole)
        assert next(tick.done for tick in heard if tick.task == "whole study") == 10, "of 12 jobs"
        assert "had 2 damaged lines (line 5: no JSON" in caplog.text
        assert "line 10: of session 1000000, where there are 1 to 2" in caplog.text
        assert "and 2 lines of incomplete jobs" in caplog.text
        assert "10 of 12 jobs are complete and kept, the other 2 are computed" in caplog.text
        aside = (copy / "results.damaged.jsonl").read_bytes()
        assert aside == before[3] + damaged[0] + before[8] + damaged[1], "as they were"
        path.write_bytes(path.read_bytes() + b"more\n")
        run_study(little(), copy)
        assert (copy / "results.damaged.jsonl").read_bytes() == aside + b"more\n", "never overwritten"

    @pytest.mark.parametrize("lost", ["bases", "one base", "truncated"])
    def test_lost_or_damaged_base_models_are_made_again(self, whole, copy, lost):
        if lost == "bases":
            shutil.rmtree(copy / "bases")
        for path in (copy / "bases").glob("base-*") if lost != "bases" else ():
            path.write_bytes(path.read_bytes()[:1000]) if lost == "truncated" else path.unlink()
        path = copy / "results.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
        run_study(little(), copy)
        assert lines(copy) == lines(whole)

    def test_another_study_in_the_same_folder_is_refused_in_words(self, copy):
        before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
        with pytest.raises(ValueError, match=r"protocol\.shots was 10, is 9.*another --out"):
            run_study(little(protocol={"shots": 9}), copy)
        assert all(path.read_bytes() == content for path, content in before.items())

    def test_a_folder_from_before_a_key_was_there_goes_on(self, whole, copy):
        about = json.loads((copy / "config.json").read_text())
        for variant in about["study"]["variants"].values():
            del variant["anchors"]["measure"]
            for key in ("noise", "new_batch", "l2"):
                del variant["inversion"][key]
        (copy / "config.json").write_text(json.dumps(about))
        path = copy / "results.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:5]))
        assert RunFolder(copy).study() == little()
        run_study(little(), copy)
        assert lines(copy) == lines(whole)
        with pytest.raises(ValueError, match=r"inversion\.noise was trial, is shared"):
            run_study(little(inversion={"noise": "shared"}), copy)

    def test_a_folder_of_something_else_is_refused(self, tmp_path):
        (tmp_path / "thesis.tex").write_text("years of work")
        (tmp_path / ".notes.part").write_text("more of it")
        with pytest.raises(ValueError, match="is not a run folder, it contains"):
            run_study(little(), tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == [".notes.part", "thesis.tex"]

    def test_two_processes_cannot_mix(self, copy):
        with RunFolder(copy).locked(), pytest.raises(ValueError, match="another process is running"):
            run_study(little(), copy)
        assert not RunFolder(copy).in_use

    def test_other_versions_are_said(self, copy, caplog):
        path = copy / "environment.json"
        path.write_text(path.read_text().replace(torch.__version__, "1.0"))
        run_study(little(), copy)
        assert "torch was 1.0" in caplog.text


MOMENTS = 90  # half of those of a whole run


def _killed_after(moment: int, run: Path) -> None:
    """Run, and die at a moment: moments are files opened, renamed and the like, and steps of progress."""
    left = iter(range(moment, -1, -1))

    def count(event: str, *_: object) -> None:
        if event.startswith(("open", "os.", "tick")) and next(left, 1) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    with listening(lambda _: count("tick")):
        run_study(little(), run, seconds=0.0)


class TestInterrupted:
    @pytest.mark.parametrize("after", [1, 3, 7, 11])
    def test_by_ctrl_c(self, whole, tmp_path, after):
        heard = []

        def interrupt(tick: Tick) -> None:
            heard.append(tick)
            if tick.task == "whole study" and tick.done == after:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), listening(interrupt):
            run_study(little(), tmp_path / "run")
        run_study(little(), tmp_path / "run")
        assert lines(tmp_path / "run") == lines(whole)

    def test_by_sigkill_at_random_moments(self, whole, tmp_path):
        """Killed again and again, wherever it may be, it ends like a run that never was."""
        draw = random.Random(3)
        run, killed = tmp_path / "run", 0
        started = multiprocessing.get_context("fork")
        for _ in range(60):
            process = started.Process(target=_killed_after, args=(draw.randrange(MOMENTS), run))
            process.start()
            process.join()
            if process.exitcode == 0:
                break
            assert process.exitcode == -signal.SIGKILL
            killed += 1
        run_study(little(), run)
        assert killed >= 3, "it finished before it could be killed"
        assert lines(run) == lines(whole)
        assert not list(run.rglob(".*.part")) and not list(run.rglob("*.unfinished"))

    def test_while_the_folder_was_made(self, whole, tmp_path):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / ".config.json.0123.part").write_text('{"format"')
        run_study(little(), tmp_path / "run")
        assert lines(tmp_path / "run") == lines(whole)

    @pytest.mark.parametrize("room", [1_000, 8_000, 35_000])
    def test_by_a_full_disk(self, whole, tmp_path, room):
        """Said, wherever it happens; nothing is lost, and it goes on when there is room."""

        def with_little_room(told: Connection) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
            try:
                run_study(many, run)
            except OSError as error:
                told.send(str(error))

        run, many = tmp_path / "run", little(methods=["protonet"], protocol={"trials": 80})
        heard, told = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=with_little_room, args=(told,))
        process.start()
        process.join()
        assert heard.poll(), "it should have run out of room"
        message = heard.recv()
        assert "cannot be written" in message and "free some space" in message
        where = {1_000: "config.json", 8_000: "base-", 35_000: "results.jsonl"}[room]
        assert where in message
        if room == 35_000:
            assert 40 < len(RunFolder(run).read().results) < 160
        run_study(many, run)
        run_study(many, tmp_path / "whole")
        assert lines(run) == lines(tmp_path / "whole")


class TestIndependence:
    """A trial's results depend on its seed, its number and the session alone."""

    @pytest.mark.parametrize(
        "change", [{"protocol": {"trials": 1}}, {"methods": ["anchorinv"]}, {"methods": list(METHODS[::-1])}]
    )
    def test_of_number_of_trials_other_methods_and_order(self, whole, tmp_path, change):
        run_study(little(**change), tmp_path / "run")
        found = lines(tmp_path / "run")
        assert found and all(line in lines(whole) for line in found)

    def test_but_not_of_the_seed(self, whole, tmp_path):
        run_study(little(protocol={"seeds": [5, 6]}), tmp_path / "run")
        by_seed = {seed: [x for x in lines(tmp_path / "run") if x["base_seed"] == seed] for seed in (5, 6)}
        assert by_seed[5] == lines(whole)
        assert [x["confusion"] for x in by_seed[6]] != [x["confusion"] for x in by_seed[5]]

    def test_base_models_can_be_shared(self, whole, tmp_path):
        run_study(little(protocol={"trials": 1}), tmp_path / "a", cache=whole / "bases")
        assert not (tmp_path / "a" / "bases").exists()
        assert all(line in lines(whole) for line in lines(tmp_path / "a"))


class TestVariants:
    def test_run_one_after_the_other_and_share_what_they_can(self, tmp_path):
        run_study(little("bci2a-shots", methods=["anchorinv"], protocol={"trials": 1}), tmp_path / "run")
        found = lines(tmp_path / "run")
        assert list(dict.fromkeys(x["variant"] for x in found)) == list(load_variants("bci2a-shots"))
        kept = sorted(path.name.split("-")[0] for path in (tmp_path / "run" / "bases").iterdir())
        assert kept == ["base", "replay"]


def load_variants(name: str) -> list[str]:
    return list(little(name).variants)


def by_hand(data: Dataset, mask: np.ndarray, by: np.ndarray, *, per_channel: bool) -> np.ndarray:
    axes = (0, 2) if per_channel else (0, 1, 2)
    known = data.signals(by).astype(np.float64)
    mean, std = known.mean(axes, keepdims=True), known.std(axes, keepdims=True)
    return (data.signals(mask) - mean) / std


class TestSamples:
    """Who is learned from, who is scored on, and by whose statistics."""

    study = little()
    experiment = study.variants[""]
    data = open_data(experiment, {})
    protocol = protocol_of(experiment, data, 5)

    @pytest.mark.parametrize("by", ["base", "paper"])
    @pytest.mark.parametrize("per_channel", [False, True])
    def test_standardisation(self, by, per_channel):
        settings = {"standardise": {"by": by, "per_channel": per_channel}}
        experiment = little(**settings).variants[""]
        found = samples_of(experiment, self.data, "", self.protocol)
        wanted = np.isin(self.data.labels, [0, 1, 2, 10, 11])
        train, test = wanted & (self.data.split == "train"), wanted & (self.data.split == "test")
        known = train & np.isin(self.data.labels, [0, 1, 2]) if by == "base" else train
        for part, mask in ((found.train, train), (found.test, test)):
            expected = by_hand(self.data, mask, known, per_channel=per_channel)
            np.testing.assert_allclose(part.values.numpy(), expected, rtol=1e-4, atol=1e-5)
            assert part.labels.tolist() == self.data.labels[mask].tolist()

    def test_statistics_of_the_base_classes_know_nothing_of_later_ones(self):
        changed = replace(self.data, samples=self.data.samples.copy())
        for start in changed.starts[changed.labels == 10]:
            changed.samples[start : start + changed.n_times] *= 100
        one, two = (
            samples_of(self.experiment, data, "", self.protocol).train.of(0, 1, 2)
            for data in (self.data, changed)
        )
        assert torch.equal(one.values, two.values)

    def test_per_subject(self):
        experiment = little(protocol={"per_subject": True}).variants[""]
        assert people(experiment, self.data) == ["0", "1"]
        found = samples_of(experiment, self.data, "1", self.protocol)
        own = (self.data.subjects == "1") & np.isin(self.data.labels, [0, 1, 2, 10, 11])
        assert len(found.train) == (own & (self.data.split == "train")).sum()
        assert len(found.test) == (own & (self.data.split == "test")).sum()

    def test_leave_one_out(self):
        experiment = little(protocol={"leave_one_out": True}).variants[""]
        found = samples_of(experiment, self.data, "0", self.protocol)
        wanted = np.isin(self.data.labels, [0, 1, 2, 10, 11])
        others = wanted & (self.data.subjects != "0") & (self.data.split == "train")
        assert len(found.train) == others.sum()
        assert len(found.test) == (wanted & (self.data.subjects == "0")).sum()

    @pytest.mark.parametrize("kind", ["per_subject", "leave_one_out"])
    def test_too_few_windows_for_the_shots_are_found_before_any_training(self, tmp_path, kind):
        with pytest.raises(ValueError, match=r"class '10' has \d+ training windows.*60 shots needed"):
            run_study(little(protocol={kind: True, "shots": 60}), tmp_path / "run")
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("kind", ["per_subject", "leave_one_out"])
    def test_people_one_by_one_in_a_run(self, tmp_path, kind):
        run_study(
            little(methods=["protonet"], protocol={kind: True, "trials": 2, "shots": 5}), tmp_path / "run"
        )
        found = lines(tmp_path / "run")
        assert list(dict.fromkeys(x["person"] for x in found)) == ["0", "1"]
        assert len(list((tmp_path / "run" / "bases").glob("base-*"))) == 2
        assert len(found) == 2 * (1 + 2 * 2)

    def test_a_class_without_windows_is_named(self):
        data = replace(self.data, split=np.where(self.data.labels == 11, "test", self.data.split))
        with pytest.raises(ValueError, match="class '11' has no training windows"):
            samples_of(self.experiment, data, "", self.protocol)

    def test_people_are_in_the_order_of_their_numbers(self):
        subjects = np.array([str(i) for i in range(12)])[np.arange(len(self.data)) % 12]
        experiment = little(protocol={"per_subject": True}).variants[""]
        assert people(experiment, replace(self.data, subjects=subjects))[-1] == "11"


class TestPreparedFolder:
    @staticmethod
    def real(**tables) -> tuple[Study, Dataset]:
        """The same study, on a data set with names, as a user prepares one."""
        study = little(data={"name": "mine", "sfreq": 256}, **tables)
        experiment = study.variants[""]
        data = open_data(experiment, {})
        named = replace(data, class_names=tuple(f"gesture {i}" for i in range(len(data.class_names))))
        asked = experiment.model_copy(update={"synthetic": None})
        return study.model_copy(update={"variants": {"": asked}}), named

    def test_runs_like_the_same_data_in_memory(self, tmp_path, whole):
        study, data = self.real()
        data.write(tmp_path / "set")
        run_study(study, tmp_path / "run", {"mine": Dataset.open(tmp_path / "set")})
        assert lines(tmp_path / "run") == lines(whole)

    def test_classes_by_name(self, tmp_path, whole):
        names = {
            "base_classes": ["gesture 0", "gesture 1", "gesture 2"],
            "sessions": ["gesture 10", "gesture 11"],
        }
        study, data = self.real()
        variant = json.loads(study.model_dump_json())
        variant["variants"][""]["protocol"] |= names
        run_study(Study.model_validate(variant), tmp_path / "run", {"mine": data})
        assert lines(tmp_path / "run") == lines(whole)
        RunFolder(tmp_path / "run").write_tables()
        assert "f1 of gesture 10" in (tmp_path / "run" / "scores.csv").read_text()
        variant["variants"][""]["protocol"]["sessions"] = ["gesture 99"]
        with pytest.raises(ValueError, match="class 'gesture 99' is not in the data; did you mean 'gesture"):
            run_study(Study.model_validate(variant), tmp_path / "other", {"mine": data})

    def test_other_data_in_the_same_folder_is_refused(self, tmp_path):
        study, data = self.real(methods=["protonet"], protocol={"trials": 1})
        run_study(study, tmp_path / "run", {"mine": data})
        changed = replace(data, samples=data.samples + 1)
        with pytest.raises(ValueError, match=r"data\.mine\.fingerprint was"):
            run_study(study, tmp_path / "run", {"mine": changed})

    @pytest.mark.parametrize("before", [0, 1, 3])
    def test_recordings_changed_under_a_run_are_noticed_when_it_starts_or_goes_on(self, tmp_path, before):
        study, data = self.real(methods=["protonet"], protocol={"trials": 3})
        data.write(tmp_path / "set")
        run, path = tmp_path / "run", tmp_path / "set" / "samples.npy"
        if before:
            run_study(study, run, {"mine": Dataset.open(tmp_path / "set")})
            kept = (run / "results.jsonl").read_text().splitlines(keepends=True)[:before]
            (run / "results.jsonl").write_text("".join(kept))
        files = {each: each.read_bytes() for each in run.rglob("*") if each.is_file()}
        prepared = path.read_bytes()
        np.save(path, data.samples[::-1].copy())
        with pytest.raises(ValueError, match=r"changed since it was prepared: samples\.npy; restore"):
            run_study(study, run, {"mine": Dataset.open(tmp_path / "set")})
        assert {each: each.read_bytes() for each in run.rglob("*") if each.is_file()} == files
        path.write_bytes(prepared)
        run_study(study, run, {"mine": Dataset.open(tmp_path / "set")}, verify=True)
        assert len(lines(run)) == 7

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"sfreq": 100.0}, "has 100 Hz where the config has 256"),
            ({"n_times": 100}, r"windows of shape \(28, 100\) where the config has \(28, 104\)"),
        ],
    )
    def test_data_that_do_not_fit(self, tmp_path, change, told):
        study, data = self.real()
        with pytest.raises(ValueError, match=told):
            run_study(study, tmp_path / "run", {"mine": replace(data, **change)})

    @pytest.mark.parametrize(
        ("meta", "fits"),
        [
            ({"filter": "1-40 Hz"}, True),
            ({"filter": None}, False),
            ({"filter": "1-40 Hz, then referenced", "band": "1-40 Hz"}, True),
            ({"filter": "referenced", "band": None}, False),
        ],
    )
    def test_whether_data_are_filtered_is_asked_of_the_band_where_there_is_more(self, meta, fits):
        study, data = self.real()
        experiment = study.variants[""]
        named = experiment.data.model_copy(update={"filtered": True})
        asked, given = experiment.model_copy(update={"data": named}), {"mine": replace(data, meta=meta)}
        if fits:
            assert open_data(asked, given).meta == meta
        else:
            with pytest.raises(ValueError, match="no filter where the config requires one"):
                open_data(asked, given)

    def test_no_data(self, tmp_path):
        with pytest.raises(
            ValueError, match="needs the prepared data set 'mine', got no data; pass --data mine="
        ):
            run_study(self.real()[0], tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_a_class_that_is_not_there(self, tmp_path):
        study, data = self.real(protocol={"sessions": [10, 99]}, synthetic={"n_per_class": 1})
        there = data.labels < 12
        few = Dataset.from_arrays(data.signals(there), data.labels[there], sfreq=256, split=data.split[there])
        with pytest.raises(ValueError, match="class 99 is not in the data, whose classes are 0 to 11"):
            run_study(study, tmp_path / "run", {"mine": few})


def test_a_method_of_ones_own_runs_in_the_same_study(whole, tmp_path):
    def mine(base_spec: BaseSpec) -> Recipe:
        return latent_replay(base_spec, per_class=3, adapt=Finetune(steps=(2,), lr=1e-3))

    run_study(little(), tmp_path / "run", own={"mine": mine})
    found = lines(tmp_path / "run")
    assert [x for x in found if x["method"] != "mine"] == lines(whole)
    assert len([x for x in found if x["method"] == "mine"]) == 7


def test_a_method_of_ones_own_has_a_name_of_its_own(tmp_path):
    with pytest.raises(ValueError, match="has the name 'protonet' of one of the study"):
        run_study(little(), tmp_path / "run", own={"protonet": latent_replay})


@settings(max_examples=40)
@given(data=st.data(), n=st.integers(24, 60), trial=st.integers(0, 1000))
def test_supports_never_contain_a_test_window(data, n, trial):
    """Whatever the split, people, classes and kind of study: shots are training windows of their class."""
    labels = np.array(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)))
    split = np.array(data.draw(st.lists(st.sampled_from(["train", "test"]), min_size=n, max_size=n)))
    subjects = np.array(data.draw(st.lists(st.sampled_from(["a", "b"]), min_size=n, max_size=n)))
    # Each window holds its own number.
    numbers = np.repeat(np.arange(n, dtype=np.float32), 4).reshape(-1, 1)
    kind = data.draw(st.sampled_from([{}, {"per_subject": True}, {"leave_one_out": True}]))
    experiment = little(protocol={"base_classes": [0, 1], "sessions": [2], "shots": 2, **kind}).variants[""]
    columns = {"labels": labels, "subjects": subjects, "sessions": np.full(n, "1"), "split": split}
    made = Dataset(
        samples=numbers,
        starts=np.arange(n) * 4,
        n_times=4,
        sfreq=256.0,
        class_names=("x", "y", "z"),
        ch_names=("c",),
        **columns,
    )
    protocol = protocol_of(experiment, made, 5)
    for person in people(experiment, made):
        try:
            samples = samples_of(experiment, made, person, protocol)
            (session,) = protocol.draw(samples.train, trial)
        except ValueError:
            continue  # too few windows of some class
        train, test = (set(part.values[:, 0, 0].tolist()) for part in (samples.train, samples.test))
        shots = set(session.train.values[:, 0, 0].tolist())
        assert len(shots) == 2 and shots <= train and not shots & test and not train & test
        assert (session.train.labels == 2).all()


def test_a_result_line_comes_back(whole):
    for line in (whole / "results.jsonl").read_text().splitlines():
        assert to_line(from_line(line)) == line


def test_the_peak_of_a_job_is_not_that_of_what_the_process_did_before():
    block = np.ones(40_000_000)  # 305 MB
    before = peak_mb()
    del block
    reset_peak()
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("this system does not reset peaks")
    assert peak_mb() < before - 200
