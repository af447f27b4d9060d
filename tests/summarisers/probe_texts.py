"""Texts of the second set of probes, in three languages: standing statements, values that change, look-alike pairs.

``{...}`` are filled by chance: ``c`` a code, ``m`` an amount, ``d`` a date, ``t`` a time of day, ``n`` a number, ``p``
a person; ``c2`` is another of the same kind.  Behind each text stand the words that must be left of it.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Standing(msgspec.Struct, frozen=True):
    """A statement that holds to the end, and what must be left of it."""

    text: str
    needs: tuple[str, ...]


class Changing(msgspec.Struct, frozen=True):
    """A statement, the later one that takes its place, what must be left, and what must be gone."""

    earlier: str
    later: str
    needs: tuple[str, ...]
    stale: tuple[str, ...]


class Language(msgspec.Struct, frozen=True):
    """All texts of one language."""

    name: str
    standing: tuple[Standing, ...]
    changing: tuple[Changing, ...]
    pairs: tuple[tuple[Standing, Standing], ...]
    filler: tuple[str, ...]
    answers: tuple[str, ...]
    names: tuple[tuple[str, ...], tuple[str, ...]]
    amount: str
    date: str
    months: tuple[str, ...]


ENGLISH: Final = Language(
    name="English",
    standing=(
        Standing(
            "Visitors must sign the register before they enter the cold store.", ("sign the register", "cold store")
        ),
        Standing("Under no pretext hand the alarm sequence {c} to a visitor.", ("{c}", "under no pretext")),
        Standing("Invoices above {m} need a second signature from {p}.", ("{m}", "{p}")),
        Standing("Samples are thrown away after {n} hours at room temperature.", ("{n} hours", "samples")),
        Standing("Quote every weight in kilograms.", ("kilograms",)),
        Standing("I like to read the figures first and the reasons afterwards.", ("figures first", "reasons")),
        Standing("The walk-in freezer stands in hall {c}.", ("freezer", "{c}")),
        Standing("Our courier this season is {p}.", ("courier", "{p}")),
        Standing("We are halfway through the inventory; shelf {c} comes next.", ("inventory", "{c}")),
        Standing(
            "If a crate arrives damaged, photograph it and ring the desk before unpacking.", ("photograph", "desk")
        ),
        Standing("Ticket {c} still fails with a checksum mismatch.", ("{c}", "checksum")),
        Standing("Whether to renew the lease is still open.", ("renew the lease", "open")),
    ),
    changing=(
        Changing(
            "The tasting menu may cost {m} a guest at most.",
            "Correction: the tasting menu may go up to {m2} a guest.",
            ("{m2}", "tasting menu"),
            ("{m}",),
        ),
        Changing("Doors open at {t}.", "We moved the opening of the doors to {t2}.", ("{t2}", "doors"), ("{t}",)),
        Changing("Our florist is {p}.", "{p2} takes over as florist.", ("{p2}", "florist"), ("{p}",)),
        Changing(
            "The harvest festival starts on {d}.",
            "The start of the harvest festival has been postponed to {d2}.",
            ("{d2}", "harvest festival"),
            ("{d}",),
        ),
        Changing(
            "The deposit for the hall is {m}.", "The deposit went up from {m} to {m2}.", ("{m2}", "deposit"), ("{m}",)
        ),
        Changing(
            "Write to me in a formal voice.",
            "Please write to me in a casual voice from now on.",
            ("casual",),
            ("formal",),
        ),
        Changing(
            "The parcels carry slip {c}.", "The parcels carry slip {c2}, the former one is void.", ("{c2}",), ("{c}",)
        ),
        Changing(
            "Keep the kiln below {n} degrees.",
            "The kiln has been rebuilt and now takes {n2} degrees.",
            ("{n2}",),
            ("{n} deg",),
        ),
    ),
    pairs=(
        (
            Standing("Badge {c} opens the east gate.", ("{c}", "east gate")),
            Standing("Badge {c} opens the west gate.", ("{c}", "west gate")),
        ),
        (
            Standing("The soup kitchen shuts at {t}.", ("{t}", "soup kitchen")),
            Standing("The bakery shuts at {t}.", ("{t}", "bakery")),
        ),
        (
            Standing("Frozen goods go to dock {c}.", ("{c}", "frozen goods")),
            Standing("Dry goods go to dock {c}.", ("{c}", "dry goods")),
        ),
    ),
    filler=(
        "The shelving looks a good deal tidier than it did in spring.",
        "Went through the delivery notes again and found nothing odd.",
        "There was a long talk about the colour of the awning.",
        "The cooks are trying a different kind of flour this month.",
        "Somebody left a bicycle next to the loading bay again.",
        "The music in the yard was louder than expected.",
        "We compared two brands of labels and they look alike.",
        "The floor plan hangs on the wall beside the lockers.",
    ),
    answers=("Fine, carrying on.", "Good, I have that down."),
    names=(
        ("Wilma", "Oskar", "Tamsin", "Bruno", "Ilse", "Corin"),
        ("Ashgrove", "Pellworm", "Underhay", "Marlock", "Tindrum"),
    ),
    amount="£{}",
    date="{day} {month}",
    months=("January", "March", "June", "September", "November"),
)

GERMAN: Final = Language(
    name="German",
    standing=(
        Standing("Besucher dürfen das Magazin nur mit Handschuhen betreten.", ("magazin", "handschuhen")),
        Standing("Die Tresornummer {c} geht niemanden außerhalb des Hauses etwas an.", ("{c}", "niemanden")),
        Standing("Rechnungen über {m} zeichnet {p} gegen.", ("{m}", "{p}")),
        Standing("Leihgaben kommen nach {n} Tagen zurück ins Depot.", ("{n} tagen", "leihgaben")),
        Standing("Gib alle Maße in Zentimetern an.", ("zentimetern",)),
        Standing("Mir ist eine Tabelle lieber als Fließtext.", ("tabelle", "fließtext")),
        Standing("Die Restaurierung sitzt im Trakt {c}.", ("restaurierung", "{c}")),
        Standing("Den Nachtdienst hat diesen Monat {p}.", ("nachtdienst", "{p}")),
        Standing("Wir sind mitten in der Inventur; als Nächstes kommt Regal {c}.", ("inventur", "{c}")),
        Standing(
            "Wenn ein Rahmen bricht, zuerst fotografieren und dann die Werkstatt rufen.", ("fotografieren", "werkstatt")
        ),
        Standing("Der Abgleich von Karteikarte {c} scheitert an der Prüfziffer.", ("{c}", "prüfziffer")),
        Standing("Ob der Katalog gedruckt wird, ist noch offen.", ("katalog", "offen")),
    ),
    changing=(
        Changing(
            "Für das Sommerfest stehen {m} bereit.",
            "Beim Sommerfest dürfen wir jetzt {m2} ausgeben.",
            ("{m2}", "sommerfest"),
            ("{m}",),
        ),
        Changing("Die Führung beginnt um {t}.", "Die Führung wurde auf {t2} verlegt.", ("{t2}", "führung"), ("{t}",)),
        Changing(
            "Die Schreinerei leitet {p}.", "Neue Leitung der Schreinerei ist {p2}.", ("{p2}", "schreinerei"), ("{p}",)
        ),
        Changing(
            "Abgabefrist für die Texte ist der {d}.",
            "Der Abgabetermin für die Texte hat sich auf den {d2} verschoben.",
            ("{d2}", "texte"),
            ("{d}",),
        ),
        Changing("Der Eintritt kostet {m}.", "Der Eintritt steigt von {m} auf {m2}.", ("{m2}", "eintritt"), ("{m}",)),
        Changing(
            "Antworte mir bitte ausführlich.", "Antworte mir ab heute lieber knapp.", ("knapp",), ("ausführlich",)
        ),
        Changing(
            "Die Kisten tragen das Siegel {c}.",
            "Statt des alten Siegels tragen die Kisten nun {c2}.",
            ("{c2}",),
            ("{c}",),
        ),
        Changing(
            "In der Vitrine sind höchstens {n} Lux erlaubt.",
            "Neu: In der Vitrine sind {n2} Lux erlaubt.",
            ("{n2} lux", "vitrine"),
            (" {n} lux",),
        ),
    ),
    pairs=(
        (
            Standing("Die Nordtür öffnet Karte {c}.", ("{c}", "nordtür")),
            Standing("Die Südtür öffnet Karte {c}.", ("{c}", "südtür")),
        ),
        (
            Standing("Das Café schließt um {t}.", ("{t}", "café")),
            Standing("Der Museumsladen schließt um {t}.", ("{t}", "museumsladen")),
        ),
        (
            Standing("Die Wanderausstellung eröffnet am {d}.", ("{d}", "wanderausstellung")),
            Standing("Die Dauerausstellung eröffnet am {d}.", ("{d}", "dauerausstellung")),
        ),
    ),
    filler=(
        "Im Hof stehen wieder ein paar Fahrräder herum.",
        "Die Beschriftung der Schubladen sieht ordentlicher aus als früher.",
        "Wir haben lange über die Farbe der Wände gesprochen.",
        "Der Holzboden knarrt im Winter etwas lauter.",
        "Am Eingang hängt ein Plan mit allen Räumen.",
        "Die Gäste fanden die Musik angenehm.",
        "Zwei Sorten Etiketten liegen zum Vergleich auf dem Tisch.",
        "Das Licht im Treppenhaus flackert manchmal.",
    ),
    answers=("Gut, weiter geht es.", "Habe ich aufgeschrieben."),
    names=(
        ("Hedwig", "Ruprecht", "Gesa", "Falk", "Almut", "Jorin"),
        ("Kranzler", "Ostermoor", "Wiesenthal", "Brackmann", "Sandvoss"),
    ),
    amount="{} Euro",
    date="{day}. {month}",
    months=("Januar", "März", "Juni", "August", "November"),
)

RUSSIAN: Final = Language(
    name="Russian",
    standing=(
        Standing("Посетителям нельзя входить в хранилище без перчаток.", ("хранилище", "без перчаток")),
        Standing("Шифр сейфа {c} никому не сообщаем.", ("{c}", "никому")),
        Standing("Счета свыше {m} подписывает {p}.", ("{m}", "{p}")),
        Standing("Книги возвращаются через {n} дней.", ("{n} дней", "книги")),
        Standing("Все размеры указывай в сантиметрах.", ("сантиметрах",)),
        Standing("Мне больше нравятся таблицы, чем сплошной текст.", ("таблицы", "сплошной текст")),
        Standing("Мастерская находится в корпусе {c}.", ("мастерская", "{c}")),
        Standing("Ночную смену в этом месяце ведёт {p}.", ("смену", "{p}")),
        Standing("Инвентаризация идёт, следующая полка {c}.", ("инвентаризация", "{c}")),
        Standing("Если рама треснула, сначала сфотографируй её и позови мастера.", ("сфотографируй", "мастера")),
        Standing("Сверка карточки {c} не проходит: ошибка контрольной суммы.", ("{c}", "контрольной суммы")),
        Standing("Печатать ли каталог, пока не решено.", ("каталог", "не решено")),
    ),
    changing=(
        Changing(
            "На праздник двора выделено {m}.", "На праздник двора теперь выделяют {m2}.", ("{m2}", "праздник"), ("{m}",)
        ),
        Changing("Экскурсия начинается в {t}.", "Экскурсию перенесли на {t2}.", ("{t2}", "экскурси"), ("{t}",)),
        Changing(
            "Столярной мастерской руководит {p}.", "Теперь столярной мастерской руководит {p2}.", ("{p2}",), ("{p}",)
        ),
        Changing("Тексты сдаём до {d}.", "Срок сдачи текстов изменился: {d2}.", ("{d2}", "текст"), ("{d}",)),
        Changing(
            "Входной билет стоит {m}.", "Входной билет подорожал и теперь стоит {m2}.", ("{m2}", "билет"), ("{m}",)
        ),
        Changing("Отвечай мне подробно.", "Отвечай мне теперь кратко.", ("кратко",), ("подробно",)),
        Changing("На ящиках стоит печать {c}.", "На ящиках теперь новая печать {c2}.", ("{c2}",), ("{c}",)),
        Changing(
            "В витрине допускается {n} люкс.", "В витрине теперь допускается {n2} люкс.", ("{n2} люкс",), (" {n} люкс",)
        ),
    ),
    pairs=(
        (
            Standing("Северную дверь открывает карта {c}.", ("{c}", "северную")),
            Standing("Южную дверь открывает карта {c}.", ("{c}", "южную")),
        ),
        (Standing("Кафе закрывается в {t}.", ("{t}", "кафе")), Standing("Лавка закрывается в {t}.", ("{t}", "лавка"))),
        (
            Standing("Летняя выставка откроется {d}.", ("{d}", "летняя")),
            Standing("Зимняя выставка откроется {d}.", ("{d}", "зимняя")),
        ),
    ),
    filler=(
        "Во дворе опять кто-то оставил велосипеды.",
        "Ящики подписаны аккуратнее, чем весной.",
        "Мы долго говорили о цвете стен.",
        "Деревянный пол зимой скрипит громче.",
        "У входа висит план со всеми комнатами.",
        "Гостям понравилась музыка.",
        "На столе лежат два вида этикеток для сравнения.",
        "Свет на лестнице иногда мигает.",
    ),
    answers=("Ладно, идём дальше.", "Записано."),
    names=(
        ("Глафира", "Прохор", "Устинья", "Савва", "Аглая"),
        ("Берестова", "Кольцун", "Ломакина", "Тихвин", "Зарецкая"),
    ),
    amount="{} рублей",
    date="{day} {month}",
    months=("января", "марта", "июня", "августа", "ноября"),
)

LANGUAGES: Final = (ENGLISH, GERMAN, RUSSIAN)
