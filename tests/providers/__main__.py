"""Start a provider on this machine: ``python -m tests.providers anthropic``; Ctrl-C ends it."""

from __future__ import annotations

import argparse
import asyncio
import itertools

from tests.providers.scripts import SCRIPTS
from tests.providers.server import serve


async def main(options: argparse.Namespace) -> None:
    """Serve until the process is told to stop; a script that is over begins again."""
    script = itertools.cycle(SCRIPTS[options.script]())
    async with serve(options.provider, script, strict=not options.lenient, port=options.port) as server:
        print(server.url, flush=True)
        told = 0
        while True:
            await asyncio.sleep(0.2)
            for exchange in server.exchanges[told:]:
                print(exchange.status, exchange.used or exchange.found or "", flush=True)
            told = len(server.exchanges)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.providers", description=__doc__)
    parser.add_argument("provider", choices=("anthropic", "openai"))
    parser.add_argument("--script", choices=tuple(SCRIPTS), default="operations", help="what the model answers")
    parser.add_argument("--port", type=int, default=0, help="a port; without it a free one, which is printed")
    parser.add_argument("--lenient", action="store_true", help="take what only strict endpoints refuse (L rules)")
    try:
        asyncio.run(main(parser.parse_args()))
    except KeyboardInterrupt:
        print("stopped")
