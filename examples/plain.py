"""The client without asyncio: push, pop, acknowledge, and a plain function as a handler.

Usage: python examples/plain.py [URL]
"""

from __future__ import annotations

import sys

from queenmq.client import Message, SyncQueen


def main(url: str) -> None:
    with SyncQueen(url) as q:
        q.configure("mails", lease_time=30, retry_limit=5)
        q.push_many("mails", [{"to": "a"}, {"to": "b"}, {"to": "c"}])

        [first] = q.pop("mails")
        print("popped", first.data["to"])
        q.ack(first)

        @q.consumer("mails", batch=10)
        def send(message: Message) -> None:
            print("sent", message.data["to"])
            if message.data["to"] == "c":
                q.stop()

        q.run()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:6632")
