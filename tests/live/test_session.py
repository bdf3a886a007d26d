import json
import math
import threading
from contextlib import contextmanager

import numpy as np
import pytest

from anchorinv import AnchorInvClassifier
from anchorinv.live import session as live
from anchorinv.live.record import export
from anchorinv.live.session import LiveSession
from anchorinv.live.sources import Chunk, Iterated
from anchorinv.serving.streaming import StreamingPredictor
from tests.models import CHANNELS, RATE, again, fitted, windows


def model(**changes):
    return again(fitted("discriminant", taught=False, network="never", **changes))


def samples(label="left", n=8, seed=5):
    """Samples (4, n * 64) in which a class is done."""
    return np.concatenate(windows(n, classes=(label,), seed=seed)[0], axis=1)


def session(*parts, model=model, chunk=32, **options):
    whole = np.concatenate(parts or [samples()], axis=1)
    chunks = np.array_split(whole, whole.shape[1] // chunk, axis=1)
    return LiveSession(model(), Iterated(chunks, sfreq=RATE, ch_names=CHANNELS), **options)


@contextmanager
def ended(given):
    try:
        yield given
    finally:
        given.stop()


class TestStream:
    def test_predictions_are_those_of_the_stream(self):
        with ended(session(step=16 / RATE)) as given:
            given.run()
        wanted = StreamingPredictor(model(), step=16).feed(samples())
        assert [each.label for each in given.predictions] == [str(each.label) for each in wanted]
        assert [each.at for each in given.predictions] == [(each.start + 64) / RATE for each in wanted]
        assert given.status == "ended" and given.problem is None

    def test_channels_are_matched_by_name_and_unit(self):
        shuffled = samples()[[2, 0, 3, 1]] * 1e-6
        names = [CHANNELS[i] for i in (2, 0, 3, 1)]

        def trained():
            from anchorinv.signal.preprocessing import Preprocessing

            how = Preprocessing(CHANNELS, "µV", sfreq=RATE)
            return AnchorInvClassifier(network="never", random_state=0, preprocessing=how).fit(*windows())

        source = Iterated([shuffled], sfreq=RATE, ch_names=names, unit="V")
        with ended(LiveSession(trained(), source, step=16 / RATE)) as given:
            given.run()
        wanted = StreamingPredictor(trained(), step=16).feed(samples())
        assert [each.label for each in given.predictions] == [str(each.label) for each in wanted]
        assert given.ch_names == CHANNELS

    def test_a_channel_that_is_not_there_is_named(self):
        from anchorinv.signal.preprocessing import Preprocessing

        how = Preprocessing(CHANNELS, "µV", sfreq=RATE)
        trained = AnchorInvClassifier(network="never", random_state=0, preprocessing=how).fit(*windows())
        with pytest.raises(ValueError, match="lacks 1 of 4 channels: Pz"):
            LiveSession(trained, Iterated([samples()[:3]], sfreq=RATE, ch_names=CHANNELS[:3], unit="V"))

    def test_windows_with_gaps_have_no_class(self):
        broken = samples()
        broken[:, 200:210] = np.nan
        with ended(session(broken, step=16 / RATE)) as given:
            given.run()
        lost = [each.label is None for each in given.predictions]
        assert any(lost) and not all(lost)

    def test_a_new_beginning_forgets_what_came_before(self):
        with ended(session(step=64 / RATE)) as given:
            given._take(Chunk(samples(n=2)[:, :100], 0.0, begins=True))
            given._take(Chunk(samples(n=2)[:, :64], 0.0, begins=True))
            assert [each.at for each in given.predictions] == [64 / RATE, 2 * 64 / RATE]

    def test_a_source_that_fails_is_told(self):
        def broken():
            yield samples()[:, :64]
            yield np.zeros((3, 5))

        given = LiveSession(model(), Iterated(broken(), sfreq=RATE, ch_names=CHANNELS))
        with ended(given):
            given.run()
        assert given.status == "failed" and "(4, n)" in given.problem

    def test_memory_is_that_of_seconds(self):
        with ended(session(samples(n=40), step=2 / RATE)) as given:
            given.run()
            assert given.n_predictions > live.MOST_PREDICTIONS == given.predictions.maxlen
            assert len(given.predictions) == given.predictions.maxlen


class TestTeaching:
    @pytest.fixture
    def given(self, tmp_path):
        given = session(samples("left", 4), step=16 / RATE, folder=tmp_path, name="hand")
        given.run()
        with ended(given):
            yield given

    def feed(self, given, label, n=12, seed=9):
        for chunk in np.array_split(samples(label, n, seed), 20, axis=1):
            given._take(Chunk(chunk, 0.0))

    def teach(self, given, label="tongue", wanted=6):
        given.teach(label, wanted, countdown=0.1)
        self.feed(given, label)
        given.learn().result()

    def test_a_new_class_is_learned_and_used(self, given):
        before = given.model
        self.teach(given)
        assert given.lesson is None and given.busy is None and given.problem is None
        assert "tongue" in given.model.classes_ and given.number == 2
        assert before.classes_.tolist() == ["left", "right"]  # the one before is as it was
        self.feed(given, "tongue", seed=11)
        assert any(each.label == "tongue" for each in list(given.predictions)[-10:])
        report = given.report
        assert report["label"] == "tongue" and report["shots"] == 6 and report["own"] is not None
        assert [each["label"] for each in report["classes"]] == ["left", "right"]
        assert 0 <= report["after"] <= 1 and report["nearest"] in ("left", "right")

    def test_windows_are_removed_before_they_are_learned(self, given):
        given.teach("tongue", 4, countdown=0)
        self.feed(given, "tongue")
        given.remove(given.lesson.shots[0].number)
        assert len(given.lesson.shots) == 3
        given.learn().result()
        assert given.model.counts_.tolist()[given.model.classes_.tolist().index("tongue")] == 3

    def test_more_of_a_known_class(self, given):
        before = given.model.counts_.copy()
        self.teach(given, "left", wanted=5)
        assert (given.model.counts_ - before).tolist() == [5, 0]
        assert "more examples" in given.report["sentences"][0]

    def test_undo_goes_back_bit_by_bit(self, given):
        was = given.identity
        self.teach(given)
        assert given.identity != was and given.undoable == "taught tongue"
        given.undo()
        assert given.identity == was and given.model.classes_.tolist() == ["left", "right"]
        with pytest.raises(ValueError, match="nothing to undo"):
            given.undo()

    def test_forget(self, given):
        self.teach(given)
        given.forget("tongue").result()
        assert given.model.classes_.tolist() == ["left", "right"] and given.undoable == "forgot tongue"

    def test_what_goes_wrong_is_said_and_changes_nothing(self, given):
        was = given.identity
        given.forget("nobody").result()
        assert "not known" in given.problem and given.identity == was and given.busy is None
        with pytest.raises(ValueError, match="needs a name"):
            given.teach("  ")
        with pytest.raises(ValueError, match="1 to 100 windows"):
            given.teach("x", 101)
        with pytest.raises(ValueError, match="nothing is being recorded"):
            given.learn()
        given.teach("x", 3)
        with pytest.raises(ValueError, match="finish the lesson first"):
            given.teach("y", 3)
        with pytest.raises(ValueError, match="no window is left"):
            given.learn()
        given.cancel()
        assert given.lesson is None

    def test_the_stream_goes_on_while_a_lesson_is_learned(self, given, monkeypatch):
        learning, go_on = threading.Event(), threading.Event()

        def slow(*args, **options):
            learning.set()
            assert go_on.wait(30)
            return learn_classes(*args, **options)

        learn_classes = live.learn_classes
        monkeypatch.setattr(live, "learn_classes", slow)
        given.teach("tongue", 3, countdown=0)
        self.feed(given, "tongue")
        done = given.learn()
        assert learning.wait(30)
        n = given.n_predictions
        self.feed(given, "left")
        assert given.n_predictions > n and given.busy == "learning" and given.number == 1
        with pytest.raises(ValueError, match="wait until"):
            given.undo()
        go_on.set()
        done.result()
        assert given.number == 2

    def test_files_are_new_ones_and_load(self, given, tmp_path):
        self.teach(given)
        first, second = given.save(), given.save()
        assert first != second and {first.parent, second.parent} == {tmp_path}
        saved = AnchorInvClassifier.load(first)
        assert saved.classes_.tolist() == given.model.classes_.tolist()

    def test_the_log_says_what_was_done_by_which_model(self, given):
        self.teach(given)
        self.feed(given, "left", n=2)
        lines = [json.loads(line) for line in given.log.path.read_text().splitlines()]
        kinds = [line["event"] for line in lines]
        assert kinds[0] == "begin" and "taught" in kinds and kinds[-1] == "prediction"
        assert lines[-1]["model"] == 2 and lines[-1]["identity"] == given.identity
        assert {line["model"] for line in lines[: kinds.index("taught")]} == {1}

    def test_an_export_holds_no_recording_unless_asked(self, given):
        import io
        import zipfile

        self.teach(given)
        plain = zipfile.ZipFile(io.BytesIO(export(given.model, given.taught, given.log.path)))
        assert sorted(plain.namelist()) == ["events.jsonl", "features.npz"]
        features = np.load(io.BytesIO(plain.read("features.npz")))
        assert len(features["X"]) == 6 and set(features["y"]) == {"tongue"}
        asked = export(given.model, given.taught, None, recordings=True)
        whole = np.load(io.BytesIO(zipfile.ZipFile(io.BytesIO(asked)).read("recordings.npz")))
        assert whole["X"].shape == (6, 4, 64)

    def test_windows_for_an_export_are_bounded(self, given, monkeypatch):
        monkeypatch.setattr(live, "MOST_TAUGHT", 1)
        self.teach(given)
        assert given.taught == []

    def test_practice_counts_by_prompts(self, given):
        given.practise(1, hold=0.5)
        assert given.practice.phase == "ready"
        for _ in range(40):
            if given.practice.phase == "done":
                break
            self.feed(given, given.practice.prompts[given.practice.place], n=2)
        counts = given.practice.counts
        assert given.practice.phase == "done" and (counts[:, :2].diagonal() > 0).all()

    def test_what_looks_new_is_offered(self, given, monkeypatch):
        given.model.set_params(reject=0.05)
        unlike = np.random.default_rng(0).normal(size=(4, 64 * 30))
        unlike[[0, 3]] *= 4.5
        monkeypatch.setattr(AnchorInvClassifier, "_is_artefact", lambda *_: False)
        for chunk in np.array_split(unlike, 60, axis=1):
            given._take(Chunk(chunk, 0.0))
            given._teacher.submit(int).result()  # after what was being looked at
            if given.suggestion is not None:
                break
        assert given.suggestion["shots"] == 10
        given.accept("odd").result()
        assert "odd" in given.model.classes_ and given.suggestion is None
        with pytest.raises(ValueError, match="nothing is suggested"):
            given.accept("odd")


def test_a_late_decision_is_the_latest_one():
    with ended(session(step=16 / RATE)) as given:
        given._take(Chunk(samples(), -math.inf))
        assert given.n_predictions == 1
