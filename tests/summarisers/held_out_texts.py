"""A third set of texts, written before its first measurement and without sight of the summariser's word lists.

They come from everyday work of an agent: travel, support, data analysis, a party, a laboratory.
"""

from __future__ import annotations

from typing import Final

from tests.summarisers.probe_texts import Changing, Language, Standing

ENGLISH: Final = Language(
    name="English, held out",
    standing=(
        Standing("Never put walnuts in anything, {p1} is allergic.", ("walnuts", "{p1}")),
        Standing("All invoices must carry the cost centre {c1}.", ("invoices", "{c1}")),
        Standing("My loyalty number is {c2}, add it to each booking.", ("loyalty", "{c2}")),
        Standing("Hotel rooms may not cost more than {m1} altogether.", ("hotel", "{m1}")),
        Standing("Always greet callers by their first name.", ("first name",)),
        Standing("Report the figures without the outliers above {n1}.", ("outliers", "{n1}")),
        Standing("Sample {c3} must stay frozen until we are back.", ("frozen", "{c3}")),
        Standing("We decided on the median, because a few large orders skew the mean.", ("median", "skew")),
        Standing("{p2} looks after the allergy list.", ("allergy", "{p2}")),
        Standing("The analysis has to be handed in by {d1}.", ("analysis", "{d1}")),
        Standing("Don't promise a replacement without asking {p3}.", ("replacement", "{p3}")),
        Standing("The buffet has to be ready before {t1}.", ("buffet", "{t1}")),
    ),
    changing=(
        Changing(
            "The outbound flight leaves on {d1}.",
            "The airline moved us: the outbound flight now leaves on {d2}.",
            ("flight", "{d2}"),
            ("{d1}",),
        ),
        Changing(
            "The party is for {n1} guests.",
            "Six cousins joined, so the party is for {n2} guests after all.",
            ("{n2} guests",),
            ("{n1} guests",),
        ),
        Changing(
            "The customer's refund is {m1}.",
            "Correction from billing: the refund for the customer is {m2}.",
            ("refund", "{m2}"),
            ("{m1}",),
        ),
        Changing(
            "The code of the lab fridge is {c1}.",
            "Facilities reset the lab fridge, the code is {c2} from today.",
            ("fridge", "{c2}"),
            ("{c1}",),
        ),
        Changing(
            "Dinner is at {t1}.",
            "The caterer is late, let's have dinner at {t2} instead.",
            ("dinner", "{t2}"),
            ("{t1}",),
        ),
        Changing(
            "Our contact at the hotel is {p1}.",
            "At the hotel our contact has changed to {p2}.",
            ("contact", "{p2}"),
            ("{p1}",),
        ),
        Changing(
            "Use column {c3} as the customer key.",
            "That one has duplicates; the customer key should be column {c4}.",
            ("customer key", "{c4}"),
            ("{c3}",),
        ),
        Changing(
            "Incubate the plates until {t3}.",
            "Somebody opened the incubator, make that {t4} for the plates.",
            ("plates", "{t4}"),
            ("{t3}",),
        ),
    ),
    pairs=(
        (
            Standing("The parcel for order {c1} went to {p1}.", ("{c1}", "{p1}")),
            Standing("The parcel for order {c2} went to {p2}.", ("{c2}", "{p2}")),
        ),
        (
            Standing("The table by the window seats {n1}.", ("window", "{n1}")),
            Standing("The table by the door seats {n2}.", ("door", "{n2}")),
        ),
        (
            Standing("The vegan cake costs {m1}.", ("vegan", "{m1}")),
            Standing("The almond cake costs {m2}.", ("almond", "{m2}")),
        ),
    ),
    filler=(
        "Lovely weather over here, I might eat outside later on.",
        "Sorry, the doorbell rang, where were we again?",
        "Ha, my cat just walked all over the keyboard.",
        "I slept badly, so bear with me if I am a little slow today.",
        "That reminds me of a holiday we had years ago, good times.",
        "The coffee in this place is better than I expected.",
        "Thanks, it is nice to have some help with all of this.",
        "My neighbour is practising the trumpet once more, what a noise.",
    ),
    answers=("Glad to hear it, go on.", "Thanks for telling me."),
    names=(
        ("Imogen", "Rufus", "Odette", "Barnaby", "Saskia", "Linus"),
        ("Harrow", "Pemberton", "Lockhart", "Quayle", "Thornbury", "Vance"),
    ),
    amount="${}",
    date="{month} {day}",
    months=("February", "April", "June", "August", "November"),
)

