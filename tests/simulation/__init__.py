"""All actors, log and store in one process under a seeded scheduler: how the races are found (design: section 2)."""
