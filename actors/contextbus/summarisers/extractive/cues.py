"""Words that tell what a sentence is for, as small tables by language.

A table holds function words and common verbs only.  A trailing ``*`` stands for any ending.  Languages that are not
listed still work: their sentences are weighed by what else they hold (values, names, labels of the writer).
"""

from __future__ import annotations

import re
from typing import Final

from contextbus.summarisers.extractive.word_tables import WordTable

CASES: Final = ("If ", "When ", "Wenn ", "Falls ", "Sobald ", "Если ", "Когда ", "Si ", "Cuando ", "Quand ")
"""How a sentence begins that says what to do in some case."""

CONDITIONS: Final = (*CASES, "No ")
"""How a sentence begins that says what to do in some case, or what there must not be."""

DUTY: Final = WordTable(
    (
        *("must", "must not", "mustn't", "never", "always", "may not", "shall", "shall not"),
        *("have to", "has to", "required", "requires", "forbidden", "prohibited", "not allowed", "not permitted"),
        *("no more than", "at most", "at least", "under no", "on no account", "mandatory", "no exceptions"),
    ),
    (
        *("muss", "müssen", "musst", "darf", "darfst", "dürfen", "nie", "niemals", "immer", "stets", "keinesfalls"),
        *(
            "auf keinen Fall",
            "verboten",
            "untersagt",
            "Pflicht",
            "höchstens",
            "mindestens",
            "ausnahmslos",
            "nicht ohne",
        ),
        *("unter keinen Umständen", "unter keinem", "zwingend", "verbindlich"),
    ),
    ("doit", "doivent", "devez", "jamais", "toujours", "interdit*", "obligatoire*", "il faut", "au plus", "au moins"),
    ("debe", "deben", "nunca", "siempre", "prohibido", "obligatorio", "hay que", "como máximo", "al menos"),
    (
        *("должен", "должна", "должно", "должны", "нельзя", "никогда", "всегда", "запрещено", "запрещается"),
        *("обязательно", "обязан", "не более", "не менее", "ни в коем случае"),
    ),
    (
        "必ず",
        "絶対に",
        "てはいけ",
        "てはなら",
        "ないでください",
        "禁止",
        "なければなら",
        "しないこと",
        "以内",
        "常に",
        "厳禁",
    ),
)
"""Duty and prohibition: what a standing rule says."""

_ORDER_NOT: Final = re.compile(r"(?<!\bi )(?<!\bwe )(?<!\byou )(?<!\bthey )\b(?:do not|don['’]t)\b", re.IGNORECASE)


def is_duty(text: str) -> bool:
    """Whether a text says what must or must not be; "I don't know" does not."""
    return DUTY.is_in(text) or _ORDER_NOT.search(text) is not None


CARE: Final = WordTable(
    (
        *("should", "should not", "only", "avoid", "make sure", "ensure", "unless", "until", "before", "without"),
        *(
            "keep",
            "stick to",
            "limit",
            "refrain",
            "instead of",
            "whenever",
            "every",
            "each",
            "nobody",
            "no one",
            "not later than",
        ),
    ),
    (
        *(
            "soll",
            "sollen",
            "sollte",
            "nur",
            "ausschließlich",
            "vermeide*",
            "bevor",
            "bis",
            "ohne",
            "vor dem",
            "vor der",
        ),
        *(
            "achte",
            "sofern",
            "solange",
            "kein",
            "keine",
            "keinen",
            "niemand*",
            "jede*",
            "alle",
            "sämtliche*",
            "erst nach",
            "spätestens",
            "statt",
        ),
    ),
    ("seulement", "sauf", "avant", "sans", "évite*", "uniquement", "chaque", "tous", "toutes"),
    ("solo", "salvo", "antes de", "sin", "evita*", "únicamente", "cada", "todos", "todas"),
    (
        "только",
        "без",
        "до",
        "прежде чем",
        "следует",
        "избега*",
        "лишь",
        "вместо",
        "кажд*",
        "все",
        "всех",
        "никто",
        "никому",
        "никого",
    ),
    ("だけ", "のみ", "前に", "まで", "場合は", "してください", "べき", "すべて", "全て"),
)
"""Care and condition: weaker signs of a rule."""

