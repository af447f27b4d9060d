"""Which words mean the same thing, so that a value given again in other words is known again.

Each group stands for one concept.  Groups in ``ATTRIBUTES`` name a property that anything can have (a price, a date, a
name): two statements that share nothing but such a word may be about different things.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_CYRILLIC: Final = re.compile(r"[\u0400-\u04ff]")
_CYRILLIC_ENDING: Final = re.compile(
    r"(?:иями|ями|ами|ого|его|ому|ему|ыми|ими|ая|яя|ое|ее|ые|ие|ый|ий|ой|ей|ою|ую|юю|ах|ях|ов|ев|ом|ем|ам|ям|ия|ии|ию"
    r"|[аяоеыиуюьй])$"
)
_LATIN_ENDING: Final = re.compile(r"(?:ly|ments|ment|ings|ing|ies|ed|es|en|er|ers|em|e|s|n|y)$")
_SHORTEST_STEM: Final = 3
_SHORTEST_COMPOUND: Final = 8
_SHORTEST_HEAD: Final = 4


def find_stem(word: str) -> str:
    """The stem of a lower-case word: marks folded, one common ending cut."""
    if word.isascii():
        folded = word
    else:
        folded = "".join(c for c in unicodedata.normalize("NFKD", word) if not unicodedata.combining(c))
        folded = folded.replace("ß", "ss")
    ending = _CYRILLIC_ENDING if _CYRILLIC.search(folded) else _LATIN_ENDING
    cut = ending.sub("", folded)
    return cut if len(cut) >= _SHORTEST_STEM else folded


ATTRIBUTES: Final = (
    (
        "budget spend spending spent expense expenses expenditure cost costs price outlay kosten ausgaben preis etat "
        "mittel dépense coût prix presupuesto gasto costo coste бюджет расходы затраты цена 予算 費用 経費 価格"
    ),
    "limit cap ceiling maximum threshold obergrenze grenze höchstgrenze limite plafond tope лимит предел 上限 限度",
    (
        "date deadline due schedule scheduled timing termin frist stichtag datum zeitpunkt échéance "
        "fecha plazo срок дата "
        "期限 締切 日程 日付 期日"
    ),
    (
        "name codename label title designation designated called calling named alias nickname "
        "codename rufname heißt nom "
        "nombre название имя кодовое 名前 名称 呼び名 コードネーム"
    ),
    (
        "clock clocks time times timestamp timestamps timezone zeit zeiten uhrzeit uhrzeiten "
        "zeitzone zeitstempel heure "
        "hora время часовой 時刻 時間 タイムゾーン"
    ),
    "version ausgabe версия バージョン",
    "address location site standort adresse ort dirección адрес 住所 場所",
    "number count amount quantity anzahl menge nombre cantidad число количество 数 件数 人数",
)
TOPICS: Final = (
    "answer answers reply replies response responses antwort antworten réponse respuesta ответ ответы 回答 返信 返答",
    "pager oncall standby duty shift rota bereitschaft dienst guardia astreinte дежурство дежурный 当番",
    "owner owns own responsible lead belongs zuständig verantwortlich leitung responsable ответственный 担当 責任者",
    "branch rebase rebased checkout zweig branche rama ветка ブランチ",
    (
        "password passcode pin code key secret passwort kennwort zugangscode schlüssel code clave пароль ключ код "
        "パスワード 暗証番号"
    ),
    "customer client kunde kundin cliente клиент заказчик 顧客",
    "server host machine rechner servidor сервер サーバー",
    "database db datenbank データベース",
    "meeting appointment besprechung treffen sitzung réunion reunión встреча совещание 会議 打ち合わせ",
    "bug defect issue mangel fehlerbericht дефект 不具合",
    "delivery shipment shipping lieferung versand livraison entrega доставка поставка 配送 納品",
    "invoice bill rechnung facture factura счет счёт 請求書",
    "trip travel journey reise voyage viaje поездка командировка 出張 旅行",
    "unit units measurement measurements measure einheit einheiten maßeinheiten единицы 単位",
    "report reports bericht berichte rapport informe отчет отчёт 報告 報告書",
    "language sprache langue idioma язык 言語",
    "hotel lodging accommodation unterkunft гостиница 宿泊 ホテル",
    "contact reach ansprechpartner contacto контакт 連絡先 窓口",
    "room raum zimmer saal salle sala комната зал 部屋 会議室",
    "supplier vendor lieferant anbieter fournisseur proveedor поставщик 仕入先",
    "backup copy sicherung резервная バックアップ",
    "staff team crew mannschaft belegschaft команда チーム",
)


def _index(groups: tuple[str, ...], mark: str) -> dict[str, str]:
    table: dict[str, str] = {}
    for number, group in enumerate(groups):
        for word in group.split():
            table.setdefault(find_stem(word), f"{mark}{number}")
    return table


_CONCEPTS: Final = {**_index(TOPICS, "+"), **_index(ATTRIBUTES, "=")}
_HEADS: Final = tuple(sorted((s for s in _CONCEPTS if len(s) >= _SHORTEST_HEAD), key=lambda s: (-len(s), s)))
_HEAD_AT_END: Final = re.compile(f"(?:{'|'.join(map(re.escape, _HEADS))})$")


def find_concepts(word: str) -> tuple[str, ...]:
    """What a lower-case word stands for: a concept, its stem, or for a compound its parts."""
    stem = find_stem(word)
    concept = _CONCEPTS.get(stem)
    if concept is not None:
        return (concept,)
    if len(stem) >= _SHORTEST_COMPOUND:
        head = _HEAD_AT_END.search(stem)
        if head is not None and head.start() >= _SHORTEST_STEM:
            before = find_stem(stem[: head.start()])
            return (_CONCEPTS.get(before, before), _CONCEPTS[head[0]])
    return (stem,)


def is_attribute(concept: str) -> bool:
    """Whether a concept is a property that anything can have."""
    return concept.startswith("=")
