"""The catalog of a folder of skills, kept fresh and ranked by BM25.  All of it blocks: use a thread."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from contextbus.sources.database import MEMORY, Database
from contextbus.sources.documents import FoundFile, survey_folder
from contextbus.sources.lexical import TOKENIZER, match_expression, score_of, spread
from contextbus.sources.skill_files import SKILL_FILE, Skill, SkillIssue, read_skill

SCHEMA_VERSION: Final = 1
MAX_SKILLS: Final = 1000
# A file that was written twice within the resolution of its time of change may have kept time and size.
_RECENT_NANOSECONDS: Final = 2_000_000_000
_SCHEMA: Final = f"""
CREATE TABLE skills (id INTEGER PRIMARY KEY, skill TEXT NOT NULL UNIQUE);
CREATE VIRTUAL TABLE words USING fts5(name, description, tokenize = '{TOKENIZER}')
"""
_SEARCH: Final = """
SELECT skills.skill, bm25(words, 2.0, 1.0) AS rank FROM words JOIN skills ON skills.id = words.rowid
WHERE words MATCH ? ORDER BY rank, skills.skill LIMIT ?
"""


class SkillHit(msgspec.Struct, frozen=True):
    """A skill that matches: higher scores match better."""

    skill: Skill
    score: float


class SkillCatalog:
    """The skills of a folder.

    Args:
        folder: The folder; it is only read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._database = Database(MEMORY, schema=_SCHEMA, version=SCHEMA_VERSION, full_text=("words",))
        self._read: dict[FoundFile, Skill | SkillIssue] = {}
        self._skills: Mapping[str, Skill] = MappingProxyType({})
        self._issues: tuple[SkillIssue, ...] = ()

    @property
    def skills(self) -> Mapping[str, Skill]:
        """The skills by id, ordered by id."""
        return self._skills

    @property
    def issues(self) -> tuple[SkillIssue, ...]:
        """The files that are no usable skills, ordered by path."""
        return self._issues

    def close(self) -> None:
        """Let go of the index."""
        self._database.close()

    def refresh(self, now: int) -> tuple[SkillIssue, ...]:
        """Look at the folder again, and read what is new or of another size or time; gives the issues that are new.

        Args:
            now: the time, in nanoseconds since 1970.

        Raises:
            NotADirectoryError: the folder does not exist.
        """
        with self._lock:
            files = survey_folder(self._folder, (SKILL_FILE,)).files
            kept = {f: s for f, s in self._read.items() if f.changed < now - _RECENT_NANOSECONDS}
            read = {file: kept.get(file) or read_skill(self._folder, file) for file in files}
            if read == self._read:
                return ()
            self._read = read
            former = set(self._issues)
            skills, self._issues = _sort(read)
            self._database.use(lambda connection: self._write(connection, skills))
            self._skills = skills
            return tuple(issue for issue in self._issues if issue not in former)

    def search(self, text: str, limit: int) -> tuple[SkillHit, ...]:
        """The skills whose name or description match a text, best first, ties by id."""
        expression = match_expression(text)
        if expression is None or limit < 1:
            return ()
        rows = self._database.use(lambda connection: connection.execute(_SEARCH, (expression, limit)).fetchall())
        skills = self._skills
        hits = (SkillHit(skills[skill], score_of(rank)) for skill, rank in rows if skill in skills)
        return tuple(sorted(hits, key=lambda hit: (-hit.score, hit.skill.id)))

    def _write(self, connection: sqlite3.Connection, skills: Mapping[str, Skill]) -> None:
        with self._database.writing(connection):
            connection.execute("DELETE FROM words")
            connection.execute("DELETE FROM skills")
            for row, skill in enumerate(skills.values(), start=1):
                connection.execute("INSERT INTO skills (id, skill) VALUES (?, ?)", (row, skill.id))
                connection.execute(
                    "INSERT INTO words (rowid, name, description) VALUES (?, ?, ?)",
                    (row, spread(skill.name), spread(skill.description)),
                )


def _sort(read: Mapping[FoundFile, Skill | SkillIssue]) -> tuple[Mapping[str, Skill], tuple[SkillIssue, ...]]:
    skills: dict[str, Skill] = {}
    issues: list[SkillIssue] = []
    for file, found in read.items():  # ordered by path
        if isinstance(found, SkillIssue):
            issues.append(found)
        elif found.id in skills:
            issues.append(
                SkillIssue(file.path, "id", f"another skill has the id {found.id}; rename one of the folders")
            )
        elif len(skills) >= MAX_SKILLS:
            issues.append(SkillIssue(file.path, "many", f"a folder holds at most {MAX_SKILLS} skills; split it"))
        else:
            skills[found.id] = found
    return MappingProxyType(dict(sorted(skills.items()))), tuple(issues)
