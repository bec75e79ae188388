"""What a server remembers so that it needn't ask: advisory caches. PostgreSQL decides: a wrong entry costs a round trip, no message."""
