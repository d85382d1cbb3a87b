"""The pods of a cluster as kubernetes-asyncio sees them: list, watch from the list's version, and
list again when the server does not know it, the loop that the reference of the Kubernetes API describes."""

import asyncio
import collections
import contextlib
import threading

import aiohttp
from kubernetes_asyncio import client, config, watch
from kubernetes_asyncio.client.exceptions import ApiException

PAUSE_S = 0.05  # between attempts while the API does not answer


class Informer:
    """A thread that keeps `pods()` up to date until close().  namespace: None means all."""

    def __init__(self, kube, namespace="inference", labels="", fields="", page=500, watch_s=300):
        self.kube, self.namespace = kube, namespace
        self.words = {"label_selector": labels, "field_selector": fields}
        self.page, self.watch_s = page, watch_s
        self.lock = threading.Lock()
        self.known = {}  # (namespace, name): the pod as the API wrote it
        self.version = 0  # the version up to which `known` is complete
        self.events = []  # (type, name) of each event, without bookmarks
        self.counts = collections.Counter()  # lists, watches, 410, 401, ...
        self.trouble = None
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def pods(self):
        with self.lock:
            return dict(self.known)

    def check(self):
        """Raises the error that has ended it; otherwise returns itself."""
        if self.trouble:
            raise self.trouble
        return self

    def close(self):
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.task.cancel)
        self.thread.join()
        if self.trouble:
            raise self.trouble

    # ---- Inside, on the thread

    def _run(self):
        asyncio.set_event_loop(self.loop)
        self.task = self.loop.create_task(self._work())
        try:
            self.loop.run_until_complete(self.task)
        except asyncio.CancelledError:
            pass
        except Exception as trouble:  # shown by the test
            self.trouble = trouble
        finally:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    async def _work(self):
        is_listed = False
        while True:
            async with client.ApiClient(self._configuration()) as connection:
                try:
                    if not is_listed:
                        await self._list(self._function(connection))
                    is_listed = True
                    while True:
                        await self._watch(self._function(connection))
                except ApiException as refusal:
                    self.counts[refusal.status] += 1
                    is_listed = is_listed and refusal.status not in (410, 504)  # 504: a version in the future
                    if refusal.status not in (401, 403, 410, 429, 500, 503, 504):
                        raise
                except (aiohttp.ClientError, OSError, asyncio.TimeoutError):
                    self.counts["lost"] += 1
            await asyncio.sleep(PAUSE_S)

    def _configuration(self):
        configuration = client.Configuration()
        # A loader reads the token when it is made, and once a minute: a refused one needs a new loader.
        config.load_incluster_config(
            configuration, token_filename=str(self.kube.token_file), cert_filename=str(self.kube.ca_file),
            environ=self.kube.environment,
        )
        return configuration

    def _function(self, connection):
        api = client.CoreV1Api(connection)
        if self.namespace is None:
            return lambda **words: api.list_pod_for_all_namespaces(**self.words, **words)
        return lambda **words: api.list_namespaced_pod(self.namespace, **self.words, **words)

    async def _list(self, function):
        self.counts["lists"] += 1
        found, token = {}, None
        while True:
            words = {"_continue": token} if token else {}
            answer = await function(limit=self.page, _preload_content=False, **words)
            page = await checked(answer)
            for pod in page["items"]:
                found[key_of(pod)] = {"kind": "Pod", "apiVersion": "v1", **pod}
            token = page["metadata"].get("continue")
            if not token:
                break
        with self.lock:
            self.known, self.version = found, int(page["metadata"]["resourceVersion"])

    async def _watch(self, function):
        self.counts["watches"] += 1
        words = {"resource_version": self.version, "timeout_seconds": self.watch_s, "allow_watch_bookmarks": True}
        async with watch.Watch("object") as running:
            async for event in running.stream(function, **words):
                self._take(event["type"], event["raw_object"])

    def _take(self, kind, pod):
        with self.lock:
            self.version = int(pod["metadata"]["resourceVersion"])
            if kind == "BOOKMARK":
                return
            self.events.append((kind, pod["metadata"]["name"]))
            if kind == "DELETED":
                self.known.pop(key_of(pod), None)
            else:
                self.known[key_of(pod)] = pod


async def checked(answer):
    """Without _preload_content the library does not look at the status."""
    page = await answer.json(content_type=None)
    if answer.status != 200:
        raise ApiException(status=answer.status, reason=str(page.get("message")))
    return page


def key_of(pod):
    return pod["metadata"]["namespace"], pod["metadata"]["name"]
