"""What changes a model, or makes one: one lesson at a time, on tensors that can learn again."""

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Learned = TypeVar("Learned")

# One for all models of a process: torch's global generator, which dropout draws from, is one for all, too.
_turn = threading.RLock()


def lesson(learn: Callable[Given, Learned]) -> Callable[Given, Learned]:
    """Let a function that learns wait until no other thread is learning; ``torch.inference_mode`` is left."""

    @wraps(learn)
    def alone(*args: Given.args, **kwargs: Given.kwargs) -> Learned:
        # Gradients need ordinary tensors, and so does a model that somebody will teach later.
        with _turn, torch.inference_mode(False):
            return learn(*args, **kwargs)

    return alone


def _after_fork() -> None:
    """Start anew in a child process, which has one thread: nobody else there would ever give up the lock.

    Nor do torch's own threads live on in a child: with more than one, OpenMP would wait for them for ever.
    """
    global _turn
    _turn = threading.RLock()
    torch.set_num_threads(1)


os.register_at_fork(after_in_child=_after_fork)
