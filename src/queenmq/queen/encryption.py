"""Payloads at rest: AES-256-GCM under the first key, opened under any of them.

A sealed payload is a JSON string `key id . base64(nonce, ciphertext)`, bound to its queue's name. What an older system had sealed (a JSON
object `encrypted`, `iv`, `authTag`, taken over by a migration) opens too, under whichever key fits. Pure but for the nonce. Never logs or
returns a key. Invariant: `unseal(seal(x)) == x` byte for byte, and a payload moved to another queue doesn't open.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from queenmq.errors import QueenError, SealRequired


class SealBroken(QueenError):
    """A stored payload doesn't open."""

    code = "seal_broken"


class Sealer:
    """The keys of one server; the first seals."""

    def __init__(self, keys: tuple[tuple[str, bytes], ...]) -> None:
        self._keys = {name: AESGCM(key) for name, key in keys}
        self._first = keys[0][0] if keys else None

    @property
    def ready(self) -> bool:
        """There is a key to seal with."""
        return self._first is not None

    def seal(self, payload: str, queue: str) -> str:
        """The payload as it is stored."""
        if self._first is None:
            raise SealRequired(f"queue {queue} demands encryption and this server has no key: set QUEEN_ENCRYPTION_KEY")
        nonce = os.urandom(12)
        sealed = self._keys[self._first].encrypt(nonce, payload.encode(), queue.encode())
        return f'"{self._first}.{base64.b64encode(nonce + sealed).decode()}"'

    def unseal(self, stored: str, queue: str) -> str:
        """The payload as it was sent."""
        if stored.lstrip().startswith("{"):
            return self._open_older(stored, queue)
        name, _, text = stored.strip('"').rpartition(".")
        key = self._keys.get(name)
        if key is None:
            raise SealBroken(f"a message of queue {queue} is sealed with the key {name!r}, unknown here: add it to QUEEN_ENCRYPTION_KEYS")
        try:
            data = base64.b64decode(text, validate=True)
            return key.decrypt(data[:12], data[12:], queue.encode()).decode()
        except (InvalidTag, ValueError):
            raise SealBroken(f"a message of queue {queue} doesn't open with the key {name!r}") from None

    def _open_older(self, stored: str, queue: str) -> str:
        try:
            parts = {name: base64.b64decode(text, validate=True) for name, text in json.loads(stored).items()}
            nonce, sealed = parts["iv"], parts["encrypted"] + parts["authTag"]
        except (ValueError, TypeError, KeyError):
            raise SealBroken(f"a message of queue {queue} is sealed in a form that is unknown here") from None
        # its servers stored 16 bytes of nonce; the later ones used only 12 of them
        for key in self._keys.values():
            for used in (nonce[:12], nonce):
                with contextlib.suppress(InvalidTag, ValueError):
                    return key.decrypt(used, sealed, None).decode()
        raise SealBroken(f"a message of queue {queue} was sealed by the older system and opens with none of the keys here: add its key")
