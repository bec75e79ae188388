"""HTTP: raw ASGI on the hot routes, Starlette for the rest. Knows the manager; knows no SQL."""
