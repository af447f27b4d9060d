"""Skills in a folder: every ``SKILL.md`` with its front matter, and what is wrong with others.  All of it blocks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from contextbus.core.skill_loads import LONGEST_SKILL_ID, is_skill_id
from contextbus.sources.documents import FoundFile, read_file
from contextbus_protocol.digests import clean_text

SKILL_FILE: Final = "SKILL.md"
MAX_SKILL_BYTES: Final = 256 * 1024
MAX_FRONT_MATTER: Final = 16 * 1024
MAX_NAME: Final = 128
MAX_DESCRIPTION: Final = 2048
_FRONT_MATTER: Final = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_PLACE: Final = re.compile(r"line (\d+), column (\d+)")


class Skill(msgspec.Struct, frozen=True):
    """A skill: ``id`` is the path of its folder, ``body`` the text behind the front matter."""

    id: str
    name: str
    description: str
    body: str

    @property
    def line(self) -> str:
        """The catalog line: name, id and description in one line (D.K.15)."""
        return f"{self.name} ({self.id}): {self.description}"


class SkillIssue(msgspec.Struct, frozen=True):
    """A file that is no usable skill, and what to do about it; ``code`` is one word for logs."""

    path: str
    code: str
    problem: str


class MalformedSkillError(ValueError):
    """A file is no usable skill."""

    def __init__(self, code: str, problem: str) -> None:
        super().__init__(problem)
        self.code = code


class _FrontMatter(msgspec.Struct):
    name: str
    description: str


def read_skill(folder: Path, file: FoundFile) -> Skill | SkillIssue:
    """A skill of a folder, or what is wrong with its file."""
    try:
        return parse_skill(name_skill(folder, file.path), _read(folder, file))
    except MalformedSkillError as exc:
        return SkillIssue(file.path, exc.code, str(exc))


def name_skill(folder: Path, path: str) -> str:
    """The id of the skill whose file is at a path within the folder: the path of the file's folder.

    Raises:
        MalformedSkillError: that cannot be an id.
    """
    skill = path.rpartition("/")[0] or folder.absolute().name
    if not is_skill_id(skill):
        raise MalformedSkillError(
            "id",
            "its folder's path is its id and cannot be one: rename the folder, without blanks, to at most "
            f"{LONGEST_SKILL_ID} characters, and not to body",
        )
    return skill


def parse_skill(skill: str, data: bytes) -> Skill:
    """A skill of its id and the bytes of its file.

    Raises:
        MalformedSkillError: it has no front matter with name and description, or no text behind it.
    """
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise MalformedSkillError("encoding", "it is not UTF-8; save it as UTF-8") from None
    found = _FRONT_MATTER.match(text, 0, MAX_FRONT_MATTER)
    if found is None:
        raise MalformedSkillError(
            "front-matter", "it must begin with a line ---, name: …, description: …, and another line ---"
        )
    front = _read_front_matter(found.group(1))
    body = text[found.end() :].strip()
    if not body:
        raise MalformedSkillError("body", "it has no text behind its front matter; write what the skill tells")
    return Skill(
        skill,
        _one_line("name", front.name, MAX_NAME),
        _one_line("description", front.description, MAX_DESCRIPTION),
        clean_text(body),
    )


def _read(folder: Path, file: FoundFile) -> bytes:
    if file.size > MAX_SKILL_BYTES:
        much = f"it is larger than {MAX_SKILL_BYTES // 1024} KiB"
        raise MalformedSkillError("large", f"{much}; move parts of it to files that the skill refers to")
    data = read_file(folder, file.path)
    if data is None:
        raise MalformedSkillError("unreadable", "it cannot be read; check its permissions")
    return data


def _read_front_matter(text: str) -> _FrontMatter:
    try:
        return msgspec.yaml.decode(text, type=_FrontMatter)
    except msgspec.ValidationError as exc:
        # It names the field and the types, no value.
        raise MalformedSkillError(
            "front-matter", f"its front matter needs name and description as texts: {exc}"
        ) from None
    except (msgspec.DecodeError, RecursionError, ValueError) as exc:
        place = _PLACE.search(str(exc))
        where = "" if place is None else f" (line {int(place.group(1)) + 1})"
        problem = f"its front matter is no YAML{where}; put quotes around texts with a colon"
        raise MalformedSkillError("front-matter", problem) from None


def _one_line(field: str, text: str, longest: int) -> str:
    line = " ".join(clean_text(text).split())
    if not line:
        raise MalformedSkillError("front-matter", f"its {field} is empty; write one")
    if len(line) > longest:
        raise MalformedSkillError("front-matter", f"its {field} is longer than {longest} characters; shorten it")
    return line
