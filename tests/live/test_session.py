import gc
import io
import json
import math
import threading
import time
import tracemalloc
import zipfile
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from anchorinv import AnchorInvClassifier
from anchorinv.live import lessons, stream
from anchorinv.live import session as live
from anchorinv.live.lessons import export
from anchorinv.live.session import LiveSession
from anchorinv.live.sources import Chunk, Iterated
from anchorinv.serving.streaming import Prediction, StreamingPredictor
from anchorinv.signal.drift import Drift
from anchorinv.signal.pipeline import Window
from anchorinv.signal.preprocessing import Preprocessing
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
        assert given.stream.status == "ended" and given.problem is None

    def test_the_probability_is_that_of_the_class_shown(self):
        """Predictions that were steadied may show a class that is not the most probable one now."""
        with ended(session()) as given:
            steadied = Prediction(0, "left", np.array([0.3, 0.7]), "right")
            window = Window(0, samples(n=1), True)
            given._on_window(stream.Classified(0, window, steadied, given.versions.now, 0.0))
            assert given.predictions[-1].probability == 0.3

    def test_channels_are_matched_by_name_and_unit(self):
        shuffled = samples()[[2, 0, 3, 1]] * 1e-6
        names = [CHANNELS[i] for i in (2, 0, 3, 1)]

        def trained():
            how = Preprocessing(CHANNELS, "µV", sfreq=RATE)
            return AnchorInvClassifier(network="never", random_state=0, preprocessing=how).fit(*windows())

        source = Iterated([shuffled], sfreq=RATE, ch_names=names, unit="V")
        with ended(LiveSession(trained(), source, step=16 / RATE)) as given:
            given.run()
        wanted = StreamingPredictor(trained(), step=16).feed(samples())
        assert [each.label for each in given.predictions] == [str(each.label) for each in wanted]
        assert given.stream.ch_names == CHANNELS

    def test_a_channel_that_is_not_there_is_named(self):
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
            given.stream.take(Chunk(samples(n=2)[:, :100], 0.0, begins=True))
            given.stream.take(Chunk(samples(n=2)[:, :64], 0.0, begins=True))
            assert [each.at for each in given.predictions] == [64 / RATE, 2 * 64 / RATE]

    def test_a_source_that_fails_is_told(self):
        def broken():
            yield samples()[:, :64]
            yield np.zeros((3, 5))

        given = LiveSession(model(), Iterated(broken(), sfreq=RATE, ch_names=CHANNELS))
        with ended(given):
            given.run()
        assert given.stream.status == "failed" and "(4, n)" in given.problem

    def test_what_nobody_expected_is_told_as_well(self, caplog):
        def broken():
            yield samples()[:, :64]
            raise RuntimeError("cable")

        with ended(LiveSession(model(), Iterated(broken(), sfreq=RATE, ch_names=CHANNELS))) as given:
            given.run()
        assert given.stream.status == "failed" and "RuntimeError: cable" in given.problem
        assert "cable" in caplog.text  # with where it happened, for whoever looks into it

    def test_channels_of_another_unit_are_named(self):
        how = Preprocessing(CHANNELS, "µV", sfreq=RATE)
        trained = AnchorInvClassifier(network="never", random_state=0, preprocessing=how).fit(*windows())
        source = Iterated([samples()], sfreq=RATE, ch_names=CHANNELS, unit="degrees", name="glove")
        with pytest.raises(ValueError, match=r"glove: the model takes µV.*C3 \(degrees\).*--scale"):
            LiveSession(trained, source)
        LiveSession(trained, source, scale=0.5).stop()  # somebody knows what they are

    def test_signals_far_from_the_base_data_are_warned_about(self):
        with ended(session(1000 * samples(n=40), step=64 / RATE)) as given:
            given.run()
        assert "another unit" in given.warning and given.problem is None and given.watch.suggestion is None

    def test_a_silent_stream_is_waited_for(self, monkeypatch):
        with ended(session()) as given:
            given.stream.take(Chunk(samples(), 0.0))
            assert given.stream.status == "streaming"
            now = time.monotonic() + stream.QUIET + 1
            monkeypatch.setattr(stream.time, "monotonic", lambda: now)
            assert given.stream.status == "waiting"
            revision = given.revision
            given.stream.take(Chunk(samples(), 0.0))
            assert given.stream.status == "streaming" and given.revision > revision  # pages are told

    def test_memory_is_that_of_seconds(self):
        with ended(session(samples(n=40), step=2 / RATE)) as given:
            given.run()
            assert given.n_predictions > live.MOST_PREDICTIONS == given.predictions.maxlen
            assert len(given.predictions) == given.predictions.maxlen

    def test_memory_does_not_grow_with_the_stream(self):
        """Neither by windows that are known, nor by those that are rejected and looked at."""
        unlike = np.random.default_rng(0).normal(size=(4, 64 * 30))
        unlike[[0, 3]] *= 4.5
        parts = np.array_split(np.concatenate([unlike, samples(n=30)], axis=1), 60, axis=1)
        with ended(session(model=lambda: model(reject=0.05), step=16 / RATE)) as given:

            def go_on(times):
                for part in times * parts:
                    given.stream.take(Chunk(part, time.time()))
                    if given.watch.suggestion is not None:
                        given.dismiss()
                given._teacher.submit(int).result()  # after what was being looked at
                gc.collect()
                return tracemalloc.get_traced_memory()[0]

            given.stream.take(Chunk(samples(), 0.0))
            tracemalloc.start()
            try:
                before, after = go_on(3), go_on(6)
            finally:
                tracemalloc.stop()
            assert given.watch._n_seen > 100 and after - before < 50_000