SPANISH: Final = Language(
    name="Spanish, held out",
    standing=(
        Standing("Nunca pongas gambas en los platos, {p1} es alérgica.", ("gambas", "{p1}")),
        Standing("Todas las facturas deben llevar el código {c1}.", ("facturas", "{c1}")),
        Standing("Mi número de viajero frecuente es {c2}.", ("viajero", "{c2}")),
        Standing("El hotel no puede costar más de {m1} en total.", ("hotel", "{m1}")),
        Standing("Trata siempre de usted a los clientes.", ("de usted",)),
        Standing("Quita del informe los pedidos de menos de {n1} unidades.", ("pedidos", "{n1}")),
        Standing("La muestra {c3} tiene que quedarse en la nevera.", ("nevera", "{c3}")),
        Standing(
            "Hemos decidido usar la mediana porque unos pedidos muy grandes deforman la media.",
            ("mediana", "deforman"),
        ),
        Standing("De las reclamaciones se encarga {p2}.", ("reclamaciones", "{p2}")),
        Standing("El análisis hay que entregarlo antes del {d1}.", ("análisis", "{d1}")),
        Standing("No ofrezcas descuentos sin preguntar a {p3}.", ("descuentos", "{p3}")),
        Standing("El bufé debe estar listo a las {t1}.", ("bufé", "{t1}")),
    ),
    changing=(
        Changing(
            "El vuelo de ida sale el {d1}.",
            "La aerolínea nos avisa: el vuelo de ida sale ahora el {d2}.",
            ("vuelo", "{d2}"),
            ("{d1}",),
        ),
        Changing(
            "La fiesta es para {n1} invitados.",
            "Se apuntan unos primos, así que la fiesta será para {n2} invitados.",
            ("{n2} invitados",),
            ("{n1} invitados",),
        ),
        Changing(
            "El reembolso del cliente es de {m1}.",
            "Corrección de contabilidad: el reembolso del cliente es de {m2}.",
            ("reembolso", "{m2}"),
            ("{m1}",),
        ),
        Changing(
            "La clave del congelador es {c1}.",
            "Han reiniciado el congelador, la clave es {c2} desde hoy.",
            ("congelador", "{c2}"),
            ("{c1}",),
        ),
        Changing(
            "Cenamos a las {t1}.",
            "El cocinero llega tarde, mejor cenamos a las {t2}.",
            ("cenamos", "{t2}"),
            ("{t1}",),
        ),
        Changing(
            "Nuestro contacto en el hotel es {p1}.",
            "En el hotel ha cambiado nuestro contacto: ahora es {p2}.",
            ("contacto", "{p2}"),
            ("{p1}",),
        ),
        Changing(
            "Usa la columna {c3} como identificador del cliente.",
            "Tiene duplicados; el identificador del cliente debe ser la columna {c4}.",
            ("identificador", "{c4}"),
            ("{c3}",),
        ),
        Changing(
            "Deja las placas en la estufa hasta las {t3}.",
            "Alguien abrió la puerta, las placas se quedan en la estufa hasta las {t4}.",
            ("placas", "{t4}"),
            ("{t3}",),
        ),
    ),
    pairs=(
        (
            Standing("El paquete del pedido {c1} fue a {p1}.", ("{c1}", "{p1}")),
            Standing("El paquete del pedido {c2} fue a {p2}.", ("{c2}", "{p2}")),
        ),
        (
            Standing("En la mesa de la ventana caben {n1}.", ("ventana", "{n1}")),
            Standing("En la mesa de la puerta caben {n2}.", ("puerta", "{n2}")),
        ),
        (
            Standing("La tarta vegana cuesta {m1}.", ("vegana", "{m1}")),
            Standing("La tarta de almendra cuesta {m2}.", ("almendra", "{m2}")),
        ),
    ),
    filler=(
        "Qué buen tiempo hace por aquí, igual como en la terraza.",
        "Perdona, han llamado al timbre, ¿por dónde íbamos?",
        "Ja, el gato acaba de pasearse por el teclado.",
        "He dormido fatal, así que ten paciencia conmigo.",
        "Esto me recuerda a unas vacaciones de hace años.",
        "El café de este sitio es mejor de lo que esperaba.",
        "Gracias, da gusto tener ayuda con todo esto.",
        "El vecino está otra vez con la trompeta, menudo ruido.",
    ),
    answers=("Me alegro, sigue, por favor.", "Gracias por decírmelo."),
    names=(
        ("Jimena", "Rodrigo", "Inés", "Gonzalo", "Leire", "Amparo"),
        ("Barrera", "Quintana", "Olmedo", "Zabala", "Herrero", "Montes"),
    ),
    amount="{} euros",
    date="{day} de {month}",
    months=("febrero", "abril", "junio", "agosto", "noviembre"),
)

HELD_OUT: Final = (ENGLISH, SPANISH)
