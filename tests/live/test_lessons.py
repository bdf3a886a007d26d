from types import SimpleNamespace

import numpy as np
import pytest

from anchorinv.live import lessons
from anchorinv.live.lessons import REJECTED, Lesson, NoveltyWatch, Practice
from anchorinv.novelty import SHOTS
from anchorinv.serving.streaming import Prediction
from anchorinv.signal.pipeline import Window


def offer(lesson, *starts, whole=True):
    return [lesson.offer(start, Window(start, np.full((2, 8), start), whole), "rest") for start in starts]


class TestLesson:
    def test_windows_begin_after_the_countdown_and_lie_apart(self):
        lesson = Lesson("fist", 3, begins=20, spacing=4)
        assert lesson.phase == "countdown"
        assert offer(lesson, 16, 19, 21, 23, 25) == [False, False, True, False, True]
        assert lesson.phase == "recording" and offer(lesson, 29, 40) == [True, False]
        assert lesson.phase == "review" and lesson.signals[:, 0, 0].tolist() == [21, 25, 29]

    def test_windows_with_gaps_are_not_taken(self):
        lesson = Lesson("fist", 1, begins=0, spacing=4)
        assert offer(lesson, 5, whole=False) == [False] and offer(lesson, 6) == [True]

    def test_what_is_removed_is_not_learned(self):
        lesson = Lesson("fist", 3, begins=0, spacing=1)
        offer(lesson, 0, 1)
        lesson.end()
        lesson.remove(1)
        assert lesson.phase == "review" and lesson.signals[:, 0, 0].tolist() == [1]
        assert [shot.number for shot in lesson.shots] == [2]


class TestNoveltyWatch:
    def offer(self, watch, *novelties, first=0, reject=0.05):
        """How often it is time to look, at windows that lie half a window apart."""
        model = SimpleNamespace(reject=reject, n_times_=8)
        looks = (
            watch.offer(
                4 * i, Window(4 * i, np.full((2, 8), i), True), Prediction(0, "x", None, "x", novelty), model
            )
            for i, novelty in enumerate(novelties, start=first)
        )
        return sum(looks)

    def test_the_latest_windows_are_kept(self, monkeypatch):
        watch = NoveltyWatch()
        assert self.offer(watch, *[0.0] * 3 * REJECTED, reject=0.01) == 3 * REJECTED // 5 - 1
        assert watch.windows[:, 0, 0].tolist() == list(range(2 * REJECTED, 3 * REJECTED))
        monkeypatch.setattr(lessons, "MOST_REJECTED", 30 * 2 * 8 * 4)  # bytes: fewer of large ones
        watch = NoveltyWatch()
        self.offer(watch, *[0.0] * 3 * REJECTED, reject=0.01)
        assert len(watch.windows) == 30

    def test_windows_that_fit_a_class_or_overlap_are_not(self):
        watch = NoveltyWatch()
        assert not self.offer(watch, *[0.06] * 100) and not watch._rejected

    @pytest.mark.parametrize("reject", [0.02, 0.05, 0.2])
    def test_what_chance_rejects_is_never_looked_at_and_a_run_is(self, reject):
        """Windows of known classes that are rejected resemble each other, too, but come one by one."""
        watch, each = NoveltyWatch(), round(1 / reject)
        chance = [0.0 if i % each == 0 else 1.0 for i in range(100 * each)]
        assert self.offer(watch, *chance, reject=reject) == 0 and len(watch._rejected) < SHOTS
        assert self.offer(watch, *[0.0] * SHOTS, first=len(chance), reject=reject) > 0

    def test_decisions_in_between_do_not_add_to_chance(self):
        """A known window is asked about once in half a window, not until one of its decisions is odd."""
        watch, model = NoveltyWatch(), SimpleNamespace(reject=0.05, n_times_=8)
        for start in range(400):
            novelty = 1.0 if start % 4 == 0 else 0.0
            prediction = Prediction(0, "x", None, "x", novelty)
            watch.offer(start, Window(start, np.zeros((2, 8)), True), prediction, model)
        assert not watch._rejected


class TestPractice:
    def practice(self, rounds=2):
        return Practice(["a", "b", "c"], rounds, begins=100, ready=20, hold=50, rng=np.random.default_rng(0))

    def test_each_class_is_prompted_as_often(self):
        prompts = self.practice(4).prompts
        assert sorted(prompts) == ["a"] * 4 + ["b"] * 4 + ["c"] * 4 and prompts[:3] != prompts[3:6]

    def test_only_windows_within_a_prompt_count(self):
        practice = self.practice(1)
        first = practice.prompts[0]
        for start in (95, 110, 119):  # before it, or begun before it
            practice.offer(start, 10, first)
        assert practice.counts.sum() == 0
        practice.offer(120, 10, first)
        practice.offer(159, 10, "unknown")
        row = practice.classes.index(first)
        assert practice.counts[row, row] == 1 and practice.counts[row, -1] == 1
        practice.offer(165, 10, first)  # ends in the next announcement
        assert practice.counts.sum() == 2 and practice.phase == "ready" and practice.place == 1

    def test_it_ends(self):
        practice = self.practice(1)
        assert practice.offer(100 + 3 * 70, 1, "a") and practice.phase == "done"
        assert not practice.offer(500, 1, "a")
