"""Values in a sentence: amounts, dates, names, identifiers, and settings of how answers look."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import msgspec

from contextbus.summarisers.extractive.word_tables import WordGate, find_gates

_EN_NUMBER: Final = (
    r"(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen"
    r"|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand|million)"
)
_DE_NUMBER: Final = (
    r"(?:(?:ein|zwei|drei|vier|fünf|sechs|sieben|acht|neun|zehn|elf|zwölf|zwanzig|dreißig|vierzig|fünfzig|sechzig|siebzig"
    r"|achtzig|neunzig|hundert|tausend|und){2,}|zwei|drei|vier|fünf|sechs|sieben|zehn|elf|zwölf|zwanzig|hundert|tausend)"
)
_RU_NUMBER: Final = (
    r"(?:двести|триста|четыреста|пятьсот|шестьсот|семьсот|восемьсот|девятьсот|тысяч[аи]?|сто|десять|двадцать|тридцать"
    r"|сорок|пятьдесят|два|две|три|четыре|пять|шесть|семь|восемь)"
)
_WORDS: Final = (
    rf"(?:a\s+)?{_EN_NUMBER}(?:[\s-]+(?:and\s+)?{_EN_NUMBER}){{0,6}}"
    rf"|{_DE_NUMBER}|{_RU_NUMBER}(?:\s+{_RU_NUMBER}){{0,4}}"
)
_DIGITS: Final = r"\d{1,15}(?:[.,'\u00a0]\d{1,15}){0,5}"
_KANJI: Final = r"[〇一二三四五六七八九十百千万]{1,12}"
_CURRENCY: Final = (
    r"(?:dollars?|bucks|euros?|pounds?|francs?|cents?|usd|eur|gbp|chf|jpy|rub|kronen|franken|рубл\w{0,3}|руб|долл\w{0,5}"
    r"|евро|yen)"
)
_MONTH: Final = (
    r"(?:january|february|march|april|may|june|july|august|september|october|november|december|jan|feb|mar|apr|jun|jul"
    r"|aug|sept|sep|oct|nov|dec|januar|februar|märz|mai|juni|juli|oktober|dezember|января|февраля|марта|апреля|мая|июня"
    r"|июля|августа|сентября|октября|ноября|декабря|janvier|février|mars|avril|juin|juillet|août|septembre|octobre"
    r"|novembre|décembre|enero|febrero|marzo|abril|mayo|junio|julio|agosto|septiembre|octubre|noviembre|diciembre)"
)
_WEEKDAY: Final = (
    r"(?:monday|tuesday|wednesday|thursday|friday|saturday|sunday|montag|dienstag|mittwoch|donnerstag|freitag|samstag"
    r"|sonnabend|sonntag|понедельник|вторник|сред[ау]|четверг|пятниц[ау]|суббот[ау]|воскресенье|lundi|mardi|mercredi|jeudi"
    r"|vendredi|samedi|dimanche|lunes|martes|miércoles|jueves|viernes)s?"
)


_CURRENCY_SIGNS: Final = (
    *"$€£¥₽円",
    *("dollar", "buck", "eur", "pound", "franc", "cent", "usd", "gbp", "chf", "jpy", "rub", "kronen", "franken", "руб"),
    *("долл", "евро", "yen"),
)
_CURRENCY_WORDS: Final = (
    "dollar* buck* euro* pound* franc* cent* usd eur gbp chf jpy rub kronen franken рубл* руб долл* евро yen"
)
_MONTH_WORDS: Final = _MONTH[3:-1].replace("|", " ")
_WEEKDAY_WORDS: Final = (
    "monday* tuesday* wednesday* thursday* friday* saturday* sunday* montag* dienstag* mittwoch* donnerstag* freitag* "
    "samstag* sonnabend* sonntag* понедельник* вторник* сред* четверг* пятниц* суббот* воскресенье* lundi* mardi* "
    "mercredi* jeudi* vendredi* samedi* dimanche* lunes* martes* miércoles* jueves* viernes*"
)
_ZONE_WORDS: Final = (
    "utc gmt cet cest est edt cst cdt mst mdt pst pdt mez mesz jst msk bst europe america asia africa australia "
    "pacific atlantic indian etc eastern central mountain greenwich mitteleuropäische* osteuropäische* "
    "westeuropäische* koordinierte* московскому гринвичу* всемирному"
)


class _Pattern:
    """Where values of a kind are found.

    A text has none that has no digit where ``digit`` says so, or that has neither a sign of ``signs`` (in lower case)
    nor a word of ``words`` where some are given: that is looked up first, as it costs far less than the pattern.
    """

    def __init__(
        self, kind: str, pattern: str, signs: tuple[str, ...] = (), words: str = "", *, digit: bool = False
    ) -> None:
        self.kind: Final = kind
        self.finditer: Final = re.compile(pattern).finditer
        self._digit: Final = digit
        self._signs: Final = signs
        self._gate: Final = WordGate(words.split()).bit if words else 0

    def may_be_in(self, low: str, gates: int, *, has_digit: bool) -> bool:
        """Whether a text can have such a value at all."""
        if self._digit and not has_digit:
            return False
        if self._gate & gates or not (self._signs or self._gate):
            return True
        for sign in self._signs:  # noqa: SIM110  (a loop, since it runs for each pattern of each line)
            if sign in low:
                return True
        return False


def _settings(kind: str, words: str, unspaced: str) -> _Pattern:
    """The pattern of a setting: its words, where ``*`` stands for any ending, and those that are written unspaced."""
    spaced = "|".join(words.split()).replace("*", "\\w*")
    return _Pattern(kind, rf"(?i:(?<!\w)(?:{spaced})(?!\w))|{unspaced.replace(' ', '|')}", (), words)


_PATTERNS: Final = (
    _Pattern("url", r"\b(?:https?|ftp|wss?|context|s3|git|ssh)://[^\s<>\"'`）」]{1,400}(?<![.,;:!?)\]])", ("://",)),
    _Pattern("email", r"\b[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){1,5}", ("@",)),
    _Pattern(
        "quoted",
        r"\"[^\"\n]{1,80}\"|“[^”\n]{1,80}”|„[^“\n]{1,80}“|«[^»\n]{1,80}»|「[^」\n]{1,80}」|`[^`\n]{1,80}`",
        (*'"“„«「`',),
    ),
    _Pattern(
        "zone",
        (
            r"\b(?:UTC|GMT|CET|CEST|EST|EDT|CST|CDT|MST|MDT|PST|PDT|MEZ|MESZ|JST|MSK|BST)(?:[+-]\d{1,2}(?::?\d\d)?)?\b"
            r"|\b(?:Europe|America|Asia|Africa|Australia|Pacific|Atlantic|Indian|Etc)/[A-Z]\w{1,30}"
            r"|\b(?i:pacific|eastern|central|mountain|greenwich|central european|atlantic)\s+"
            r"(?i:standard\s+|mean\s+)?(?i:time)\b"
            r"|\b(?i:mitteleuropäische\w*|osteuropäische\w*|westeuropäische\w*|koordinierte\w*)\s+(?i:\w{0,10}zeit)\b"
            r"|(?i:по московскому времени|по гринвичу|по всемирному времени)|日本時間|協定世界時|標準時"
        ),
        (),
        _ZONE_WORDS,
    ),
    _Pattern(
        "ref",
        r"(?<![\w/.])(?:~|\.{1,2})?/?[\w.@-]{1,80}(?:/[\w.@-]{1,80}){1,20}/?(?<![.,])|\b[A-Za-z]:\\[\w.\\-]{1,200}",
        (*"/\\",),
    ),
    _Pattern(
        "ref",
        r"(?<![\w.])[\w-]{1,80}(?:\.[\w-]{1,40}){0,3}\.(?:[a-z]{2,4}|internal|local|json|yaml|toml|html)(?!\w|\.\w)",
        (".",),
    ),
    _Pattern(
        "date",
        r"(?<![\w-])\d{4}-\d{1,2}-\d{1,2}(?![\w-])|(?<![\w.])\d{1,2}\.\d{1,2}\.(?:\d{2,4})?(?!\w)|(?<!\w)\d{1,2}/\d{1,2}/\d{2,4}(?!\w)",
        (*"-./",),
        digit=True,
    ),
    _Pattern(
        "date",
        rf"(?<!\w)(?i:{_MONTH})\.?\s+\d{{1,2}}(?:st|nd|rd|th)?(?:,?\s+\d{{4}})?(?!\w)",
        (),
        _MONTH_WORDS,
        digit=True,
    ),
    _Pattern(
        "date",
        rf"(?<!\w)\d{{1,2}}(?:\.|st|nd|rd|th)?\s+(?:of\s+|de\s+)?(?i:{_MONTH})(?:\s+(?:de\s+)?\d{{4}})?(?!\w)",
        (),
        _MONTH_WORDS,
        digit=True,
    ),
    _Pattern("date", r"(?:\d{4}年)?\d{1,2}月(?:\d{1,2}日)?", ("月",), digit=True),
    _Pattern("weekday", rf"(?<!\w)(?i:{_WEEKDAY})(?!\w)|[月火水木金土日]曜日?", (), _WEEKDAY_WORDS),
    _Pattern(
        "time",
        r"(?<![\w:])\d{1,2}:\d{2}(?::\d{2})?(?![\w:])|(?<!\w)\d{1,2}\s?(?:am|pm|Uhr)(?!\w)|\d{1,2}時(?:\d{1,2}分)?",
        (*(":", "am", "pm", "uhr", "時"),),
        digit=True,
    ),
    _Pattern(
        "money",
        rf"(?<![\w$])[$€£¥₽]\s?{_DIGITS}(?!\w)|(?<!\w){_DIGITS}\s?(?:[€£¥₽]|(?i:{_CURRENCY})(?!\w))",
        _CURRENCY_SIGNS,
        digit=True,
    ),
    _Pattern(
        "money", rf"(?<!\w)(?i:(?:{_WORDS})\s+{_CURRENCY})(?!\w)|(?:{_DIGITS}万?|{_KANJI})円", (), _CURRENCY_WORDS
    ),
    _Pattern(
        "percent",
        rf"(?<!\w){_DIGITS}\s?(?:%|(?i:percent|prozent|процент\w{{0,3}}))",
        (*("%", "percent", "prozent", "процент"),),
        digit=True,
    ),
    _Pattern(
        "code",
        r"(?<![\w-])(?=[\w-]{0,60}\d)(?=[\w-]{0,60}[^\W\d_])[\w]{1,60}(?:-[\w]{1,60}){0,8}(?![\w-])",
        (),
        digit=True,
    ),
    _Pattern(
        "code",
        r"(?<![\w-])\d{2,20}(?:-\d{2,20}){1,4}(?![\w-])|(?<!\w)[A-Za-z]{1,40}(?:_[A-Za-z]{1,40}){1,6}(?!\w)",
        (*"-_",),
    ),
    _Pattern("code", r"#\d{1,12}(?!\w)", ("#",)),
    _Pattern(
        "number",
        rf"(?<![\w.,]){_DIGITS}(?!\w)|(?<=[\u3040-\u30ff\u3400-\u9fff]){_DIGITS}|{_DIGITS}(?=[\u3040-\u30ff\u3400-\u9fff])",
        (),
        digit=True,
    ),
    _settings(
        "units",
        "metric imperial metrisch* imperial* angloamerikanisch* метрическ*",
        "メートル法 ヤード・ポンド法 ヤードポンド法",
    ),
    _settings(
        "length",
        "terse brief concise short curt detailed verbose lengthy thorough knapp* kurz* ausführlich* detailliert* "
        "кратк* подробн* bref brève détaillé* breve detallad*",
        "簡潔 詳細 短く 詳しく",
    ),
    _settings(
        "tone",
        "formal informal casual playful warm friendly dry neutral serious polite humorous professional sachlich* "
        "lockere* förmlich* freundlich* herzlich* verspielt* nüchtern* официальн* дружелюбн* строг* formel*",
        "丁寧 敬語 くだけた 親しみ",
    ),
    _settings(
        "language",
        "english german french spanish russian japanese italian chinese deutsch* englisch* französisch* spanisch* "
        "russisch* русск* английск* немецк* français anglais español inglés italienisch*",
        "英語 日本語 ドイツ語 中国語",
    ),
    _Pattern("name", r"[\u3400-\u9fff]{1,4}(?=さん|氏|様)", (*("さん", "氏", "様"),)),
)
_TITLE: Final = r"(?:Mr|Mrs|Ms|Dr|Prof|Herrn?|Frau|Mme|Sr|Sra)\.?"
_CAPITALISED: Final = r"[^\W\d_a-zà-ÿа-я][\w'’]{1,30}"
_NAME: Final = re.compile(
    rf"(?<![\w-]){_TITLE}\s+{_CAPITALISED}(?![\w-])|(?<![\w-])(?:{_CAPITALISED}\s+){{1,3}}{_CAPITALISED}(?![\w-])"
)
_DIGIT: Final = re.compile(r"\d")
_TEXTS_HELD: Final = 1024
_LOWER: Final = re.compile(r"[^\W\d_]")

EXACT: Final = ("url", "email", "ref", "code", "quoted")
"""Kinds of exact identifiers."""
SETTINGS: Final = ("zone", "units", "length", "tone", "language")
"""Kinds of which a conversation has one value at a time."""
MANNER: Final = ("length", "tone")
"""Settings of how answers are worded."""


class Value(msgspec.Struct, frozen=True, gc=False):
    """One value: its kind, its text in lower case with single spaces, and where it stands."""

    kind: str
    text: str
    start: int
    end: int


@lru_cache(_TEXTS_HELD)
def find_values(text: str, function_words: frozenset[str]) -> tuple[tuple[Value, ...], str]:
    """The values of a sentence in the order of the text.

    Returns:
        The values, and the text with each replaced by control characters, so that positions stay.
    """
    found: list[Value] = []
    rest = text
    low = text.casefold()
    has_digit = _DIGIT.search(text) is not None
    gates = find_gates(text)
    for pattern in _PATTERNS:
        if not pattern.may_be_in(low, gates, has_digit=has_digit):
            continue
        matches = [m.span() for m in pattern.finditer(rest)]
        if matches:
            rest = _take(found, rest, pattern.kind, matches)
    names: list[tuple[int, int]] = []
    for match in _NAME.finditer(rest):
        words = [(match.start() + m.start(), m[0]) for m in re.finditer(r"\S+", match[0])]
        while words and words[0][1].lower() in function_words:
            words.pop(0)
        if len(words) >= 2 and not all(word.isupper() for _, word in words):  # noqa: PLR2004  (a name has two words)
            names.append((words[0][0], match.end()))
    if names:
        rest = _take(found, rest, "name", names)
    return tuple(sorted(found, key=lambda v: v.start)), rest


def _take(found: list[Value], rest: str, kind: str, spans: list[tuple[int, int]]) -> str:
    pieces: list[str] = []
    last = 0
    for start, end in spans:
        if end == start:
            continue
        found.append(Value(kind, " ".join(rest[start:end].lower().split()), start, end))
        pieces += (rest[last:start], "\1" * (end - start))
        last = end
    return "".join((*pieces, rest[last:]))
