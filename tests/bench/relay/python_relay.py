#!/usr/bin/env python3
"""The relay that a user would write in Python: the asyncio of pyzmq and nats-py, msgspec, json,
and one publish for each message, as their manuals show it.  It publishes events in the form of the
bridge's, with what a batch contains; nothing is hashed, compared or remembered.  (A relay that takes
many batches from the socket at each wake-up and never waits in between reaches about twice the
rate.)

    relay.py FILE URL SUBJECT     FILE: an endpoint a line"""

import asyncio
import json
import sys

import msgspec
import nats
import zmq
import zmq.asyncio


def events_of(payload, decode):
    """Of vLLM's array form: [ts, [[tag, block_hashes, parent, ...], ...], rank]."""
    batch = decode(payload)
    for event in batch[1]:
        if event[0] == "BlockStored":
            blocks = [{"block_hash": name, "tokens_hash": 0} for name in event[1]]
            yield {"stored": {"parent_hash": event[2], "blocks": blocks}}
        elif event[0] == "BlockRemoved":
            yield {"removed": {"block_hashes": event[1]}}
        elif event[0] == "AllBlocksCleared":
            yield "cleared"


async def relay(endpoints, url, subject):
    bus = await nats.connect(url)
    socket = zmq.asyncio.Context().socket(zmq.SUB)
    socket.rcvhwm = 0
    socket.subscribe(b"")
    for endpoint in endpoints:
        socket.connect(endpoint)
    decode = msgspec.msgpack.Decoder().decode
    event_id = 0
    while True:
        frames = await socket.recv_multipart()
        for data in events_of(frames[-1], decode):
            event_id += 1
            event = {"worker_id": 1, "event": {"event_id": event_id, "data": data, "dp_rank": 0}}
            await bus.publish(subject, json.dumps(event, separators=(",", ":")).encode())


def main():
    with open(sys.argv[1], encoding="ascii") as file:
        endpoints = file.read().split()
    asyncio.run(relay(endpoints, sys.argv[2], sys.argv[3]))


if __name__ == "__main__":
    main()
