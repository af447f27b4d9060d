"""Words that carry no subject, and words that only label a sentence."""

from __future__ import annotations

from typing import Final


def _read_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LABELS: Final = _read_words(
    "note notes todo fact facts rule rules warning tip hint reminder important question answer example info goal task "
    "constraint requirement preference decision update summary problem issue ps fyi attention caution step hinweis "
    "achtung wichtig regel fakt merke notiz frage antwort aufgabe ziel vorgabe beispiel änderung remarque attention "
    "règle nota regla importante важно правило факт заметка вопрос внимание 注意 重要 規則 補足 質問 メモ"
)
"""Words before a colon that name a kind of sentence, never a thing with a value."""

FUNCTION_WORDS: Final = _read_words(
    "a an the this that these those it its they them their there here we our us he she his her i my me you your "
    "is are was were be been being has have had do does did will would shall should can could may might must "
    "and or but nor so if then than as at by for from in into of off on onto onto out over to under up with within "
    "without about after before until unless during between through per via not no never always only ever every "
    "each any all some both either neither more most less least very just also too still yet again now new old "
    "please let lets keep make made get got go goes gets show shows use used using "
    "take taken put set stay stays "
    "who what when where which how why while because since please today tomorrow yesterday week month year day "
    "update updated note changed change changes moved move moves switched previous longer instead rather below "
    "above exactly already actually currently current latest effective immediately henceforth forward going "
    "wants want prefers prefer like likes one ones other others same first last "
    "der die das den dem des ein eine einen einem einer eines dies diese dieser dieses es sie er wir uns unser "
    "unsere unserem unseren unserer ihr ihre ich du mein meine dein ist sind war waren sein wird werden wurde hat "
    "haben hatte kann können soll sollen muss müssen darf dürfen und oder aber wenn dann als an am auf aus bei beim "
    "bis durch für gegen hinter im in ins mit nach neben ohne seit über um unter von vom vor zu zum zur zwischen "
    "nicht kein keine keinen nie niemals immer nur noch schon auch so sehr mehr jetzt nun neu neue neuer neues neuen "
    "ab sofort künftig bitte lieber doch heute morgen gestern woche monat jahr tag geändert ändert verschoben liegt "
    "gilt lautet beträgt bleibt läuft steht "
    "le la les un une des du de et ou mais si est sont dans sur pour par avec sans ne pas plus ce cette nous vous "
    "au aux à il elle ils elles on se qui que son sa ses notre nos votre vos leur leurs sera a ont doit être été "
    "maintenant désormais nouveau nouvelle plutôt toujours jamais "
    "el los las una unos unas y o u e pero es son en con sin por para no más este esta esto ese esa eso nosotros "
    "a al del lo se su sus nos nuestro nuestra nuestros nuestras mi mis tu tus que como así ya muy también solo "
    "ser será serán está están estar ha han hay debe deben tiene tienen ahora hoy desde hasta entre mejor nuevo nueva "
    "siempre nunca alguien algo otro otra otros otras todo toda todos todas antes después "
    "и или но не ни на в во с со к ко у о об от до за из по под при для без это этот эта эти тот та те он она они мы "
    "вы я нас наш наша наше наши их его ее её был была было были есть будет что как так же только уже еще ещё теперь "
    "новый новая новое новые всегда никогда пожалуйста сейчас сегодня завтра"
)
"""Words that say nothing about what a sentence is about."""
