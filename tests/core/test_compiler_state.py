"""What a compiler remembers of its placements: what stands, what comes back, what a step replaces (D.H)."""

from __future__ import annotations

import msgspec
import pytest

from contextbus.core.compile import compile_context
from contextbus.core.compiler_state import (
    Standing,
    StepOutcome,
    drop_waiting,
    keep_texts,
    key_of,
    read_state,
    restorable,
    settle,
    sort_placed,
)
from contextbus.core.compiler_step import (
    CompilerOptions,
    StepRequest,
    check_request,
    compile_input,
    outcome_of,
    plan_overflow,
    plan_step,
)
from contextbus.core.context_input import ContextInput
from contextbus.core.estimate import make_estimator
from contextbus.core.request_history import RequestHistory, SkillLoad
from contextbus_protocol.codec import encode_json
from contextbus_protocol.compiler_state import ContextCompilerState, RequestPrefix, SentBlock
from contextbus_protocol.digests import digest_text
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.values import (
    Candidate,
    Model,
    PlacedEntry,
    RefreshOptions,
    SourceResult,
    SourceSpec,
    SourceStatus,
)


def placed(record: str, step: int, revision: int | None = None, text: str = "a", source: str = "rag") -> PlacedEntry:
    return PlacedEntry(source, record, digest_text(text), step, step + 1, 10, revision)


def block(step: int) -> SentBlock:
    return SentBlock("append", f"block {step}", step, step + 1)


def candidate(record: str, text: str = "a", revision: int | None = None, *, mandatory: bool = False) -> Candidate:
    return Candidate(record, text, 0.5, digest_text(text), revision, mandatory=mandatory)


def state_of(*entries: PlacedEntry) -> ContextCompilerState:
    steps = sorted({p.step for p in entries})
    return ContextCompilerState(version=1, passes=len(steps), placed=entries, blocks=tuple(map(block, steps)))


@pytest.mark.rule("D.H.5", "D.H.6", "D.H.9")
@pytest.mark.parametrize(
    ("entries", "present", "live", "gone"),
    [
        ([placed("0", 0)], ["block 0"], [0], []),
        ([placed("0", 0)], [], [], [0]),
        ([placed("0", 0, 1), placed("0", 1, 2)], ["block 0"], [0], [1]),
        ([placed("0", 0, 1), placed("0", 1, 2)], ["block 1"], [1], []),
        ([placed("0", 0, 2), placed("0", 1, 1)], [], [], [0]),
        ([placed("0", 0), placed("0", 1, text="b")], ["block 0"], [0], [1]),
        ([placed("0", 0), placed("0", 1, text="b")], ["block 1"], [1], []),
        ([placed("0", 0), placed("0", 1)], ["block 0"], [0], []),
        ([placed("0", 0), placed("0", 1, source="docs")], ["block 0"], [0], [1]),
    ],
)
def test_the_newest_placement_of_a_record_is_gone_or_stands(
    entries: list[PlacedEntry], present: list[str], live: list[int], gone: list[int]
) -> None:
    standing = sort_placed(state_of(*entries), present)
    assert standing == Standing(tuple(entries[i] for i in live), tuple(entries[i] for i in gone))


@pytest.mark.rule("D.H.5", "D.H.7", "D.C.18")
def test_what_is_gone_comes_back_in_source_order_as_far_as_its_text_is_at_hand() -> None:
    entries = (placed("0", 0), placed("1", 0, 3), placed("0", 0, source="docs"))
    standing = sort_placed(state_of(*entries), ())
    texts = {key_of(p): ("rag", candidate(p.record_id, revision=p.revision)) for p in (entries[2], entries[1])}
    restored = restorable(standing, texts, ("docs", "rag", "other"))  # type: ignore[arg-type]
    assert [(r.source, [c.record_id for c in r.candidates]) for r in restored] == [("docs", ["0"]), ("rag", ["1"])]


@pytest.mark.rule("D.H.5")
def test_texts_are_kept_of_placed_records_only() -> None:
    state = state_of(placed("0", 0))
    found = SourceResult("rag", "rag", candidates=(candidate("0"), candidate("1")))
    failed = msgspec.structs.replace(found, status=SourceStatus.FAILED)
    kept = keep_texts({}, [found], state.placed, state)
    assert list(kept) == [key_of(state.placed[0])]
    assert keep_texts({}, [failed], state.placed, state) == {}
    assert keep_texts(kept, [], (), state_of()) == {}


