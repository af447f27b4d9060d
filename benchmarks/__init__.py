"""Benchmarks: ratios of this library to a yardstick that is measured beside it, in the same run."""
