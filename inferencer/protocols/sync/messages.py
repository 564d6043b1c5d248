"""Turns the program's values into messages of paramsync.v1. Enumerations have the same names there."""

from __future__ import annotations

from paramsync.host.processes import Memory, memory_of
from paramsync.rpc.server import of_value
from paramsync.status import Event, EventKind, Status
from paramsync.v1 import sync_pb2 as pb

from ...serving.metrics import Load
from ...serving.worker_status import Replaced, WorkerStatus

_PHASES = {
    "mapping": pb.SyncProgress.RESTORING,
    "verifying": pb.SyncProgress.VERIFYING,
    "warming": pb.SyncProgress.WARMING,
}


def of_status(status: Status) -> pb.ModelStatus:
    back = status.back
    return pb.ModelStatus(
        model=status.model,
        store=str(status.store),
        state=status.state.name,
        published=None if status.published is None else of_value(pb.Version, status.published),
        serving=None if status.serving is None else of_value(pb.Version, status.serving),
        resident=status.resident,
        quarantined=[
            pb.Quarantine(number=case.number, reason=case.reason, since=case.since) for case in status.quarantined
        ],
        lag_seconds=status.lag_seconds,
        lag_steps=status.lag_steps,
        lag_versions=status.lag_versions,
        pinned=status.pinned,
        publisher=None if status.publisher is None else status.publisher.state.name,
        publisher_since=None if status.publisher is None else status.publisher.since,
        reason=status.reason,
        swaps=status.swaps,
        restore_seconds=status.restore_seconds,
        swap_skew_seconds=status.swap_skew_seconds,
        next=status.next,
        next_at=status.next_at,
        labels=status.labels,
        restores=status.restores,
        quarantines=status.quarantines,
        not_served=status.not_served,
        signed_by=status.signed_by,
        serving_age_seconds=status.serving_age_seconds,
        since_publication_seconds=status.since_publication_seconds,
        rollback_to=None if back is None else back.number,
        rollback_served=back is not None and back.served,
        bucket=None if status.bucket is None else of_value(pb.Bucket, status.bucket),
        parts=[pb.Part(model=model, version=of_value(pb.Version, version)) for model, version in status.parts],
    )


def of_worker(status: WorkerStatus) -> pb.WorkerStatus:
    memory = Memory(0, 0) if status.pid is None else memory_of(status.pid)
    return pb.WorkerStatus(
        number=status.number,
        state=status.state.name,
        since=status.since,
        pid=status.pid,
        resident_bytes=memory.resident,
        private_bytes=memory.private,
        restarts=status.restarts,
    )


def of_load(model: str, load: Load) -> pb.ModelLoad:
    return pb.ModelLoad(
        model=model,
        answered=load.answered.count,
        refused=load.refused,
        seconds=load.answered.sum,
        bounds=load.answered.bounds,
        latencies=load.answered.buckets,
    )


def of_replaced(replaced: Replaced) -> pb.ReplacedWorker:
    return pb.ReplacedWorker(
        number=replaced.number, before=replaced.before, after=replaced.after, seconds=replaced.seconds
    )


def of_progress(event: Event) -> pb.SyncProgress:
    """Translate the progress of a restore."""
    progress = event.progress
    if progress is None:
        return pb.SyncProgress(phase=pb.SyncProgress.RESTORING, version=event.version.number)
    return pb.SyncProgress(
        phase=_PHASES[progress.phase],
        version=event.version.number,
        bytes_done=progress.bytes_done,
        bytes_total=progress.bytes_total,
        variables_done=progress.variables_done,
        variables_total=progress.variables_total,
    )


def of_event(event: Event) -> pb.Event | None:
    """Translate an event. Returns None for progress of a restore, which `of_progress` translates."""
    if event.kind is EventKind.RESTORING:
        return None
    return pb.Event(
        kind=event.kind.name,
        model=event.model,
        version=of_value(pb.Version, event.version),
        reason=event.reason,
        at=event.at,
        restore_seconds=event.restore_seconds,
    )