@pytest.mark.rule("D.H.10", "D.H.7")
def test_what_could_return_and_did_not_waits_for_its_source() -> None:
    state = msgspec.structs.replace(state_of(placed("0", 0), placed("1", 0), placed("2", 1)), last_step=1)
    offers = tuple(candidate(f"{n}", mandatory=n == 1) for n in range(3))
    texts = keep_texts({}, [SourceResult("rag", "rag", candidates=offers)], state.placed, state)
    left = drop_waiting(texts, [SourceResult("rag", "rag", candidates=offers)], state)
    assert [key[1] for key in left] == ["1", "2"]  # mandatory, and placed by the last step
    # offered again without finding room, it goes on waiting
    again = keep_texts(left, [SourceResult("rag", "rag", candidates=offers)], state.placed[1:], state)
    assert [key[1] for key in again] == ["1", "2"]


@pytest.mark.rule("D.H.1", "D.H.2", "D.H.13")
def test_a_state_is_read_back_as_it_was_written() -> None:
    state = ContextCompilerState(
        version=1,
        passes=2,
        last_step=4,
        last_refresh_step=3,
        last_active_task="t1",
        placed=(placed("0", 0, 1),),
        blocks=(block(0),),
        last_package=digest_text(""),
        prefix=RequestPrefix(model="m", system="s", history="h", count=3),
        refresh_requested=True,
        refused_task=(None,),
        absent=("deploy/body",),
        absent_loads=(digest_text(""),),
    )
    plain = msgspec.json.decode(encode_json(state))
    assert plain["version"] == 1
    assert plain["placed"][0].keys() == {"source", "recordId", "digest", "step", "pass", "tokens", "revision"}
    assert plain["blocks"][0] == {"placement": "append", "digest": "block 0", "step": 0, "pass": 1}
    assert read_state(plain) == read_state(state) == state


@pytest.mark.rule("D.H.5", "D.H.6", "D.H.9")
@pytest.mark.parametrize(("step", "kept"), [(1, [0]), (2, [1])])
def test_a_later_step_forgets_what_is_superseded_and_the_same_step_again_does_not(step: int, kept: list[int]) -> None:
    entries = (placed("0", 0, 1), placed("0", 1, 2))
    state = msgspec.structs.replace(state_of(*entries), last_step=1)
    package = compile_context(ContextInput(run_id="r", step=step, input_tokens=1000, used_tokens=0))
    prefix = RequestPrefix(model="m", system="s", history="h", count=0)
    outcome = StepOutcome(package=package, blocks=(), prefix=prefix, prefix_before=None, present=())
    assert settle(state, outcome).placed == tuple(entries[i] for i in kept)


@pytest.mark.rule("D.H.3")
@pytest.mark.parametrize("version", [2, 0, "1", True, None])
def test_a_state_of_another_version_is_refused_as_that(version: object) -> None:
    with pytest.raises(InvalidTypeError, match=r"no compiler state of version 1"):
        read_state({"version": version})


@pytest.mark.rule("D.H.3", "D.T.4")
@pytest.mark.parametrize(
    "change",
    [
        {"placed": [{"source": "rag", "recordId": "0", "digest": "", "step": -1, "pass": 1, "tokens": 1}]},
        {"blocks": [{"placement": "middle", "digest": "", "step": 0, "pass": 1}]},
        {"prefix": {"model": "", "system": "", "history": "", "count": -1}},
        {"prefixBefore": {"model": "", "system": "", "history": "", "count": -1}},
        {"blocks": [{"placement": "append", "digest": "", "step": -1, "pass": 1}]},
        {"blocks": [{"placement": "append", "digest": "", "step": 0, "pass": 2**53}], "lastStep": 0},
        {"blocks": [{"placement": "append", "digest": "", "step": 1, "pass": 1}], "lastStep": 0},
        {"placed": [{"source": "rag", "recordId": "0", "digest": "", "step": 0, "pass": 1, "tokens": 1}]},
        {
            "placed": [
                {"source": "rag", "recordId": "0", "digest": "", "step": 0, "pass": 1, "tokens": 1, "revision": -1}
            ],
            "lastStep": 0,
        },
        {"lastRefreshStep": 1, "lastStep": 0},
        {"absent": "deploy/body"},
        {"lastStep": 2**53},
        {"lastPackage": "\ud800"},
    ],
)
def test_a_malformed_state_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidTypeError):
        read_state({"version": 1, **change})


