"""Every exception Runstone raises, in one tree.

    RunstoneError
    ├── InvalidPayload            what cannot be stored, and where (a JSON pointer)
    ├── StateTransitionError      an aggregate may not go from here to there
    ├── CommandRefused            a command that makes no sense for the state it met
    ├── UnreadableEvent           the fold of this stream has to stop
    │   ├── UnknownEventType
    │   ├── UnknownEventVersion
    │   ├── ForeignEvent
    │   └── SequenceGap
    ├── ArtifactInvalid           an artifact's name, file or content is not what it has to be
    ├── RegistrationError         an app that cannot work as it is written
    ├── UseRunGather              a durable call from a task that replay would not recognize
    ├── UseRunFirst               a durable call that something else than the engine cancelled
    ├── UseRunCall                a run that every replay of its starter would start once more
    ├── StepFailed                what a handler sees of a step that has failed for good
    │   ├── WaitTimeout
    │   └── EffectFailed
    ├── RunFailed                 what a caller sees of a run that did not complete
    │   └── RunCancelled
    ├── SignalConflict            the same source id with other content
    ├── ControlRefused            a control signal that was not let through
    │   └── TooManyControls       not now: say it again later
    ├── TerminalError             raised by users: do not try this again
    ├── RetryableError            raised by users: try this again
    ├── BundleInvalid             a bundle whose bytes do not add up
    ├── SettingsInvalid
    └── StoreError
        ├── NotFound
        │   └── RunArchived       it was here once: `where` says in which bundle it is
        ├── CommitRefused         nothing was written: read what you missed, decide again
        │   ├── StaleSequence
        │   ├── StaleFence        do not retry: somebody else owns the run now
        │   ├── StaleClaim        do not retry: somebody else has the effect now
        │   └── DuplicateKey
        ├── OutcomeUnknown        it may have been written: resubmit the same commit
        ├── FeedEpochChanged      a feed position of another history: read on from `resume`
        └── StoreUnusable         nothing was written, and nothing can be until somebody acts
            ├── StoreBusy
            ├── StoreClosed
            ├── StoreCorrupt
            │   └── SnapshotInvalid   the log of a run in a folder is broken, and where
            ├── StoreFull
            ├── StoreReadOnly
            └── StoreTooNew

The first line of a class's docstring is its default message. Values stay as attributes.
"""

from __future__ import annotations

from datetime import datetime, timedelta


class RunstoneError(Exception):
    """Something in Runstone went wrong."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or type(self).__name__).strip().splitlines()[0])

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross process borders with their values, however they are made."""
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[RunstoneError], args: tuple[object, ...], values: dict[str, object]) -> RunstoneError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(values)
    return error


class InvalidPayload(RunstoneError):
    """This value cannot be stored."""

    def __init__(self, pointer: str, reason: str) -> None:
        self.pointer = pointer
        self.reason = reason
        super().__init__(f"{reason} (at {pointer!r})" if pointer else reason)


class StateTransitionError(RunstoneError):
    """An aggregate was asked to go to a state that it cannot reach from where it is."""

    def __init__(self, aggregate: str, aggregate_id: str, from_state: str | None, to_state: str) -> None:
        self.aggregate = aggregate
        self.aggregate_id = aggregate_id
        self.from_state = from_state
        self.to_state = to_state
        origin = from_state or "nothing (it does not exist)"
        super().__init__(f"Invalid transition of {aggregate} {aggregate_id}: {origin} → {to_state}")


class CommandRefused(RunstoneError):
    """The command does not fit the state it was given to."""


class UnreadableEvent(RunstoneError):
    """An event cannot be read: the fold of its stream halts here."""


class UnknownEventType(UnreadableEvent):
    """This event's type is not in the catalogue."""

    def __init__(self, event_type: str) -> None:
        self.event_type = event_type
        super().__init__(
            f"Unknown event type {event_type!r}: the fold of this stream halts. "
            "It was probably written by a newer version of Runstone: upgrade this one."
        )


class UnknownEventVersion(UnreadableEvent):
    """This event's version is newer than the catalogue's."""

    def __init__(self, event_type: str, event_version: int, known: int) -> None:
        self.event_type = event_type
        self.event_version = event_version
        self.known = known
        super().__init__(
            f"{event_type} has version {event_version}, and this Runstone reads up to {known}: upgrade it."
        )


class ForeignEvent(UnreadableEvent):
    """This event belongs to another stream or another tenant."""

    def __init__(self, event_id: str, stream_id: str) -> None:
        self.event_id = event_id
        self.stream_id = stream_id
        super().__init__(f"Event {event_id} does not belong to stream {stream_id}")


class SequenceGap(UnreadableEvent):
    """PROJECTOR_GAP_DETECTED: events are missing from the middle of a stream."""

    def __init__(self, stream_id: str, expected: int, found: int) -> None:
        self.stream_id = stream_id
        self.expected = expected
        self.found = found
        super().__init__(
            f"PROJECTOR_GAP_DETECTED in stream {stream_id}: expected run_seq {expected}, found {found}. "
            "The projection of this stream halts; run `runstone verify` on it."
        )


class ArtifactInvalid(RunstoneError):
    """An artifact is not what it has to be."""


class RegistrationError(RunstoneError):
    """The app cannot work as it is written."""


class UseRunGather(RunstoneError):
    """A durable call was made from a task of its own: use `run.gather` or `run.first` for branches."""