class TestTeaching:
    @pytest.fixture
    def given(self, tmp_path):
        given = session(samples("left", 4), step=16 / RATE, folder=tmp_path, name="hand")
        given.run()
        given.stream._status = "streaming"  # as more is to come, by feed
        with ended(given):
            yield given

    def feed(self, given, label, n=12, seed=9):
        for chunk in np.array_split(samples(label, n, seed), 20, axis=1):
            given.stream.take(Chunk(chunk, 0.0))

    def teach(self, given, label="tongue", wanted=6):
        given.teach(label, wanted, countdown=0.1)
        self.feed(given, label)
        given.learn().result()

    def test_a_new_class_is_learned_and_used(self, given):
        before = given.model
        self.teach(given)
        assert given.lesson is None and given.busy is None and given.problem is None
        assert "tongue" in given.model.classes_ and given.versions.now.number == 2
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
        more = given.report["more"]
        assert (more["shots"], more["total"]) == (5, before[0] + 5) and 0 <= more["before"] <= 5

    def test_hands_free_learns_without_being_asked(self, given):
        given.teach("tongue", 4, countdown=0, hands_free=True)
        self.feed(given, "tongue")
        given._teacher.submit(int).result()  # after what was being learned
        assert given.lesson is None and "tongue" in given.model.classes_ and given.report["shots"] == 4

    def test_undo_goes_back_bit_for_bit(self, given):
        was = given.versions.now.identity
        self.teach(given)
        assert given.versions.now.identity != was and given.versions.undoable == "taught tongue"
        given.undo()
        assert given.versions.now.identity == was and given.model.classes_.tolist() == ["left", "right"]
        with pytest.raises(ValueError, match="nothing to undo"):
            given.undo()

    def test_forget(self, given):
        self.teach(given)
        given.forget("tongue").result()
        assert (
            given.model.classes_.tolist() == ["left", "right"] and given.versions.undoable == "forgot tongue"
        )

    def test_what_goes_wrong_is_said_and_changes_nothing(self, given):
        was = given.versions.now.identity
        given.forget("nobody").result()
        assert "not known" in given.problem and given.versions.now.identity == was and given.busy is None
        with pytest.raises(ValueError, match="needs a name"):
            given.teach("  ")
        with pytest.raises(ValueError, match="'Left' looks like the known class 'left'"):
            given.teach("Left")
        with pytest.raises(ValueError, match="1 to 100 windows"):
            given.teach("x", 101)
        with pytest.raises(ValueError, match="nothing is being recorded"):
            given.learn()
        given.stream._status = "ended"
        for order in (lambda: given.teach("x", 3), given.practise):
            with pytest.raises(ValueError, match="the stream is over"):
                order()
        given.stream._status = "streaming"
        given.teach("x", 3)
        with pytest.raises(ValueError, match="finish the lesson first"):
            given.teach("y", 3)
        with pytest.raises(ValueError, match="no window is left"):
            given.learn()
        given.cancel()
        assert given.lesson is None
        given.practise()
        with pytest.raises(ValueError, match="finish the practice first, or stop it"):
            given.teach("x", 3)

    def test_the_stream_goes_on_while_a_lesson_is_learned(self, given, monkeypatch):
        learning, go_on = threading.Event(), threading.Event()

        def slow(*args, **options):
            learning.set()
            assert go_on.wait(30)
            return learn_classes(*args, **options)

        learn_classes = lessons.learn_classes
        monkeypatch.setattr(lessons, "learn_classes", slow)
        given.teach("tongue", 3, countdown=0)
        self.feed(given, "tongue")
        done = given.learn()
        assert learning.wait(30)
        n = given.n_predictions
        self.feed(given, "left")
        assert given.n_predictions > n and given.busy == "learning" and given.versions.now.number == 1
        with pytest.raises(ValueError, match="wait until it is done"):
            given.undo()
        go_on.set()
        done.result()
        assert given.versions.now.number == 2

    def test_a_lesson_given_while_windows_are_looked_at_keeps_the_session_busy(self, given, monkeypatch):
        go_on, learn = threading.Event(), threading.Event()
        searching = given._submit("suggesting", lambda: go_on.wait(30))
        monkeypatch.setattr(given, "_learn", lambda *_: learn.wait(30))
        given.teach("tongue", 3, countdown=0)
        self.feed(given, "tongue")
        learning = given.learn()
        go_on.set()
        searching.result()
        with pytest.raises(ValueError, match="wait until it is done"):
            given.undo()
        learn.set()
        learning.result()
        assert given.busy is None

    def test_files_are_new_ones_and_load(self, given, tmp_path):
        self.teach(given)
        first, second = given.save(), given.save()
        assert first != second and {first.parent, second.parent} == {tmp_path}
        saved = AnchorInvClassifier.load(first)
        assert saved.classes_.tolist() == given.model.classes_.tolist()

    def test_saves_at_the_same_time_never_replace_each_other(self, given, tmp_path, monkeypatch):
        """The name is free for both when they look, and is not when they write."""
        write, other = AnchorInvClassifier.save, []

        def slow(model, path, **options):
            if not other:
                other.append(None)
                other.append(given.save())
            write(model, path, **options)

        monkeypatch.setattr(AnchorInvClassifier, "save", slow)
        first = given.save()
        assert {first, other[1]} == set(tmp_path.glob("*.anchorinv")) and first != other[1]

    def test_a_save_that_fails_leaves_nothing_behind(self, given, tmp_path, monkeypatch):
        def full(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(AnchorInvClassifier, "save", full)
        with pytest.raises(OSError, match="No space left"):
            given.save()
        assert not list(tmp_path.glob("*.anchorinv"))

    def test_the_log_says_what_was_done_by_which_model(self, given):
        self.teach(given)
        self.feed(given, "left", n=2)
        lines = [json.loads(line) for line in given.log.path.read_text().splitlines()]
        kinds = [line["event"] for line in lines]
        assert kinds[0] == "begin" and "taught" in kinds and kinds[-1] == "prediction"
        assert lines[-1]["model"] == 2 and lines[-1]["identity"] == given.versions.now.identity
        assert {line["model"] for line in lines[: kinds.index("taught")]} == {1}

    def test_a_full_disk_ends_the_log_and_not_the_stream(self, given):
        class Full(io.StringIO):
            def flush(self):
                raise OSError(28, "No space left on device")

        given.log._file.close()
        given.log._file = Full()
        self.feed(given, "left", n=4)
        assert given.stream.status == "streaming" and "No space left" in given.log.problem
        given.log._file = io.StringIO()
        self.teach(given)
        assert "tongue" in given.model.classes_ and given.log._file.getvalue() == ""

    def test_an_export_holds_no_recording_unless_asked(self, given):
        self.teach(given)
        plain = zipfile.ZipFile(io.BytesIO(export(given.model, given.taught, given.log.path)))
        assert sorted(plain.namelist()) == ["events.jsonl", "features.npz"]
        features = np.load(io.BytesIO(plain.read("features.npz")))
        assert len(features["X"]) == 6 and set(features["y"]) == {"tongue"}
        asked = export(given.model, given.taught, None, recordings=True)
        whole = np.load(io.BytesIO(zipfile.ZipFile(io.BytesIO(asked)).read("recordings.npz")))
        assert whole["X"].shape == (6, 4, 64)

    def test_windows_for_an_export_are_bounded(self, given, monkeypatch):
        monkeypatch.setattr(lessons, "MOST_TAUGHT", 1)
        self.teach(given)
        assert given.taught == ()

    def test_an_export_holds_no_lesson_that_was_undone_or_forgotten(self, given):
        self.teach(given)
        assert len(given.taught) == 1
        given.undo()
        assert given.taught == ()
        self.teach(given)
        given.forget("tongue").result()
        assert given.taught == ()

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
        monkeypatch.setattr(Drift, "artefact", False)
        for chunk in np.array_split(unlike, 60, axis=1):
            given.stream.take(Chunk(chunk, 0.0))
            given._teacher.submit(int).result()  # after what was being looked at
            if given.watch.suggestion is not None:
                break
        assert given.watch.suggestion["shots"] == 10
        with pytest.raises(ValueError, match="looks like the known class"):
            given.accept("LEFT")
        assert given.watch.suggestion is not None  # the windows are still there, for a better name
        self.teach(given)  # another class: whether they are still new is to be seen
        assert given.watch.suggestion is None
        given.watch.suggest(np.stack([unlike[:, :64]] * 10), "left")
        given.accept("odd")
        assert given.watch.suggestion is None and len(given.lesson.shots) == 10  # to be looked at first
        given.remove(1)
        given.learn().result()
        assert given.model.counts_[given.model.classes_.tolist().index("odd")] == 9
        with pytest.raises(ValueError, match="no new class is suggested"):
            given.accept("odd")


class TestOrder:
    """A decision waits for nothing that pages show beside it."""

    def chunks(self, n=6):
        return np.array_split(samples(n=20), n * 20, axis=1)  # of a sixth of a window or less

    def test_windows_are_classified_before_the_signal_is_drawn(self, monkeypatch):
        with ended(session(step=64 / RATE)) as given:
            shown = []
            monkeypatch.setattr(
                given.stream, "_on_window", lambda each: shown.append(given.stream.scope.n_columns)
            )
            n_before = given.stream.scope.n_columns
            given.stream.take(Chunk(samples(n=1), time.time()))
            assert shown == [n_before] and given.stream.scope.n_columns > n_before

    def test_contact_is_looked_at_between_decisions(self, monkeypatch):
        with ended(session(step=16 / RATE)) as given:
            looked, verdicts = [], given.stream._contact.verdicts
            monkeypatch.setattr(
                given.stream._contact, "verdicts", lambda: looked.append(given.n_predictions) or verdicts()
            )
            decided, now = [], 1000.0
            given.stream._contact_due = now
            for chunk in self.chunks():
                n, n_looked = given.n_predictions, len(looked)
                now += chunk.shape[1] / RATE
                given.stream.take(Chunk(chunk, now))
                decided += [given.n_predictions > n] * (len(looked) - n_looked)
            assert len(decided) > 10 and not any(decided)

    def test_contact_is_looked_at_where_every_chunk_decides(self, monkeypatch):
        with ended(session(step=16 / RATE)) as given:
            looked = []
            monkeypatch.setattr(given.stream._contact, "verdicts", lambda: looked.append(1) or ["ok"] * 4)
            for i in range(20):
                given.stream.take(Chunk(samples(n=1), 1000 + 0.5 * i))
            assert len(looked) >= 10


def test_a_process_with_a_stream_computes_on_one_thread():
    """A second thread would be waited for, wherever a browser has its core."""
    was, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyboardInterrupt), stream.undisturbed():
            thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
            thread.start()
            thread.join()
            seen.append(torch.get_num_threads())
            assert gc.get_freeze_count() > 0
            raise KeyboardInterrupt
        assert seen == [1, 1] and torch.get_num_threads() == 2 and gc.get_freeze_count() == 0
    finally:
        torch.set_num_threads(was)


def test_a_late_decision_is_the_latest_one():
    with ended(session(step=16 / RATE)) as given:
        given.stream.take(Chunk(samples(), -math.inf))
        assert given.n_predictions == 1
