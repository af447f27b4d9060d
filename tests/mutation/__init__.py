"""A sample of mutants of the pure core, each run against exactly the tests that cover it."""
