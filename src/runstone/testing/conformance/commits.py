"""The suite of `Host.commit` and `Host.load`: all or nothing, compared, fenced, repeatable."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given

from runstone.core import commands
from runstone.core.chain import event_hash, portable
from runstone.core.commit import Commit
from runstone.core.decide import Decision
from runstone.core.events import Event
from runstone.errors import CommitRefused, DuplicateKey, StaleFence, StaleSequence
from runstone.ports.cases import carry_out, catch_up, load_case, load_cases
from runstone.ports.store import Committed, Place
from runstone.testing.conformance.rules import tampered
from runstone.testing.conformance.scene import Scene, Suite, meanwhile
from runstone.testing.conformance.tapes import lengths, random_histories, tapes
from runstone.testing.histories import five_step_history, legal_history
from runstone.testing.hostile import PAYLOADS


class CommitSuite(Suite):
    """How a commit is written, or refused."""

    # All or nothing

    async def test_a_commit_of_two_streams_is_written_whole(self, scene: Scene) -> None:
        case = await scene.running()
        await scene.audit(case.signal.stream_id, case.run.stream_id)
        for state in (case.signal, case.run):
            stream = await scene.store.load(scene.tenant_id, state.stream_id)
            assert stream is not None
            assert (stream.head.last_seq, stream.head.head) == (state.last_seq, state.head)
            assert stream.head.last_at == state.last_at

    @pytest.mark.parametrize("stale", [0, 1])
    async def test_nothing_is_written_when_one_stream_is_stale(self, scene: Scene, stale: int) -> None:
        """§STO-13: whichever of the streams it is."""
        cases = [await scene.running(), await scene.running()]
        decisions = [scene.decide(case, scene.set_variable()) for case in cases]
        await scene.carry(cases[stale], scene.set_variable(2))
        with pytest.raises(StaleSequence) as refusal:
            await scene.store.commit(Commit.of(*(decision.commit for decision in decisions)))
        assert refusal.value.stream_id == cases[stale].run.stream_id
        untouched = cases[1 - stale]
        assert len(await scene.everything(untouched.run.stream_id)) == untouched.run.last_seq
        await scene.audit(*(case.run.stream_id for case in cases))

    async def test_nothing_is_written_when_one_stream_has_a_duplicate(self, scene: Scene) -> None:
        case = await scene.running()
        first = scene.decide(case, scene.set_variable()).commit
        new = scene.decide(scene.new_case(), scene.receive("the same"), scene.create())
        await scene.carry(scene.new_case(), scene.receive("the same"))
        with pytest.raises(DuplicateKey):
            await scene.store.commit(Commit.of(first, new.commit))
        assert len(await scene.everything(case.run.stream_id)) == case.run.last_seq
        for state in (new.case.signal, new.case.run):
            assert await scene.store.load(scene.tenant_id, state.stream_id) is None
        await scene.audit(case.run.stream_id)

    async def test_acknowledged_commits_are_there_after_a_restart(self, scene: Scene) -> None:
        """§STO-17, §STO-18."""
        history = five_step_history(tenant_id=scene.tenant_id, clock=scene.clock, new_id=scene.new_id)
        await scene.carry_all(history)
        case = history[-1].case
        streams = [case.signal.stream_id, case.run.stream_id]
        before = [await scene.store.load(scene.tenant_id, stream_id) for stream_id in streams]
        await scene.reopen()
        assert [await scene.store.load(scene.tenant_id, stream_id) for stream_id in streams] == before
        assert {event.id for commit in scene.acknowledged for event in commit.events} == {
            event.id for stream in before if stream for event in stream.events
        }
        await scene.audit(*streams)

    async def test_one_bad_commit_among_many_fails_alone(self, scene: Scene) -> None:
        """§STO-16."""
        cases = [await scene.running() for _ in range(20)]
        commits = [scene.decide(case, scene.set_variable()).commit for case in cases]
        await scene.carry(cases[7], scene.set_variable(2))
        commits[13] = tampered(commits[13], id=cases[0].run.last_event)
        outcomes = await asyncio.gather(*map(scene.store.commit, commits), return_exceptions=True)
        assert isinstance(outcomes[7], StaleSequence)
        assert isinstance(outcomes[13], DuplicateKey)
        written = [place for place, outcome in enumerate(outcomes) if isinstance(outcome, Committed)]
        assert written == [place for place in range(20) if place not in (7, 13)]
        for place, case in enumerate(cases):
            events = await scene.everything(case.run.stream_id)
            assert len(events) == case.run.last_seq + (place != 13)

    # Compared and fenced

    async def test_a_stale_sequence_is_refused_and_can_be_decided_again(self, scene: Scene) -> None:
        """§ORD-11."""
        case = await scene.running()
        late = scene.decide(case, scene.set_variable(1))
        case = await scene.carry(case, scene.set_variable(2))
        with pytest.raises(StaleSequence) as refusal:
            await scene.store.commit(late.commit)
        assert refusal.value.stream_id == case.run.stream_id
        assert refusal.value.actual == case.run.last_seq
        await scene.carry(case, scene.set_variable(1))
        assert len(await scene.everything(case.run.stream_id)) == case.run.last_seq + 1

    async def test_a_stream_is_opened_once(self, scene: Scene) -> None:
        new = scene.new_case()
        decisions = [scene.decide(new, scene.receive(), scene.create()) for _ in range(10)]
        outcomes = await asyncio.gather(
            *(scene.store.commit(decision.commit) for decision in decisions), return_exceptions=True
        )
        assert sum(isinstance(outcome, Committed) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, CommitRefused) for outcome in outcomes) == 9
        await scene.audit(new.signal.stream_id, new.run.stream_id)

    async def test_writers_who_decide_again_all_get_through(self, scene: Scene) -> None:
        """Many writers on one stream: none is lost, none leaves a gap (§ORD-7)."""
        case = await scene.running()

        async def write(value: int) -> Decision:
            return await carry_out(
                scene.store,
                scene.tenant_id,
                case.run.stream_id,
                scene.set_variable(value),
                context=scene.context(),
            )

        decisions = await asyncio.gather(*map(write, range(20)))
        events = await scene.everything(case.run.stream_id)
        assert len(events) == case.run.last_seq + 20
        assert {e.id for d in decisions for e in d.commit.events} <= {event.id for event in events}
        await scene.audit(case.run.stream_id)

    async def test_a_stale_fence_is_refused(self, scene: Scene) -> None:
        """§ORD-12: the former owner of a run cannot write to it."""
        case = await scene.queued()
        mine = await scene.claimed(case, "w1")
        await scene.store.release("w1")
        theirs = await scene.claimed(case, "w2")
        with pytest.raises(StaleFence) as refusal:
            await scene.carry(mine, commands.StartRun())
        assert refusal.value.stream_id == case.run.stream_id
        assert (refusal.value.fence, refusal.value.actual) == (mine.run_fence, theirs.run_fence)
        assert len(await scene.everything(case.run.stream_id)) == case.run.last_seq
        await scene.carry(theirs, commands.StartRun())

    async def test_cancelling_shuts_the_owner_out(self, scene: Scene) -> None:
        """§TRN-19."""
        case = await scene.claimed(await scene.queued())
        case = await scene.carry(case, commands.StartRun())
        cancelled = await scene.carry(case, scene.control("CANCEL"))
        late = scene.decide(case, scene.set_variable())
        with pytest.raises(CommitRefused):
            await scene.store.commit(late.commit)
        stream = await scene.store.load(scene.tenant_id, case.run.stream_id)
        assert stream is not None
        assert stream.head.fence == case.run_fence + 1 == cancelled.run_fence
        await scene.audit(case.signal.stream_id, case.run.stream_id)

    # Submitted again

    async def test_a_commit_that_landed_is_repeated(self, scene: Scene) -> None:
        """§STO-15: whatever has happened since, and after a restart too."""
        case = await scene.queued()
        decision = scene.decide(case, commands.StartRun())
        assert await scene.store.commit(decision.commit) == Committed()
        assert await scene.store.commit(decision.commit) == Committed(repeated=True)
        later = await scene.carry(decision.case, scene.control("CANCEL"))
        assert await scene.store.commit(decision.commit) == Committed(repeated=True)
        await scene.reopen()
        assert await scene.store.commit(decision.commit) == Committed(repeated=True)
        assert len(await scene.everything(case.run.stream_id)) == later.run.last_seq
        await scene.audit(case.signal.stream_id, case.run.stream_id)

    async def test_a_cancellation_that_landed_is_repeated(self, scene: Scene) -> None:
        """It has raised the fence that it carries itself."""
        case = await scene.running()
        decision = scene.decide(case, scene.control("CANCEL"))
        assert await scene.store.commit(decision.commit) == Committed()
        assert await scene.store.commit(decision.commit) == Committed(repeated=True)

    async def test_a_commit_submitted_many_times_at_once_is_written_once(self, scene: Scene) -> None:
        case = await scene.running()
        commit = scene.decide(case, scene.set_variable()).commit
        outcomes = await asyncio.gather(*(scene.store.commit(commit) for _ in range(10)))
        assert sorted(outcome.repeated for outcome in outcomes) == [False] + [True] * 9
        assert len(await scene.everything(case.run.stream_id)) == case.run.last_seq + 1

    async def test_a_commit_that_was_refused_is_not_taken_for_a_repeated_one(self, scene: Scene) -> None:
        case = await scene.running()
        late = scene.decide(case, scene.set_variable(1))
        await scene.carry(case, scene.set_variable(1))
        for _ in range(2):
            with pytest.raises(StaleSequence):
                await scene.store.commit(late.commit)

    # Reading back

    async def test_load_gives_head_and_events_of_one_moment(self, scene: Scene) -> None:
        case = await scene.running()

        async def read() -> None:
            stream = await scene.store.load(scene.tenant_id, case.run.stream_id)
            assert stream is not None
            assert [event.run_seq for event in stream.events] == list(range(1, stream.head.last_seq + 1))
            assert event_hash(stream.events[-1]) == stream.head.head

        async def write() -> None:
            written = case
            for value in range(30):
                written = await scene.carry(written, scene.set_variable(value))

        await meanwhile(write(), read)

    async def test_load_can_leave_out_the_beginning(self, scene: Scene) -> None:
        case = await scene.carry(await scene.running(), *(scene.set_variable(n) for n in range(5)))
        events = await scene.everything(case.run.stream_id)
        for after_seq in range(case.run.last_seq + 2):
            stream = await scene.store.load(scene.tenant_id, case.run.stream_id, after_seq=after_seq)
            assert stream is not None
            assert list(stream.events) == events[after_seq:]
            assert stream.head.last_seq == case.run.last_seq

    async def test_load_finds_nothing_of_another_tenant(self, scene: Scene) -> None:
        """§TEN-6."""
        case = await scene.running()
        assert await scene.store.load(scene.new_id(), case.run.stream_id) is None
        assert await scene.store.load(scene.tenant_id, scene.new_id()) is None
        assert await load_case(scene.store, scene.new_id(), case.run.stream_id) is None

    async def test_many_streams_are_loaded_as_each_alone(self, scene: Scene) -> None:
        """Of several tenants, some of them in part; what there is not, and what is another's, is none."""
        cases = [await scene.carry(await scene.running(), scene.set_variable()) for _ in range(3)]
        other = scene.for_tenant(scene.new_id())
        cases.append(await other.running())
        places = [
            Place(state.tenant_id, state.stream_id, after_seq)
            for case in cases
            for state in (case.run, case.signal)
            for after_seq in (0, 2, state.last_seq, state.last_seq + 1)
        ]
        places.insert(5, Place(scene.tenant_id, scene.new_id()))
        places.insert(9, Place(other.tenant_id, cases[0].run.stream_id))
        alone = [
            await scene.store.load(place.tenant_id, place.stream_id, after_seq=place.after_seq)
            for place in places
        ]
        assert list(await scene.store.load_many(places)) == alone
        assert [alone[5], alone[9]] == [None, None]
        assert list(await scene.store.load_many([])) == []

    async def test_many_streams_are_loaded_as_of_one_moment(self, scene: Scene) -> None:
        """A run and its signal end in one commit: nobody sees the one without the other."""
        cases = [await scene.running() for _ in range(8)]

        async def end() -> None:
            for case in cases:
                await scene.carry(case, commands.CancelRun(exit_reason="ENOUGH"))

        async def read() -> None:
            places = [Place(s.tenant_id, s.stream_id) for c in cases for s in (c.run, c.signal)]
            found = await scene.store.load_many(places)
            for case, run, signal in zip(cases, found[::2], found[1::2], strict=True):
                assert run is not None
                assert signal is not None
                ended = run.head.last_seq > case.run.last_seq
                assert ended == (signal.head.last_seq > case.signal.last_seq)
                assert len(run.events) == run.head.last_seq
                assert len(signal.events) == signal.head.last_seq

        await meanwhile(end(), read)

    async def test_many_cases_are_loaded_as_each_alone(self, scene: Scene) -> None:
        cases = [await scene.running() for _ in range(3)]
        runs = [(case.run.tenant_id, case.run.stream_id) for case in cases]
        unknown = [(scene.tenant_id, scene.new_id()), (scene.tenant_id, cases[0].signal.stream_id)]
        assert await load_cases(scene.store, [*runs, *unknown]) == [*cases, None, None]
        later = [await scene.carry(cases[0], scene.set_variable()), *cases[1:]]
        assert await catch_up(scene.store, cases) == later

    async def test_a_case_is_loaded_as_it_was_decided(self, scene: Scene) -> None:
        history = five_step_history(tenant_id=scene.tenant_id, clock=scene.clock, new_id=scene.new_id)
        for decision in history:
            await scene.store.commit(decision.commit)
            loaded = await load_case(scene.store, scene.tenant_id, decision.case.run.stream_id)
            assert loaded == decision.case

    async def test_hostile_payloads_are_committed_byte_for_byte(self, scene: Scene) -> None:
        """§PAY-15."""
        case = await scene.running()
        sent: list[Event] = []
        for payload in PAYLOADS:
            decision = scene.decide(case, commands.SetVariable(name="v", value=payload))
            await scene.store.commit(decision.commit)
            sent += decision.commit.events
            case = decision.case
        await scene.reopen()
        stored = (await scene.everything(case.run.stream_id))[-len(sent) :]
        assert [bytes(event.event_data) for event in stored] == [bytes(event.event_data) for event in sent]
        assert [portable(event) for event in stored] == sent

    @random_histories
    @given(tape=tapes, length=lengths)
    async def test_any_history_can_be_committed(self, scene: Scene, tape: bytes, length: int) -> None:
        """§ENG-2, §STO-9: what comes back is what was decided, and proves itself."""
        here = scene.for_tenant(scene.new_id())
        history = legal_history(
            tape,
            tenant_id=here.tenant_id,
            clock=here.clock,
            new_id=here.new_id,
            length=length,
            pipeline=length % 2 == 1,
        )
        done = await here.carry_all(history)
        case = done[-1].case
        for state in (case.signal, case.run):
            decided = [e for d in done for e in d.commit.events if e.stream_id == state.stream_id]
            stored = await here.everything(state.stream_id)
            assert [portable(event) for event in stored] == decided
            if decided:
                await here.audit(state.stream_id)
