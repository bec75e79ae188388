"""A shop in one process: orders are pushed per customer, two groups work on them, parcels leave in the same transaction as the answer.

Usage: python examples/orders.py [URL]
"""

from __future__ import annotations

import asyncio
import sys

import msgspec

from queenmq.client import Message, Queen

ORDERS = 12


class Order(msgspec.Struct):
    """What a customer wants."""

    customer: str
    number: int


async def main(url: str) -> None:
    async with Queen(url) as q:
        for number in range(ORDERS):
            order = Order(customer=f"customer-{number % 3}", number=number)
            await q.push("shop.orders", order, partition=order.customer)

        mailed: list[int] = []
        shipped: list[int] = []

        def done() -> None:
            if len(mailed) == len(shipped) == ORDERS:
                q.stop()

        @q.consumer("shop.orders", group="mail", batch=5)
        async def confirm(message: Message) -> None:
            mailed.append(message.decode(Order).number)
            done()

        @q.consumer("shop.orders", group="ship", concurrency=3)
        async def ship(message: Message) -> None:
            order = message.decode(Order)
            async with q.transaction() as tx:
                tx.push("shop.parcels", {"order": order.number}, partition=order.customer)
                tx.ack(message)
            shipped.append(order.number)
            done()

        await q.run()
        parcels = await q.pop("shop.parcels", batch=100, partitions=3)
        await q.ack(parcels)
        print(f"{len(mailed)} mails, {len(parcels)} parcels")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:6632"))
