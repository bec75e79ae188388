"""The durable, partitioned queue: manager (what the routes call) over the sidecar (what talks to the database)."""
