"""Stems of words, and the words that only name a kind of value.

A word of ``ATTRIBUTES`` names a property that anything can have (a price, a date, a name): two statements that share
nothing but such a word may be about different things.  What a statement is about is told by the words of the text.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

from contextbus.summarisers.extractive.changes import AGAIN

_CYRILLIC: Final = re.compile(r"[\u0400-\u04ff]")
_CYRILLIC_ENDING: Final = re.compile(
    r"(?:иями|ями|ами|ого|его|ому|ему|ыми|ими|ая|яя|ое|ее|ые|ие|ый|ий|ой|ей|ою|ую|юю|ах|ях|ов|ев|ом|ем|ам|ям|ия|ии|ию"
    r"|[аяоеыиуюьй])$"
)
_LATIN_ENDING: Final = re.compile(r"(?:ly|ments|ment|ings|ing|ies|ed|es|en|er|ers|em|e|s|n|y)$")
_SHORTEST_STEM: Final = 3
_LONGEST_STEM: Final = 6
"""Letters that tell words of one family apart from others in most languages that write them."""
_SHORTEST_COMPOUND: Final = 8
_SHORTEST_HEAD: Final = 4
_WORDS_HELD: Final = 65_536


def find_stem(word: str) -> str:
    """The stem of a lower-case word: marks folded, one common ending cut."""
    if word.isascii():
        folded = word
    else:
        folded = "".join(c for c in unicodedata.normalize("NFKD", word) if not unicodedata.combining(c))
        folded = folded.replace("ß", "ss")
    ending = _CYRILLIC_ENDING if _CYRILLIC.search(folded) else _LATIN_ENDING
    cut = ending.sub("", folded)
    return (cut if len(cut) >= _SHORTEST_STEM else folded)[:_LONGEST_STEM]


ATTRIBUTES: Final = (
    "cost price fee spend expense kosten preis prix coût dépense precio coste gasto цена стоимость расход 費用 価格",
    "limit maximum minimum cap grenze obergrenze höchstgrenze limite tope máximo mínimo лимит предел 上限 限度",
    "date deadline day termin datum frist échéance fecha plazo дата срок 期限 日付 締切",
    "name title called bezeichnung heißt titel nom titre nombre título название имя 名前 名称",
    "time clock hour timestamp timezone zeit uhrzeit stunde zeitzone heure horaire hora horario время час 時刻 時間",
    "version ausgabe версия バージョン",
    "address location place adresse ort lieu dirección lugar адрес место 住所 場所",
    "number count amount total anzahl menge zahl nombre quantité número cantidad число количество 数 件数 人数",
    "code password pin key kennwort passwort schlüssel clé clave contraseña код пароль ключ 暗証番号 パスワード",
)


def _index(groups: tuple[str, ...]) -> dict[str, str]:
    table: dict[str, str] = {}
    for number, group in enumerate(groups):
        for word in group.split():
            table.setdefault(find_stem(word), f"={number}")
    return table


_CONCEPTS: Final = _index(ATTRIBUTES)
_HEADS: Final = tuple(w for group in ATTRIBUTES for w in group.split() if len(w) >= _SHORTEST_HEAD)
_HEAD_AT_END: Final = re.compile(f"({'|'.join(map(re.escape, _HEADS))})(?:e?n|e?s)?$")
_ANEW: Final = re.compile(f"re({AGAIN})")


@lru_cache(_WORDS_HELD)
def find_concepts(word: str) -> tuple[str, ...]:
    """What a lower-case word stands for: a concept, its stem, or for a compound its parts."""
    anew = _ANEW.fullmatch(word)
    stem = find_stem(word if anew is None else anew[1])
    concept = _CONCEPTS.get(stem)
    if concept is not None:
        return (concept,)
    if len(word) >= _SHORTEST_COMPOUND:
        head = _HEAD_AT_END.search(word)
        if head is not None and head.start() >= _SHORTEST_STEM:
            before = find_stem(word[: head.start()])
            return (_CONCEPTS.get(before, before), _CONCEPTS[find_stem(head[1])])
    return (stem,)


def is_attribute(concept: str) -> bool:
    """Whether a concept is a property that anything can have."""
    return concept.startswith("=")
