"""The queue between the engine's thread and the copy thread."""

from blockyard.common.messages.attach import MAX_KEYS
from blockyard.common.messages.states import CopyState
from blockyard.engine.job_queue import MAX_QUEUED, JobQueue, QueuedJob
from blockyard.engine.jobs import BlockRange, CopyJob, CopyKind, CopyResult


def job(number: int, kind: CopyKind = "store", keys: int = 1) -> QueuedJob:
    return QueuedJob(CopyJob(number, kind, [bytes(32)] * keys, [BlockRange([0])] * keys))


def outcomes(queue: JobQueue) -> list[tuple[int, list[CopyState]]]:
    return [(result.job, result.states) for result in queue.take_results(0.0)]


def open_queue() -> JobQueue:
    queue = JobQueue()
    queue.set_open(True)
    return queue


def test_loads_go_first() -> None:
    queue = open_queue()
    for queued in (job(1), job(2, "load"), job(3), job(4, "load")):
        queue.put(queued)
    order = []
    while (queued := queue.take(0)) is not None:
        order.append(queued.job.job)
        queue.ended(CopyResult(queued.job.job, queued.job.kind))
    assert order == [2, 4, 1, 3]


def test_a_closed_queue_answers_at_once() -> None:
    queue = JobQueue()
    queue.put(job(1, "load", keys=2))
    assert outcomes(queue) == [(1, [CopyState.DETACHED] * 2)]


def test_a_full_queue_refuses_what_comes_next() -> None:
    queue = open_queue()
    for number in range(MAX_QUEUED):
        queue.put(job(number))
        queue.put(job(1000 + number, "load"))
    assert outcomes(queue) == []
    queue.put(job(5000))
    queue.put(job(5001, "load"))
    assert outcomes(queue) == [(5000, [CopyState.NO_ROOM]), (5001, [CopyState.DEADLINE])]
    assert [unsaid.job for unsaid in queue.take_unsaid()] == [5000], "the worker must hear of the store"


def test_a_job_with_more_keys_than_a_message_holds_is_refused() -> None:
    queue = open_queue()
    queue.put(job(1, "load", keys=MAX_KEYS + 1))
    assert queue.take(0) is None
    assert len(outcomes(queue)) == 1


def test_waiting_cancels_what_has_not_begun() -> None:
    queue = open_queue()
    queue.put(job(1))
    queue.put(job(2))
    queue.put(job(3, "load"))
    assert queue.wait({1, 3, 99}, 0.0)
    assert sorted(outcomes(queue)) == [(1, [CopyState.CANCELLED]), (3, [CopyState.CANCELLED])]
    assert [unsaid.job for unsaid in queue.take_unsaid()] == [1]
    kept = queue.take(0)
    assert kept is not None and kept.job.job == 2


def test_a_running_job_is_waited_for_and_cut_at_the_end_of_patience() -> None:
    queue = open_queue()
    queue.put(job(1))
    assert queue.take(0) is not None
    assert queue.wait({2}, 0.0)
    assert not queue.cut
    assert not queue.wait({1}, 0.01)
    assert queue.cut
    queue.ended(CopyResult(1, "store", [CopyState.CANCELLED]))
    assert queue.wait({1}, 0.0)
    queue.put(job(2))
    assert queue.take(0) is not None
    assert not queue.cut, "the next job is not the one that was cut"


def test_the_end_of_a_session_ends_every_queued_job() -> None:
    queue = open_queue()
    queue.put(job(1))
    queue.put(job(2, "load"))
    queue.set_open(False)
    assert sorted(outcomes(queue)) == [(1, [CopyState.DETACHED]), (2, [CopyState.DETACHED])]
    assert queue.take(0) is None
