"""``python -m contextbus`` is the command ``contextbus``."""

from __future__ import annotations

from contextbus.cli import main

if __name__ == "__main__":
    main()