WISH: Final = WordTable(
    (
        "want",
        "wants",
        "prefer",
        "prefers",
        "would like",
        "would rather",
        "i'd rather",
        "i'd like",
        "i like",
        "please",
        "favour*",
    ),
    ("möchte*", "bevorzug*", "lieber", "wünsch*", "bitte", "hätte gern*", "mag"),
    ("veux", "voudrais", "préfère*", "merci de", "s'il vous plaît", "souhait*"),
    ("quiero", "quisiera", "prefier*", "por favor"),
    ("хочу", "хотел*", "предпочита*", "пожалуйста", "лучше", "нравится", "нравятся"),
    ("希望", "お願い", "好み", "ほしい", "欲しい"),
)
"""Wish and preference."""

DECISION: Final = WordTable(
    (
        *(
            "decided",
            "decision",
            "agreed",
            "we will",
            "we'll",
            "i will",
            "i'll",
            "chose",
            "chosen",
            "settled",
        ),
        *("confirmed", "completed", "done", "finished", "approved", "has been", "have been", "successfully", "go with"),
    ),
    (
        *("entschieden", "beschlossen", "vereinbart", "Entscheidung", "wir werden", "gewählt", "bestätigt", "erledigt"),
        *("abgeschlossen", "fertig", "genehmigt", "einigten"),
    ),
    ("décidé", "convenu", "terminé", "confirmé", "choisi"),
    ("decidido", "acordado", "terminado", "confirmado", "elegido"),
    ("решили", "решено", "договорились", "выбрали", "готово", "завершен*", "подтвержден*", "согласован*"),
    ("決定", "決め", "合意", "完了", "承認", "採用"),
)
"""Decisions and finished work."""

GOAL: Final = WordTable(
    (
        *("goal", "objective", "aim", "task", "next step", "next up", "we are working on", "working on", "plan to"),
        *("i want to", "i need to", "i'd like to", "i would like to", "i need help", "help me", "can you", "could you"),
        *("we need to", "we want to", "i'm trying to", "i am trying to", "looking to", "i need you to"),
    ),
    (
        *(
            "Ziel",
            "Aufgabe",
            "nächster Schritt",
            "nächste Schritt",
            "ich brauche",
            "kannst du",
            "können Sie",
            "hilf mir",
        ),
        *("wir wollen", "wir arbeiten an", "ich will", "als Nächstes", "wir brauchen"),
    ),
    ("objectif", "but", "tâche", "prochaine étape", "pouvez-vous", "j'ai besoin", "je veux"),
    ("objetivo", "tarea", "siguiente paso", "puedes", "necesito"),
    ("цель", "задача", "следующий шаг", "нужно", "помоги*", "надо", "можешь", "можете"),
    ("目的", "目標", "課題", "次は", "たいです", "必要が"),
)
"""Goals, requests and the next step."""

OPEN: Final = WordTable(
    (
        *("open question", "to be decided", "tbd", "undecided", "unclear", "pending", "waiting for", "awaiting"),
        *("not yet decided", "still open", "remains open", "unresolved", "to be confirmed"),
    ),
    ("offene Frage", "offen", "ungeklärt", "unklar", "steht noch aus", "warten auf", "noch nicht entschieden"),
    ("en attente", "à décider", "question ouverte"),
    ("pendiente", "por decidir", "pregunta abierta"),
    ("открытый вопрос", "не решено", "неясно", "ожида*", "под вопросом"),
    ("未定", "未解決", "検討中", "保留", "待ち"),
)
"""Questions that nobody has answered yet."""

FAILURE: Final = WordTable(
    (
        *("error", "errors", "failed", "fails", "failing", "failure", "exception", "traceback", "denied", "timed out"),
        *("timeout", "not found", "crash*", "broken", "refused", "unable to", "could not", "couldn't", "rejected"),
        *("invalid", "fatal", "panic"),
    ),
    (
        "Fehler",
        "fehlgeschlagen",
        "scheiter*",
        "schlägt fehl",
        "abgestürzt",
        "Zeitüberschreitung",
        "abgelehnt",
        "kaputt",
    ),
    ("erreur", "échec", "échoué", "impossible", "refusé"),
    ("error", "falló", "fallo", "rechazad*", "imposible"),
    ("ошибка", "ошибки", "не удалось", "сбой", "отказано", "упал*", "не работает", "не проходит"),
    ("エラー", "失敗", "例外", "拒否", "見つかりません", "できません"),
)
"""Failures."""

_NO_FAILURE: Final = re.compile(
    r"(?<!\w)(?:no|without(?: any)?|zero|0|not a single|keine?|ohne|без|нет|sans|aucune?|sin|ningún)\s+(?:\w+\s+)?"
    r"(?:errors?|failures?|exceptions?|fehler\w*|ошиб\w+|сбо\w+|erreurs?|error\w*)",
    re.IGNORECASE,
)


