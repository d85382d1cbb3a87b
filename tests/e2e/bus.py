"""A NATS client (nats-py) for tests that are not asynchronous: one thread runs the
event loop, subscriptions fill plain lists."""

import asyncio
import threading

import nats

import programs


class Bus:
    def __init__(self, url, credentials=None):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.client = self._wait(nats.connect(
            url, connect_timeout=programs.DEADLINE_S, allow_reconnect=True, reconnect_time_wait=0.1,
            max_reconnect_attempts=-1, user_credentials=credentials and str(credentials),
        ))

    def watch(self, subject):
        """A list to which each message of the subject is appended when it arrives."""
        seen = []

        async def note(message):
            seen.append(message)

        self._wait(self.client.subscribe(subject, cb=note, pending_msgs_limit=1 << 20))
        self.flush()
        return seen

    def publish(self, subject, payload, reply=""):
        self._wait(self.client.publish(subject, payload, reply=reply))
        self.flush()

    def send(self, subject, payload, reply=""):
        """Publishes without waiting for the server."""
        self._wait(self.client.publish(subject, payload, reply=reply))

    def send_all(self, *messages):
        """Messages of (subject, payload, reply), without waiting for this thread in between."""
        async def send():
            for subject, payload, reply in messages:
                await self.client.publish(subject, payload, reply=reply)

        self._wait(send())
        self.flush()

    def request(self, subject, payload, timeout=programs.DEADLINE_S):
        return self._wait(self.client.request(subject, payload, timeout=timeout)).data

    def request_many(self, subject, payload=b"", enough=1):
        """All answers to one request. Waits until `enough` have arrived, and then for the duration
        of a PING, so that an answer too many is seen too."""
        inbox = self.client.new_inbox()
        answers = self.watch(inbox)
        self._wait(self.client.publish(subject, payload, reply=inbox))
        programs.wait_for(f"{enough} answers to {subject}", lambda: len(answers) >= enough)
        self.flush()
        return [answer.data for answer in answers]

    def flush(self):
        self._wait(self.client.flush(timeout=programs.DEADLINE_S))

    def close(self):
        self._wait(self.client.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def _wait(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout=2 * programs.DEADLINE_S)
