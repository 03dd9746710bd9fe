import os
import signal
import threading
import time

import pytest
from conftest import QUESTION

import foldwise

LONG = dict(model='deepseek-v3', system='gb200-nvl72', gpus=2048, effort=300.0)


# Does Ctrl-C end a search long before its effort is spent?
def test_interrupt_ends_a_plan():
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    start = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        foldwise.plan(**LONG)
    assert time.monotonic() - start < 60


# Is progress reported on the caller's thread, and does False end the search with an answer that is not proven?
def test_progress_can_end_a_plan():
    seen = []

    def progress(effort, best, least):
        seen.append((threading.get_ident(), effort))
        return best == 0

    answer = foldwise.plan(**LONG, progress=progress)
    assert answer.plans and not answer.search.proven
    assert {thread for thread, _ in seen} == {threading.get_ident()}
    assert all(0 <= effort <= 1 for _, effort in seen)


# Does what a callback raises arrive?
def test_progress_may_raise():
    def progress(*_):
        raise LookupError('mine')

    with pytest.raises(LookupError, match='mine'):
        foldwise.plan(**LONG, progress=progress)


# Does a bar of tqdm's kind end at 100?
def test_progress_bar_fills():
    class Bar:
        n, total = 0, None

        def update(self, moved):
            self.n += moved

    bar = Bar()
    foldwise.plan(**QUESTION, progress=bar)
    assert (bar.n, bar.total) == (100, 100)


# Do other Python threads run while one predicts?
def test_predictions_let_others_run(small):
    counted, done = 0, threading.Event()
    thread = threading.Thread(target=lambda: (foldwise.predict(small), done.set()))
    thread.start()
    while not done.is_set():
        counted += 1
        time.sleep(0.001)
    thread.join()
    assert counted > 3  # One prediction with its explanation takes tens of milliseconds.


# Do threads that predict side by side give the same answers?
def test_threads_agree(small):
    answers = [None] * 4

    def work(i):
        answers[i] = [foldwise.predict({**small, 'micro_batch': n}, explain=False) for n in (1, 2, 4)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(answer == answers[0] for answer in answers)
