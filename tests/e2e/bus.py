"""A NATS client (nats-py) for tests that are not asynchronous: one thread runs the
event loop, subscriptions fill plain lists."""

import asyncio
import threading

import nats


class Bus:
    def __init__(self, url):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.client = self._wait(nats.connect(url, connect_timeout=5, allow_reconnect=True))

    def watch(self, subject):
        """A list to which each message of the subject is appended as it comes."""
        seen = []

        async def note(message):
            seen.append(message)

        self._wait(self.client.subscribe(subject, cb=note, pending_msgs_limit=1 << 20))
        self.flush()
        return seen

    def publish(self, subject, payload):
        self._wait(self.client.publish(subject, payload))
        self.flush()

    def request(self, subject, payload, timeout=5):
        return self._wait(self.client.request(subject, payload, timeout=timeout)).data

    def flush(self):
        self._wait(self.client.flush())

    def close(self):
        self._wait(self.client.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def _wait(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout=30)
