"""Whether commits have the form in which this project writes them: what the hash chain alone cannot tell.

The chain covers every byte of every commit but the last one of a part.  For that one the head, the events and the
encoding are held against what else is known, a step's options against the digest of its command.  Only what nothing
repeats goes unnoticed there: the command's id, attempt and clock reading, the engine, and facts that a host reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypedDict, get_args

from contextbus import __version__
from contextbus.actors.flight import StepCommand, digest_command
from contextbus.actors.memory_requests import digest_request
from contextbus.replay.run_log import LoggedCommit
from contextbus_protocol import codec, digests
from contextbus_protocol.commands import CompileStep, NewMessages, OverflowStep, PatchWorkingMemory
from contextbus_protocol.errors import ContextBusError
from contextbus_protocol.events import AnyEvent, Commit, StepCompiled, UnknownEvent, WorkingMemoryPatched
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.subjects import Part

KNOWN_TAGS: Final = frozenset(str(event.__struct_config__.tag) for event in get_args(AnyEvent))


class Flaw(NamedTuple):
    """What is not as it should be; ``is_newer`` when a later release may have written it so."""

    field: str
    expected: str
    got: str
    is_newer: bool = False


def find_flaws(run: str, part: Part, logged: LoggedCommit, commits: Sequence[LoggedCommit]) -> Iterator[Flaw]:
    """Hold one commit of a part against its log.

    Args:
        run: the run whose log it is.
        part: the part of the log.
        logged: the commit.
        commits: all commits of the part.
    """
    commit = logged.commit
    for field, expected, got in (
        ("run", run, commit.run),
        ("part", part, commit.part),
        ("tenant", commits[0].commit.tenant, commit.tenant),
    ):
        if expected != got:
            yield Flaw(field, expected, got)
    ours = is_ours(commit)
    for index, event in enumerate(commit.events):
        if isinstance(event, UnknownEvent):
            damaged = ours or event.name in KNOWN_TAGS
            got = f"an unreadable {event.name!r}" if damaged else f"an unknown {event.name!r}"
            yield Flaw(f"events[{index}]", "an event of this release", got, is_newer=not damaged)
        elif isinstance(event, WorkingMemoryPatched) and ours:
            digest = _digest_patch(commit, event)
            if digest != commit.command_digest:
                yield Flaw("commandDigest", commit.command_digest, digest)
    if ours and logged is commits[-1]:
        written = _digest(logged)
        if written != logged.digest:
            yield Flaw("bytes", logged.digest, written)


def is_ours(commit: Commit) -> bool:
    """Whether this release or an older one wrote the commit, so that all of it is known here."""
    try:
        written, here = (tuple(map(int, version.split("."))) for version in (commit.engine, __version__))
    except ValueError:
        return False
    return written <= here and commit.version == codec.COMMIT_VERSION


def find_command_flaw(
    commit: Commit, event: StepCompiled, user_text: str, prompt: PromptParts | None = None
) -> Flaw | None:
    """Hold what a step is recorded to be compiled for against the digest of its command."""
    history = NewMessages(base_count=0, base_chain="", keep=0, messages=(), chain=event.chain)
    commands: tuple[StepCommand, ...]
    if event.overflow is not None:
        commands = tuple(
            OverflowStep(**command_head(commit), step=event.step, input_tokens=limit)
            for limit in (event.overflow, None)
        )
    else:
        commands = tuple(
            CompileStep(
                **command_head(commit),
                step=step,
                history=history,
                user_text=user_text,
                options=event.options,
                refresh=event.host_request,
                prompt=prompt,
            )
            for step in (event.step, None)
        )
    known = [digest_command(command) for command in commands]
    if not is_ours(commit) or commit.command_digest in known:
        return None
    return Flaw("commandDigest", commit.command_digest, known[0])


class _Head(TypedDict):
    run: str
    tenant: str
    command: str
    attempt: int
    reply_to: str
    seconds_left: float
    now: int


def command_head(commit: Commit) -> _Head:
    """The head of the command that a commit came from, as far as the log has it."""
    return _Head(
        run=commit.run,
        tenant=commit.tenant,
        command=commit.command,
        attempt=commit.attempt,
        reply_to="",
        seconds_left=0.0,
        now=commit.at,
    )


def _digest_patch(commit: Commit, event: WorkingMemoryPatched) -> str:
    command = PatchWorkingMemory(**command_head(commit), patch=event.patch)
    return digest_request(command)


def _digest(logged: LoggedCommit) -> str:
    """The digest of the commit as this release writes it."""
    try:
        return digests.digest_bytes(codec.encode_commit(logged.commit))
    except ContextBusError as exc:
        return exc.code
