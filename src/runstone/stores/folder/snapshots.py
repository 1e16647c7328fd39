"""`snapshot.json`: the view of a run's log, and what can be wrong with it (§PIP-6, §PIP-7, §PIP-9)."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, NamedTuple

from runstone.core import codec
from runstone.core.fold import RunFold
from runstone.core.pipeline import FolderSnapshot, folder_snapshot
from runstone.core.schemas import schemas
from runstone.errors import InvalidPayload, StoreUnusable

NAME: Final = "snapshot.json"


class Problem(NamedTuple):
    """Why a snapshot's file cannot be used; `usual` is what any crash leaves behind."""

    reason: str
    usual: bool = False


def view(fold: RunFold) -> FolderSnapshot:
    """The snapshot of a run as it is now."""
    state = fold.pipeline.freeze() if fold.pipeline else None
    return folder_snapshot(fold.stream_id, fold.last_seq, fold.seal_head(), state)


def content(fold: RunFold) -> bytes:
    """The bytes of its file: canonical, so that the same log gives the same bytes."""
    return codec.encode(view(fold))


def problem(found: bytes | None, fold: RunFold) -> Problem | None:
    """What is wrong with a snapshot's file, if anything is: by its schema, and against the log."""
    if found is None:
        return Problem("it is missing", usual=True)
    try:
        value = codec.parse(found)
    except InvalidPayload as error:
        return Problem(f"it is no JSON: {error}")
    wrong = next(_validator().iter_errors(value), None)
    if wrong is not None:
        place = "".join(f"/{part}" for part in wrong.absolute_path)
        return Problem(f"it does not follow its schema at {place or 'its root'}: {wrong.message}")
    run_id, held = value["run_id"], value["last_seq"]
    if run_id != fold.stream_id:
        return Problem(f"it is of run {run_id}")
    if held > fold.last_seq:
        return Problem(f"it holds {held} events, and the log has only {fold.last_seq}: events were lost")
    if held < fold.last_seq:
        return Problem(f"it holds {held} events, and the log has {fold.last_seq}", usual=True)
    if value["head"] != fold.seal_head():
        return Problem(
            f"it has another hash of line {held} than the log: one of the two was changed, "
            f"and nothing else vouches for the last line"
        )
    return None if found == content(fold) else Problem("it is not what its log adds up to")


@cache
def _validator() -> Any:
    """A validator of the published schema; `jsonschema` comes with the extra `pipeline`."""
    try:
        from jsonschema import Draft202012Validator
    except ImportError as error:
        raise StoreUnusable(
            "Snapshots are checked with jsonschema, which is not here: pip install 'runstone[pipeline]'"
        ) from error
    return Draft202012Validator(schemas()["snapshot.schema.json"])
