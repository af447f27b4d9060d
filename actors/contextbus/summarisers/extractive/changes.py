"""Words that tell that something is other than it was, and what stands around the values of such a statement."""

from __future__ import annotations

import re
from typing import Final

from contextbus.summarisers.extractive.word_tables import WordTable

AGAIN: Final = (
    "named|built|based|placed|set|scheduled|assigned|located|booked|routed|numbered|written|designed|planned|priced"
    "|filed|labelled|issued|distributed|arranged|considered|calculated|opened"
)
"""Verbs that say with "re" before them that something was done anew; what they are about is that verb."""

CHANGE: Final = WordTable(
    tuple(f"re{verb}" for verb in AGAIN.split("|")),
    (
        *("now", "from now on", "new", "changed", "changes", "moved", "moves", "update", "updated", "no longer"),
        *("instead", "switched", "replaced", "replaces", "rather", "henceforth", "going forward", "as of"),
        *("raise", "lower", "increase", "reduce", "cut to", "cut down to", "cut from", "down to", "went with"),
        *("raised", "lowered", "increased", "reduced", "postponed", "extended", "correction"),
        *("corrected", "previous", "actually", "took over", "takes over", "scratch that"),
        *("revised", "shifted", "pushed back", "brought forward", "anymore", "former", "formerly", "void", "obsolete"),
        *(
            "superseded",
            "outdated",
            "withdrawn",
            "went up",
            "goes up",
            "went down",
            "rises",
            "rose",
            "fell",
            "drops to",
        ),
    ),
    (
        *("jetzt", "nun", "ab sofort", "neu", "neue", "neuer", "neues", "neuen", "geändert", "ändert", "verschoben"),
        *(
            "aktualisiert",
            "nicht mehr",
            "künftig",
            "gewechselt",
            "ersetzt",
            "umbenannt",
            "erhöht",
            "gesenkt",
            "nunmehr",
        ),
        *(
            "verlängert",
            "korrigiert",
            "Korrektur",
            "von nun an",
            "umgezogen",
            "übernimmt",
            "lieber",
            "doch",
            "inzwischen",
        ),
        *(
            "Änderung",
            "heißt jetzt",
            "statt dessen",
            "stattdessen",
            "verlegt",
            "angehoben",
            "umgestellt",
            "bisherig*",
            "ehemalig*",
            "ungültig*",
            "überholt",
        ),
        *("erhöhe", "erhöhen", "senke", "senken", "gekürzt", "kürze", "kürzen"),
        *("steigt", "stieg", "sinkt", "sank", "klettert"),
    ),
    (
        "maintenant",
        "désormais",
        "nouveau",
        "nouvelle",
        "changé",
        "déplacé*",
        "modifié*",
        "plutôt",
        "ne plus",
        *(
            "correction",
            "corrigé*",
            "remplac*",
            "reporté*",
            "finalement",
            "à la place",
            "augmenté*",
            "baissé*",
            "ancien*",
        ),
    ),
    (
        *(
            "ahora",
            "nuevo",
            "nueva",
            "cambi*",
            "a partir de ahora",
            "ya no",
            "actualiz*",
            "movid*",
            "en cambio",
            "mejor",
        ),
        *(
            "corrección",
            "corregid*",
            "reemplaz*",
            "aplaz*",
            "en vez de",
            "en lugar de",
            "anterior*",
            "subid*",
            "bajad*",
        ),
    ),
    (
        *("теперь", "отныне", "новый", "новая", "новое", "новые", "изменил*", "изменен*", "изменён*", "перенес*"),
        *("перенос*", "обновлен*", "больше не", "вместо", "переименован*", "заменен*", "повышен*", "увеличен*"),
        *("лучше", "переехал*", "сменил*", "прежн*", "недействительн*", "вырос*", "снизил*", "подорожал*"),
    ),
    (
        "今後",
        "これから",
        "新しい",
        "変更",
        "現在は",
        "更新",
        "に変わ",
        "移動し",
        "延期",
        "今は",
        "引き上げ",
        "改めて",
        "代わ",
    ),
)
"""Change: what follows takes the place of what was said before."""

HEDGE: Final = WordTable(
    ("maybe", "perhaps", "might", "could", "what if", "possibly", "suppose", "for example", "e.g."),
    ("vielleicht", "könnte*", "eventuell", "möglicherweise", "zum Beispiel", "z.B.", "angenommen", "wäre*"),
    ("peut-être", "pourrait", "par exemple"),
    ("quizás", "podría", "por ejemplo"),
    ("может быть", "возможно", "например", "мог бы"),
    ("かもしれ", "たとえば", "例えば", "もし"),
)
"""Doubt and supposition: nothing is decided, so no earlier value is given up."""

TELLING: Final = WordTable(
    ("is", "are", "be", "becomes", "will be", "should be", "must be", "reads", "equals"),
    ("ist", "sind", "wird", "werden", "lautet", "beträgt", "heißt", "sei"),
    ("est", "sont", "sera", "seront", "devient"),
    ("es", "son", "será", "serán", "está", "están", "ser"),
    ("это", "будет", "составляет", "равен", "равна", "равно"),
    ("は", "です"),
)
"""What stands between a thing and what is told of it."""

LIMIT: Final = re.compile(
    r"(?<!\w)(until|till|by|before|under|below|above|over|up to|at most|at least|bis|vor|unter|über|höchstens"
    r"|mindestens|jusqu['’]à|avant|au plus|au moins|moins de|plus de|hasta|antes de|menos de|más de|como máximo|до"
    r"|не более|свыше)"
    r"(?:\s+(?:the|zum|zur|den|le|la|les|el|los|las))?\s*$",
    re.IGNORECASE,
)
"""What stands directly before a value that is a limit."""

TOLD_AS: Final = re.compile(r"\s+(?:as|als|como|comme|как)\s", re.IGNORECASE)
"""What stands behind a value that is told of the thing that follows: "use K-7 as the key"."""
