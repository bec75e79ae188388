"""QueenMQ: durable partitioned queues, one server, one PostgreSQL."""

__version__ = "0.1.0"
