"""The executor's process may die in any way it likes: its owner hears why, and gets a clean one."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial

import pytest

from headway.core.errors import ConfigError, ModelError
from headway.core.request import SamplingParams
from headway.core.scheduler.step import Begin, Row, Step
from headway.engine.supervisor import CRASH_LIMIT, ExecutorLost, SupervisedExecutor
from headway.executors.simulated import SimulatedConfig, SimulatedExecutor, StepCost

FAST = partial(SimulatedExecutor, SimulatedConfig(clock="virtual"))
SLOW = partial(SimulatedExecutor, SimulatedConfig(cost=StepCost(step_ns=3_600_000_000_000)))


def first_step() -> Step:
    prompt = list(range(300, 310))
    begin = Begin(SamplingParams(temperature=0.0, ignore_eos=True), prompt, 5)
    return Step(1, [Row(1, 0, prompt, [0], samples=True, begin=begin)], 10, 0, 0)


@pytest.fixture
def executor():
    made = SupervisedExecutor(FAST, step_timeout_s=30)
    made.start()
    yield made
    made.close()


def test_steps_pass_to_the_child_and_back_unchanged(executor):
    here = FAST().run(first_step())
    assert executor.run(first_step()) == here
    assert executor.info == FAST().info


@pytest.mark.parametrize("sig", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT])
def test_a_killed_child_is_named_and_replaced(executor, sig):
    os.kill(executor.pid, sig)
    with pytest.raises(ExecutorLost, match=sig.name):
        executor.run(first_step())
    executor.restart()
    assert executor.run(first_step()).results[0].seq == 1


def test_a_hung_child_is_stopped_by_the_watchdog():
    hung = SupervisedExecutor(SLOW, step_timeout_s=0.3)
    hung.start()
    pid = hung.pid
    assert pid is not None
    try:
        with pytest.raises(ExecutorLost, match="did not compute step 1 within"):
            hung.run(first_step())
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    finally:
        hung.close()


def test_an_exception_in_the_child_is_told_and_ends_it(executor):
    stranger = Step(1, [Row(7, 0, [300], [0], samples=True)], 1, 0, 0)
    with pytest.raises(ExecutorLost, match="sequence 7 samples, but it never began"):
        executor.run(stranger)
    with pytest.raises(ExecutorLost, match="not running"):
        executor.run(first_step())


def test_a_running_step_can_be_broken_off():
    slow = SupervisedExecutor(SLOW, step_timeout_s=60)
    slow.start()
    threading.Timer(0.2, slow.interrupt).start()
    started = time.monotonic()
    with pytest.raises(ExecutorLost, match="SIGKILL"):
        slow.run(first_step())
    assert time.monotonic() - started < 20
    slow.close()


def test_ctrl_c_for_the_whole_process_group_leaves_the_child_to_its_parent(executor):
    os.kill(executor.pid, signal.SIGINT)
    os.kill(executor.pid, signal.SIGTERM)
    assert executor.run(first_step()).results


def test_a_child_that_cannot_start_says_why():
    bad = SupervisedExecutor(partial(SimulatedExecutor, SimulatedConfig(num_blocks=0)))
    with pytest.raises(ConfigError, match="num_blocks"):
        bad.start()
    assert bad.pid is None


@pytest.mark.slow
def test_losses_far_apart_are_a_loop_too_when_no_step_succeeds_between(executor, monkeypatch):
    monkeypatch.setattr("headway.engine.supervisor.CRASH_WINDOW_S", -1.0)
    executor.restart()
    executor.restart()
    with pytest.raises(ModelError, match="in a row"):
        executor.restart()


def test_a_loss_while_starting_is_one_loss_and_is_tried_again(executor, monkeypatch):
    exchange = executor._exchange
    fates = iter([ExecutorLost("killed while starting")])

    def once_lost(*arguments):
        for fate in fates:
            raise fate
        return exchange(*arguments)

    monkeypatch.setattr(executor, "_exchange", once_lost)
    executor.restart()
    assert executor.run(first_step()).results


def test_who_is_interrupted_while_starting_does_not_start_again(executor, monkeypatch):
    def interrupted(*_):
        executor.interrupt()
        raise ExecutorLost("killed")

    monkeypatch.setattr(executor, "_exchange", interrupted)
    with pytest.raises(ModelError, match="being stopped"):
        executor.restart()
    assert executor.pid is None


@pytest.mark.slow
def test_a_successful_step_between_losses_ends_the_row(executor, monkeypatch):
    monkeypatch.setattr("headway.engine.supervisor.CRASH_WINDOW_S", -1.0)
    for _ in range(CRASH_LIMIT + 1):
        executor.restart()
        assert executor.run(first_step()).results


def test_a_child_that_stops_reading_is_caught_while_it_is_written_to():
    stopped = SupervisedExecutor(FAST, step_timeout_s=0.5)
    stopped.start()
    assert stopped.pid is not None
    os.kill(stopped.pid, signal.SIGSTOP)
    step = first_step()
    step.dropped = list(range(2_000_000))  # more than a socket buffers
    with pytest.raises(ExecutorLost, match="did not compute step 1 within"):
        stopped.run(step)
    stopped.close()


def test_a_crash_loop_stays_down_and_says_so(executor):
    for _ in range(CRASH_LIMIT - 1):
        executor.restart()
    with pytest.raises(ModelError, match="stays down"):
        executor.restart()
    assert executor.pid is None


def test_the_child_leaves_when_its_parent_closes(executor):
    pid = executor.pid
    executor.close()
    executor.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
