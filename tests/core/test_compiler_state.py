"""What a compiler remembers of its placements: what stands, what comes back, what a step replaces (D.H)."""

from __future__ import annotations

import msgspec
import pytest

from contextbus.core.compile import compile_context
from contextbus.core.compiler_state import (
    Standing,
    StepOutcome,
    keep_texts,
    key_of,
    read_state,
    restorable,
    settle,
    shadow,
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
    read_answer,
)
from contextbus.core.context_input import ContextInput
from contextbus.core.estimate import make_estimator
from contextbus.core.request_history import RequestHistory
from contextbus_protocol.codec import encode_json
from contextbus_protocol.compiler_state import ContextCompilerState, RequestPrefix, SentBlock
from contextbus_protocol.digests import digest_text
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.questions import Failed, Offered
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
    assert [(p.record_id, p.revision, p.digest) for p in shadow(standing)] == [("1", 3, "")]


@pytest.mark.rule("D.H.5")
def test_texts_are_kept_of_placed_records_only() -> None:
    state = state_of(placed("0", 0))
    found = SourceResult("rag", "rag", candidates=(candidate("0"), candidate("1")))
    failed = msgspec.structs.replace(found, status=SourceStatus.FAILED)
    assert list(keep_texts({}, [found], state)) == [key_of(state.placed[0])]
    assert keep_texts({}, [failed], state) == {}
    assert keep_texts(keep_texts({}, [found], state), [], state_of()) == {}


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
        request=RequestHistory(skills=("deploy",)),
        user_text="How?",
        model=Model("openai", "gpt-5", 128_000, 8_000),
        refresh=refresh,
    )


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


@pytest.mark.rule("D.H.8", "D.C.16", "D.G.14", "D.K.27")
@pytest.mark.parametrize("retrieves", [True, False])
def test_what_is_owed_does_not_count_towards_the_limit(retrieves: bool) -> None:
    state = ContextCompilerState(version=1, passes=1, last_step=0, last_refresh_step=0)
    plan = plan_step(state, request(1, refresh=retrieves), OPTIONS, {}, make_estimator())
    assert [(d.source, d.records) for d in plan.demands] == [("skills", ("deploy/body",))]
    spec = OPTIONS.sources[1]
    found = (*(candidate(f"{n}", f"text {n}") for n in range(3)), candidate("deploy/body", "body", mandatory=True))
    answer = Offered(run="r", token="", source="skills", kind="skills", candidates=found)
    result = read_answer(spec, answer, plan, OPTIONS)
    assert [c.record_id for c in result.candidates] == ["deploy/body", *(["0", "1"] if retrieves else [])]
    assert result.truncated == (1 if retrieves else 0)
    bad = msgspec.structs.replace(answer, candidates=(msgspec.structs.replace(found[3], digest="sha256:"),))
    assert read_answer(spec, bad, plan, OPTIONS).error == "malformed"
    failed = Failed(run="r", token="", source="skills", code="busy", origin_code="quota", origin_type="OwnError")
    read = read_answer(spec, failed, plan, OPTIONS)
    assert (read.status, read.error) == (SourceStatus.FAILED, "busy")
    assert (read.origin_code, read.origin_type) == ("quota", "OwnError")


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