def is_failure(text: str) -> bool:
    """Whether a text tells of a failure; "no errors" does not."""
    return FAILURE.is_in(text) and FAILURE.is_in(_NO_FAILURE.sub(" ", text))


SELF: Final = WordTable(
    ("i", "i'm", "i'd", "i'll", "i've", "my", "me", "you", "your", "mine"),
    ("ich", "mich", "mir", "mein*", "du", "dich", "dein*"),
    ("je", "j'ai", "mon", "ma", "mes", "vous", "votre"),
    ("yo", "mi", "mis", "usted", "tú"),
    ("я", "мне", "меня", "мой", "моя", "ты", "вы", "вам", "ваш*"),
    ("私", "僕", "あなた"),
)
"""First and second person: the line says who spoke."""

_END_OF_ANSWER: Final = r"(?:\s*[,.!;:、。！…]+\s*|\s+[–—-]+\s+|\s*[–—]\s*|\s*$)"
COURTESY: Final = re.compile(
    r"^(?:"
    # a greeting begins no statement, so it needs no sign behind it
    r"(?:hi there|hi|hello there|hello|hey there|hey|hallo|bonjour|hola|привет)(?:[\s,.!;:、。！]+|$)"
    # an answer word may belong to the statement: "No refund was paid", "Right turns only"
    r"|(?:ok(?:ay)?|yes|no problem|no|sure|great|perfect|noted|got it|understood|alright|right"
    r"|good(?: (?:morning|day|evening))?|you['’]?re welcome|of course|certainly|absolutely"
    r"|acknowledged|ja|nein|gut|alles klar|verstanden|gern(?:e)?|klar|in ordnung|oui|non|sí|si|да|нет"
    r"|хорошо|понятно|はい|いいえ|了解(?:です|しました)?"
    r"|(?:many |vielen )?"
    r"(?:thanks?(?: you)?(?! to\b)|danke?|merci|gracias|спасибо|ありがとう(?:ございます)?)(?!\w)[^\d,.!?。！;:]{0,60})"
    rf"{_END_OF_ANSWER})+",
    re.IGNORECASE,
)
"""Greetings at the head of a sentence; thanks, answers and acknowledgements where a sign ends them."""

_POLITE: Final = r"(?:(?:please|kindly|bitte|por favor|merci de|пожалуйста)\s+)"
ASSENT: Final = re.compile(
    r"^(?:and\s+|so\s+|then\s+)?(?:"
    rf"{COURTESY.pattern[1:]}"
    r"|i (?:do |hereby |can )?(?:confirm|agree|approve|understand)(?: (?:this|that|it|everything|the \w+(?: \w+)?))?"
    r"|(?:that|this|it|everything|all)(?:['’]s| is| looks| sounds| seems)"
    r"(?: all)? (?:correct|right|fine|good|great|perfect|ok(?:ay)?)"
    r"|(?:looks|sounds) (?:correct|right|fine|good|great|perfect)(?: to me)?"
    rf"|{_POLITE}?(?:do go ahead|go ahead|proceed|continue|carry on|do so|do it|do that|confirm)"
    r"(?: (?:and|to) \w+(?: it| that| this)?)?(?: with (?:it|(?:this|that|the|these|those|my)(?: \w+){1,2}|this|that))?"
    r"|(?:you have )?my (?:confirmation|approval|consent)"
    r"|(?:ich bestätige|bestätigt|mach weiter|bitte fortfahren|passt so|je confirme|confirmo|подтверждаю)(?: \w+)?"
    r")[\s.!,;]*$",
    re.IGNORECASE,
)
"""A sentence that only agrees to what was offered."""

ASKING: Final = re.compile(
    rf"(?:^|[.,!:]\s+)(?:and\s+|also,?\s+|if so,?\s+)?{_POLITE}"
    r"(?:confirm|let me know|provide|tell me|share|specify|reply|advise|hold on"
    r"|feel free|bestätig\w*|sagen sie|confirmer|confirme|подтверд\w+)(?!\w)|^let me know(?!\w)|^feel free(?!\w)"
    r"|(?:have|need) (?:any )?(?:further|other|more) (?:questions|assistance)|any(?:thing)? (?:else|other) i can",
    re.IGNORECASE,
)
"""An answer that asks for something to be said."""
