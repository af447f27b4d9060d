"""The source of kind ``skills``: catalog lines of a folder of skills, and the bodies that the model asked for.

A match offers a line and never a body (D.K.14).  A body is offered when the run is owed it, which it is once the model
loaded the skill (D.K.26), and then it is mandatory.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from contextbus.core.skill_loads import BODY_SUFFIX, body_record
from contextbus.runtime.logs import get_logger
from contextbus.sources.interface import Answer, candidate, check_source
from contextbus.sources.skill_catalog import SCHEMA_VERSION, SkillCatalog
from contextbus.sources.skill_files import MAX_SKILL_BYTES, SKILL_FILE, Skill, SkillIssue
from contextbus_protocol.codec import encode_json
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.questions import Query
from contextbus_protocol.values import Candidate, SourceKind

DEFAULT_ID: Final = "skills"
FRESH_SECONDS: Final = 2.0
BODY_SCORE: Final = 1.0

_log = get_logger(__name__)


class SkillsSource:
    """A folder of skills as a source (D.K.1, D.K.13).

    Every folder in it with a ``SKILL.md`` is a skill; the path of that folder is the skill's id.  A file that is no
    usable skill is left out and listed in ``issues``.

    Args:
        folder: The folder of skills; it is only read.
        id: The source's id; by default the kind's name.
        required: Whether a step fails without it.
        fresh_seconds: For how long the folder is not looked at again.
    """

    kind: SourceKind = "skills"

    def __init__(
        self,
        folder: Path | str,
        *,
        id: str = DEFAULT_ID,  # noqa: A002  (the word that users write)
        required: bool = False,
        fresh_seconds: float = FRESH_SECONDS,
    ) -> None:
        self.id = id
        self.required = required
        # The folder may lie elsewhere on each machine; what it holds is seen in the records' digests.
        self.options_digest = digest_bytes(encode_json((SCHEMA_VERSION, SKILL_FILE, MAX_SKILL_BYTES)))
        self._catalog = SkillCatalog(Path(folder))
        self._fresh_seconds = fresh_seconds
        self._due = 0.0
        self._lock: anyio.Lock | None = None
        check_source(self)

    @property
    def skills(self) -> Mapping[str, Skill]:
        """The skills by id, as the folder was looked at last: what ``answer_load_skill`` needs."""
        return self._catalog.skills

    @property
    def issues(self) -> tuple[SkillIssue, ...]:
        """The files that are no usable skills, as the folder was looked at last, ordered by path."""
        return self._catalog.issues

    async def refresh(self) -> Mapping[str, Skill]:
        """Look at the folder now; gives the skills by id.

        Raises:
            NotADirectoryError: the folder does not exist.
        """
        for issue in await anyio.to_thread.run_sync(self._catalog.refresh, time.time_ns()):
            _log.warning("skill_skipped", source=self.id, path=issue.path, reason=issue.code)
        self._due = time.monotonic() + self._fresh_seconds
        return self.skills

    async def query(self, query: Query) -> Answer:
        """The bodies that the run is owed, then the catalog lines that match, best first (D.K.13, D.K.14, D.K.26).

        Raises:
            NotADirectoryError: the folder does not exist.
        """
        await self._freshen()
        bodies = _bodies(query.records, self.skills)
        if query.only_records:
            return bodies
        # what is owed does not count towards the limit (D.C.16)
        hits = await anyio.to_thread.run_sync(self._catalog.search, query.text, query.limit, abandon_on_cancel=True)
        return [*bodies, *(candidate(hit.skill.id, hit.skill.line, hit.score) for hit in hits)]

    async def aclose(self) -> None:
        """Let go of the index."""
        await anyio.to_thread.run_sync(self._catalog.close)

    async def _freshen(self) -> None:
        if self._lock is None:
            self._lock = anyio.Lock()
        async with self._lock:
            if time.monotonic() >= self._due:
                await self.refresh()


def skills_source(
    folder: Path | str,
    *,
    id: str = DEFAULT_ID,  # noqa: A002  (the word that users write)
    required: bool = False,
) -> SkillsSource:
    """Make the source of a folder of skills (D.K.1).

    Args:
        folder: The folder of skills.
        id: The source's id.
        required: Whether a step fails without it.
    """
    return SkillsSource(folder, id=id, required=required)


def _bodies(records: tuple[str, ...], skills: Mapping[str, Skill]) -> list[Candidate]:
    """The bodies among the records that are asked for; a skill that is gone has none."""
    wanted = (record.removesuffix(BODY_SUFFIX) for record in dict.fromkeys(records) if record.endswith(BODY_SUFFIX))
    found = (skills[skill] for skill in wanted if skill in skills)
    return [candidate(body_record(skill.id), skill.body, BODY_SCORE, mandatory=True) for skill in found]
