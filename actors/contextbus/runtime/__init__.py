"""The world: host, buses, journal, blobs, embedded server, clock. FREE: nothing is replayed."""
