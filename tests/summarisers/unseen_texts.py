"""Texts that the summariser was never worked on with: they say what it does with a language and words that come new.

Keep it so: whoever changes the summariser with these texts at hand moves them to the held-out ones and writes others.
"""

from __future__ import annotations

from typing import Final

from tests.summarisers.probe_texts import Changing, Language, Standing

FRENCH: Final = Language(
    name="French, unseen",
    standing=(
        Standing("Ne mets jamais de noix dans le gâteau, {p1} y est allergique.", ("noix", "{p1}")),
        Standing("Chaque devis doit porter la référence {c1}.", ("devis", "{c1}")),
        Standing("Mon numéro de passager est {c2}.", ("passager", "{c2}")),
        Standing("La location de la voiture ne doit pas dépasser {m1}.", ("location", "{m1}")),
        Standing("Réponds toujours aux clients en les vouvoyant.", ("vouvoyant",)),
        Standing("Écarte les mesures au-dessus de {n1} lors du calcul.", ("mesures", "{n1}")),
        Standing("Le flacon {c3} reste à l'abri de la lumière.", ("lumière", "{c3}")),
        Standing("Nous avons choisi le train parce que l'avion pollue trop.", ("train", "pollue")),
        Standing("{p2} s'occupe des réclamations.", ("réclamations", "{p2}")),
        Standing("Il faut rendre le rapport avant le {d1}.", ("rapport", "{d1}")),
        Standing("Pas de remise sans l'accord de {p3}.", ("remise", "{p3}")),
        Standing("Les invités arrivent à partir de {t1}.", ("invités", "{t1}")),
    ),
    changing=(
        Changing("Le train part le {d1}.", "Le départ du train est repoussé au {d2}.", ("train", "{d2}"), ("{d1}",)),
        Changing(
            "La salle accueille {n1} personnes.",
            "On a ajouté des chaises, la salle accueille {n2} personnes.",
            ("{n2} personnes",),
            ("{n1} personnes",),
        ),
        Changing(
            "Le traiteur demande {m1}.",
            "Le traiteur a revu son prix, il demande maintenant {m2}.",
            ("traiteur", "{m2}"),
            ("{m1}",),
        ),
        Changing(
            "Le mot de passe du wifi est {c1}.",
            "Le wifi a été réinitialisé, le mot de passe est {c2}.",
            ("wifi", "{c2}"),
            ("{c1}",),
        ),
        Changing(
            "La réunion commence à {t1}.", "Finalement, la réunion commence à {t2}.", ("réunion", "{t2}"), ("{t1}",)
        ),
        Changing(
            "La photographe de la fête est {p1}.",
            "La photographe est malade, c'est {p2} qui la remplace.",
            ("photographe", "{p2}"),
            ("{p1}",),
        ),
        Changing(
            "Range les échantillons dans le tiroir {c3}.",
            "Les échantillons vont désormais dans le tiroir {c4}.",
            ("échantillons", "{c4}"),
            ("{c3}",),
        ),
        Changing("Chauffe le four jusqu'à {t3}.", "Le four doit chauffer jusqu'à {t4}.", ("four", "{t4}"), ("{t3}",)),
    ),
    pairs=(
        (
            Standing("Le colis {c1} est pour {p1}.", ("{c1}", "{p1}")),
            Standing("Le colis {c2} est pour {p2}.", ("{c2}", "{p2}")),
        ),
        (
            Standing("La boîte rouge contient {n1} vis.", ("rouge", "{n1}")),
            Standing("La boîte verte contient {n2} vis.", ("verte", "{n2}")),
        ),
        (
            Standing("La tarte aux pommes coûte {m1}.", ("pommes", "{m1}")),
            Standing("La tarte aux poires coûte {m2}.", ("poires", "{m2}")),
        ),
    ),
    filler=(
        "Il fait un temps superbe, je mangerai peut-être dehors.",
        "Pardon, on a sonné à la porte, où en étions-nous ?",
        "Le chat vient de marcher sur mon clavier.",
        "J'ai mal dormi, un peu de patience avec moi.",
        "Cela me rappelle des vacances d'il y a longtemps.",
        "Le café est meilleur ici que je ne pensais.",
        "C'est agréable d'avoir un coup de main pour tout ça.",
        "Le voisin répète encore sa trompette, quel bruit.",
    ),
    answers=("Très bien, je vous écoute.", "C'est noté."),
    names=(
        ("Maëlle", "Gaspard", "Solène", "Tanguy", "Apolline", "Firmin"),
        ("Garnier", "Delorme", "Vasseur", "Lacombe", "Thibault", "Marchal"),
    ),
    amount="{} euros",
    date="{day} {month}",
    months=("février", "avril", "juin", "juillet", "novembre"),
)