OPTIONS = CompilerOptions(
    sources=(SourceSpec("rag", "rag"), SourceSpec("skills", "skills")), refresh=RefreshOptions(candidates_per_source=2)
)


def request(step: int = 0, *, refresh: bool = False) -> StepRequest:
    return StepRequest(
        run_id="r",
        step=step,
        request=RequestHistory(loads=(SkillLoad("deploy", "chain"),)),
        user_text="How?",
        model=Model("openai", "gpt-5", 128_000, 8_000),
        refresh=refresh,
    )


@pytest.mark.rule("D.H.8", "D.K.26")
@pytest.mark.parametrize(
    ("absent", "loads", "asked"),
    [
        ((), (), True),
        (("deploy/body",), ("chain",), False),
        (("deploy/body",), ("an earlier one",), True),
        (("deploy/body",), (), True),  # a state of an earlier release names no loads
        (("other/body",), ("chain",), True),
    ],
)
def test_a_body_is_asked_for_unless_it_was_absent_at_this_very_load(
    absent: tuple[str, ...], loads: tuple[str, ...], asked: bool
) -> None:
    state = ContextCompilerState(
        version=1, passes=1, last_step=0, last_refresh_step=0, absent=absent, absent_loads=loads
    )
    plan = plan_step(state, request(1), OPTIONS, {}, make_estimator())
    assert plan.demands == ((("skills", "deploy/body"),) if asked else ())


@pytest.mark.rule("D.C.18", "D.H.9", "D.H.6")
def test_a_compile_knows_what_stands_and_what_is_owed() -> None:
    state = msgspec.structs.replace(state_of(placed("0", 0, 1), placed("1", 1, 2)), last_step=1, last_refresh_step=1)
    given = msgspec.structs.replace(request(2), request=RequestHistory(present=("block 0",)))
    plan = plan_step(state, given, OPTIONS, {}, make_estimator())
    made = compile_input(given, plan, OPTIONS, ())
    assert (made.placed, made.owed) == (state.placed[:1], state.placed[1:])


@pytest.mark.rule("D.G.3", "D.T.4")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run_id", ""),
        ("run_id", 7),
        ("step", -1),
        ("overhead_tokens", 1.0),
        ("model", None),
        ("working_memory", {}),
        ("refresh", 1),
        ("redacted", None),
    ],
)
def test_a_step_that_is_asked_for_with_a_wrong_field_is_refused_by_its_name(field: str, value: object) -> None:
    check_request(request())
    with pytest.raises(InvalidTypeError, match=field):
        check_request(msgspec.structs.replace(request(), **{field: value}))


@pytest.mark.rule("D.D.2")
@pytest.mark.parametrize(("refresh", "query"), [(True, "How?"), (False, "")])
def test_only_what_a_step_retrieved_has_its_query(refresh: bool, query: str) -> None:
    state = ContextCompilerState(version=1, passes=1, last_step=0, last_refresh_step=0)
    asked = request(1, refresh=refresh)
    plan = plan_step(state, asked, OPTIONS, {}, make_estimator())
    assert compile_input(asked, plan, OPTIONS, ()).query == query


@pytest.mark.rule("D.I.4", "D.H.8")
@pytest.mark.parametrize(
    ("first", "again", "missing"),
    [
        ((), (), (("rag", "0"),)),
        ((), ("block 0",), ()),
        (("block 0",), (), ()),
    ],
    ids=["gone", "back", "gone since it was asked"],
)
def test_a_record_is_no_more_if_it_was_asked_for_and_is_still_owed(
    first: tuple[str, ...], again: tuple[str, ...], missing: tuple[tuple[str, str], ...]
) -> None:
    entry = msgspec.structs.replace(placed("0", 0), mandatory=True)
    state = msgspec.structs.replace(state_of(entry), last_step=0, last_refresh_step=0)
    steps = [msgspec.structs.replace(request(1), request=RequestHistory(present=p)) for p in (first, again)]
    plan = plan_overflow(*(plan_step(state, step, OPTIONS, {}, make_estimator()) for step in steps))
    results = (SourceResult("rag", "rag"),)
    package = compile_context(compile_input(steps[1], plan, OPTIONS, results))
    assert outcome_of(state, steps[1], plan, results, package).missing == missing