class UseRunFirst(RunstoneError):
    """A durable call was cancelled by asyncio: give the step a `timeout=`, or race it with `run.first`."""


class UseRunCall(RunstoneError):
    """A handler's replay would start another run: call `app.start` from a tool, or give it a `key=`."""


class StepFailed(RunstoneError):
    """A step has failed for good."""

    def __init__(self, step_key: str, category: str, code: str, message: str) -> None:
        self.step_key = step_key
        self.category = category
        self.code = code
        self.reason = message
        super().__init__(f"{step_key}: {message} ({code})")


class WaitTimeout(StepFailed):
    """Nobody answered in time."""


class EffectFailed(StepFailed):
    """An effect that the handler waited for was not done."""


class RunFailed(RunstoneError):
    """The run did not complete."""

    def __init__(self, run_id: str, exit_reason: str, message: str = "") -> None:
        self.run_id = run_id
        self.exit_reason = exit_reason
        self.reason = message
        super().__init__(f"Run {run_id}: {exit_reason}" + (f" ({message})" if message else ""))


class RunCancelled(RunFailed):
    """The run was cancelled."""


class SignalConflict(RunstoneError):
    """The same signal came before with other content: the first one stands."""


class ControlRefused(RunstoneError):
    """The control signal was refused."""


class TooManyControls(ControlRefused):
    """The run has had too many control signals of late: send it again later."""

    def __init__(self, message: str | None = None, *, retry_after: timedelta | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class TerminalError(RunstoneError):
    """Trying again cannot help."""


class RetryableError(RunstoneError):
    """Trying again may help."""

    retry_after: timedelta | None = None

    def __init__(self, message: str | None = None, *, retry_after: timedelta | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class BundleInvalid(RunstoneError):
    """The bundle is damaged or was changed."""


class SettingsInvalid(RunstoneError):
    """A setting has a value that makes no sense."""


class StoreError(RunstoneError):
    """The store could not do what it was asked."""


class NotFound(StoreError):
    """There is no such thing in this store for this tenant."""


class RunArchived(NotFound):
    """This was archived, and is no longer in the store."""

    def __init__(self, stream_id: str, where: str, removed_at: datetime, what: str = "Run") -> None:
        self.stream_id = stream_id
        self.where = where
        self.removed_at = removed_at
        super().__init__(
            f"{what} {stream_id} was archived on {removed_at:%Y-%m-%d} and is in {where}: "
            "`runstone import` brings it back from there"
        )


class CommitRefused(StoreError):
    """The commit was refused and wrote nothing."""


class StaleSequence(CommitRefused):
    """The stream has moved on since this commit was decided: read what is new and decide again."""

    def __init__(self, stream_id: str, expected: int, actual: int) -> None:
        self.stream_id = stream_id
        self.expected = expected
        self.actual = actual
        super().__init__(f"Stream {stream_id} is at {actual}, the commit was decided on {expected}")


class StaleFence(CommitRefused):
    """A newer claim owns this stream: this writer must stop."""

    def __init__(self, stream_id: str, fence: int, actual: int) -> None:
        self.stream_id = stream_id
        self.fence = fence
        self.actual = actual
        super().__init__(f"Stream {stream_id} is fenced at {actual}, the commit carries {fence}")


class StaleClaim(CommitRefused):
    """A newer claim has this effect: what came of the older one is kept as a late outcome."""

    def __init__(self, effect_id: str, fence: int, actual: int | None) -> None:
        self.effect_id = effect_id
        self.fence = fence
        self.actual = actual
        super().__init__(f"Effect {effect_id} is fenced at {actual}, the commit carries {fence}")


class DuplicateKey(CommitRefused):
    """Something with this key exists already."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"Refused, for it exists already: {what}")


class OutcomeUnknown(StoreError):
    """The store failed while making this durable: submit the same commit again to learn its outcome."""


class FeedEpochChanged(StoreError):
    """This feed position is one that the store has never given: read again from `resume`."""

    def __init__(self, epoch: int, resume: object) -> None:
        self.epoch = epoch
        self.resume = resume
        super().__init__(
            f"This store has never given this position of the feed's epoch {epoch}: it was restored from a "
            f"backup, or is another. Read again from {resume}, a place that both know"
        )


class StoreUnusable(StoreError):
    """The store cannot be written to."""


class StoreBusy(StoreUnusable):
    """Another program holds the store's lock: it did not let go in time."""


class StoreClosed(StoreUnusable):
    """The store is closed, or was opened before this process was forked off."""


class StoreCorrupt(StoreUnusable):
    """The store's file is damaged: restore a backup, or import bundles into a new file."""


class SnapshotInvalid(StoreCorrupt):
    """A run's snapshot cannot be made from its log: the log is missing, or broken in its middle."""

    def __init__(self, path: str, line: int | None, reason: str) -> None:
        self.path = path
        self.line = line
        self.reason = reason
        place = path if line is None else f"{path}, line {line}"
        super().__init__(f"SnapshotInvalid: {place}: {reason}")


class StoreFull(StoreUnusable):
    """The disk is full: free some space; nothing that was acknowledged is lost."""


class StoreReadOnly(StoreUnusable):
    """The store's file or folder cannot be written: check its permissions and how the disk is mounted."""


class StoreTooNew(StoreUnusable):
    """The store was written by a newer version of Runstone: upgrade this one."""
