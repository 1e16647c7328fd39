"""Why an artifact is as it is, told from a run's log."""

from __future__ import annotations

import pytest

from runstone.core import payloads
from runstone.errors import NotFound
from runstone.pipeline.why import Source, Why, why
from tests.unit.core.build import HASH, OTHER_HASH, Story

THIRD_HASH = "c" * 64


def written(name: str, sha256: str, item: str | None = None) -> payloads.ArtifactWritten:
    return payloads.ArtifactWritten(
        name=name, path=f"artifacts/{name}", sha256=sha256, writer_worker="draft", item=item
    )


def story() -> Story:
    """`b` is made from `a`, and `c` from `b`."""
    told = Story.running()
    told.record(
        written("a", HASH),
        payloads.WorkItemStarted(item="draft/b", worker="draft", inputs={"a": HASH}),
        written("b", OTHER_HASH, "draft/b"),
        payloads.WorkItemCompleted(item="draft/b", outputs=("b",)),
        payloads.WorkItemStarted(item="draft/c", worker="draft", inputs={"b": OTHER_HASH}),
        written("c", THIRD_HASH, "draft/c"),
    )
    return told


def ask(told: Story, name: str) -> Why:
    assert told.state.pipeline is not None
    return why(name, told.state.pipeline, told.run_events)


def test_what_made_it_from_what_and_what_needs_it() -> None:
    told = story()
    found = ask(told, "b")
    assert (found.item, found.tries, found.writer_worker) == ("draft/b", 1, "draft")
    assert (found.path, found.sha256, found.written_at) == ("artifacts/b", OTHER_HASH, told.now)
    assert found.made_from == (Source(name="a", sha256=HASH, changed=False),)
    assert found.needed_by == ("c",)
    assert (found.stale, found.reasons) == (False, ())


def test_a_file_that_somebody_touched_is_told_wherever_it_is_upstream() -> None:
    told = story()
    assert told.state.pipeline is not None
    on_disk: dict[str, str | None] = {"a": HASH, "b": OTHER_HASH, "c": THIRD_HASH}

    def touched(name: str) -> tuple[str, ...]:
        assert told.state.pipeline is not None
        return why(name, told.state.pipeline, told.run_events, on_disk.get).touched

    assert touched("c") == ()
    on_disk["a"] = THIRD_HASH
    assert [touched(name) for name in "abc"] == [("a",)] * 3
    on_disk["b"] = None
    assert touched("c") == ("a", "b")
    assert touched("a") == ("a",)
    told.record(payloads.ArtifactInvalidated(name="b", because="b", reason="its file is gone"))
    assert touched("c") == ("a",), "the log knows of b"


def test_something_that_no_item_made() -> None:
    found = ask(story(), "a")
    assert (found.item, found.tries, found.made_from) == (None, 0, ())


def test_why_it_is_stale_up_to_the_first_cause() -> None:
    told = story()
    told.record(
        payloads.ArtifactInvalidated(name="b", because="a", reason="a changed"),
        payloads.ArtifactInvalidated(name="c", because="b"),
        written("a", THIRD_HASH),
    )
    found = ask(told, "c")
    assert found.stale
    assert found.reasons == ("c: because of b", "b: a changed")
    assert ask(told, "b").made_from == (Source(name="a", sha256=HASH, changed=True),)


def test_one_that_was_made_again_since_is_no_cause() -> None:
    told = story()
    told.record(
        payloads.ArtifactInvalidated(name="b", because="a", reason="a changed"),
        payloads.ArtifactInvalidated(name="c", because="b", reason="b is stale"),
        written("b", OTHER_HASH, "draft/b"),
    )
    assert ask(told, "c").reasons == ("c: b is stale",)


def test_one_whose_own_file_is_gone() -> None:
    told = story()
    told.record(payloads.ArtifactInvalidated(name="b", because="b", reason="its file is gone"))
    assert ask(told, "b").reasons == ("b: its file is gone",)


def test_an_artifact_that_is_not_there() -> None:
    with pytest.raises(NotFound, match="no artifact 'x': it has a, b, c"):
        ask(story(), "x")
