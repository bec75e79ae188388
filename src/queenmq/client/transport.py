"""Sends the wire core's requests over httpx (HTTP/1.1, kept-alive connections) and repeats what may be repeated, until a deadline.

Never looks into a body and never decides what is safe: that is written on the Request and in `retry`.
Invariant: a call ends, with an answer or an error, within its timeout plus what the server may hold it by design.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Mapping

import httpx

from queenmq.client import retry
from queenmq.client.errors import NotReachable, OutcomeUnknown, QueenClientError, Unavailable, UsageError
from queenmq.client.message import Reply
from queenmq.client.wire import Request, raise_for
from queenmq.clock import Clock

# shorter than servers keep an idle connection (uvicorn: 5 s), so that a request doesn't meet the closing of its connection
_IDLE_SECONDS = 4.0


class Transport:
    """One server's address and the connections to it."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout: float,
        attempt_timeout: float,
        connections: int,
        clock: Clock,
        draw: Callable[[], float] = random.random,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"{url!r} is no address of a server", hint="it looks like http://127.0.0.1:6632")
        self.url = url.rstrip("/")
        self.timeout = timeout
        self._attempt_timeout = attempt_timeout
        self._clock = clock
        self._draw = draw
        # making a TLS context takes longer than many a program runs, and a plain address needs none
        tls = httpx.create_ssl_context(trust_env=False) if url.startswith("https://") else False
        self._http = _pool(headers, connections, tls)
        # held requests have connections of their own: many waiting consumers must not keep an acknowledgement from leaving
        self._held = _pool(headers, None, tls)

    async def close(self) -> None:
        """Closes every connection; calls in flight fail."""
        await self._http.aclose()
        await self._held.aclose()

    async def call(self, request: Request, *, timeout: float | None = None) -> Reply:
        """The answer to `request`, 2xx always; anything else is raised. `timeout` overrides the client's for all attempts together."""
        deadline = self._clock.monotonic() + (self.timeout if timeout is None else timeout) + request.hold
        attempt = 0
        perhaps: QueenClientError | None = None
        while True:
            attempt += 1
            try:
                reply = await self._once(request, deadline)
                raise_for(reply)
            except QueenClientError as failure:
                if retry.may_have_been_done(failure):
                    perhaps = failure
                asked = failure.retry_after if isinstance(failure, Unavailable) else None
                if retry.may_repeat(request, failure) and await self.pause(attempt, deadline, asked):
                    continue
                if perhaps is not None and perhaps is not failure and isinstance(failure, NotReachable | Unavailable):
                    # "nothing was sent" of the last try would hide that an earlier one may have been done
                    raise perhaps from failure
                raise
            else:
                return reply

    async def pause(self, attempt: int, deadline: float, retry_after: float | None = None) -> bool:
        """Waits before another try; False, at once, when that would be after the deadline."""
        wait = retry.pause(attempt, self._draw(), retry_after)
        if self._clock.monotonic() + wait >= deadline:
            return False
        await asyncio.sleep(wait)
        return True

    async def _once(self, request: Request, deadline: float) -> Reply:
        left = max(0.001, deadline - self._clock.monotonic())
        # what may be sent again gets a part of the time, so that there is time for the second try
        answer = min(left, self._attempt_timeout + request.hold) if request.after_loss or request.hold else left
        timeout = httpx.Timeout(connect=min(left, self._attempt_timeout), pool=left, read=answer, write=answer)
        headers = {} if request.body is None else {"content-type": "application/json"}
        sent = False

        async def follow(event: str, _: Mapping[str, object]) -> None:
            nonlocal sent
            sent = sent or event == "http11.send_request_headers.started"

        try:
            # httpx counts each read by itself; this is the end of the whole attempt, an answer in drops included
            async with asyncio.timeout(left):
                got = await (self._held if request.hold else self._http).request(
                    request.method,
                    self.url + request.path,
                    content=request.body,
                    headers=headers,
                    timeout=timeout,
                    extensions={"trace": follow},
                )
        except (httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
            raise UsageError(f"{self.url} can't be asked: {error}") from error
        except (httpx.TransportError, TimeoutError) as error:
            if not sent:
                raise NotReachable(f"{self.url} can't be reached: {_reason(error)}") from error
            raise OutcomeUnknown(f"{self.url} gave no answer to {request.method} {_plain(request.path)}: {_reason(error)}") from error
        except (httpx.InvalidURL, httpx.HTTPError) as error:
            raise UsageError(f"{self.url} can't be asked: {error}") from error
        except RuntimeError as error:
            if self._http.is_closed:
                raise UsageError("this client is closed", hint="use it inside its `async with` block") from error
            raise
        return Reply(got.status_code, got.content, got.headers.get("retry-after"))


def _pool(headers: Mapping[str, str], connections: int | None, tls: ssl.SSLContext | bool) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=_IDLE_SECONDS)
    try:
        # environment proxies are for the web; a queue on loopback must not be looked for behind one
        return httpx.AsyncClient(headers=dict(headers), trust_env=False, verify=tls, timeout=None, limits=limits)
    except (UnicodeError, TypeError, ValueError) as error:
        raise UsageError(f"a header can't be sent: {error}") from error


def _plain(path: str) -> str:
    return path.partition("?")[0]


_PLAINLY = {
    "ReadTimeout": "no answer in time",
    "TimeoutError": "no answer in time",
    "ConnectTimeout": "no connection in time",
    "PoolTimeout": "all of this client's connections are busy",
}


def _reason(error: BaseException) -> str:
    name = type(error).__name__
    return _PLAINLY.get(name) or str(error).strip() or name
