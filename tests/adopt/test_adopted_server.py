"""A server on a database that was taken over: over HTTP, what had not been consumed comes out, sealed payloads included."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable

import httpx
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from tests.adopt.older import QUEUE_MODE, Older

from queenmq.errors import QueenError
from queenmq.postgres.migrate import migrate_connection
from queenmq.queen.encryption import SealBroken, Sealer
from queenmq.testing.live import LiveServer

KEY = bytes(range(32))


def sealed(value: object, nonce_bytes: int = 12, key: bytes = KEY) -> str:
    """As the older servers stored it: 16 bytes of nonce, of which the later ones used only 12."""
    nonce = os.urandom(16)
    found = AESGCM(key).encrypt(nonce[:nonce_bytes], json.dumps(value).encode(), None)
    parts = {"encrypted": found[:-16], "iv": nonce, "authTag": found[-16:]}
    return json.dumps({name: base64.b64encode(part).decode() for name, part in parts.items()})


async def test_a_server_delivers_what_was_not_consumed_and_goes_on(older: Older, empty_database_url: str) -> None:
    (p,) = await older.queue("orders")
    first = await older.message(p, 0, "t1")
    await older.message(p, 1, "t2", payload=json.dumps({"n": 2}))
    await older.message(p, 2, "t3", payload=sealed({"secret": 3}), is_encrypted=True)
    await older.message(p, 3, "t4", payload=sealed([4], nonce_bytes=16), is_encrypted=True)
    await older.cursor(p, QUEUE_MODE, 0, first)
    await migrate_connection(older.pg)
    with LiveServer(empty_database_url, {"QUEEN_ENCRYPTION_KEY": KEY.hex()}) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
            pushed = await http.post("/api/v1/push", json={"items": [{"queue": "orders", "payload": 5, "transactionId": "t5"}]})
            assert pushed.status_code == 201
            again = await http.post("/api/v1/push", json={"items": [{"queue": "orders", "payload": 0, "transactionId": "t1"}]})
            assert again.json()[0]["status"] == "duplicate"
            got = (await http.get("/api/v1/pop/queue/orders", params={"batch": 10})).json()
            assert [(m["transactionId"], m["data"], m["seq"]) for m in got["messages"]] == [
                ("t2", {"n": 2}, 2), ("t3", {"secret": 3}, 3), ("t4", [4], 4), ("t5", 5, 5),
            ]  # fmt: skip
            acks = [{"transactionId": m["transactionId"], "partitionId": m["partitionId"], "status": "completed"} for m in got["messages"]]
            answers = (await http.post("/api/v1/ack/batch", json={"acknowledgments": acks, "leaseId": got["leaseId"]})).json()
            assert all(answer["success"] for answer in answers)
            assert (await http.get("/api/v1/pop/queue/orders")).status_code == 204


@pytest.mark.parametrize(
    "stored", [lambda: sealed(1, key=bytes(32)), lambda: "{}", lambda: '{"iv": 1}', lambda: sealed(1).replace("iv", "vi")]
)
def test_a_foreign_seal_is_said_and_never_shown(stored: Callable[[], str]) -> None:
    with pytest.raises(SealBroken) as told:
        Sealer((("k", KEY),)).unseal(stored(), "orders")
    assert isinstance(told.value, QueenError)
    assert KEY.hex() not in str(told.value)
