"""The rules.  REPLAYED: pure functions of their arguments; no I/O, clock or chance."""
