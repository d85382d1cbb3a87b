"""The values of /metrics pages, read by Prometheus's own Python parser."""

import re

from prometheus_client import parser
from programs import TREE

TABLES = {
    "kvbridge": ["kvbridge/metrics.h", "daemon/metrics.h", "daemon/service.h", "kvbridge/rank_metrics.h", "daemon/http.h"],
    "kvaggregator": ["kvaggregator/metrics.h", "daemon/metrics.h", "daemon/service.h", "daemon/http.h", "grpc/server.h", "tokenize/tokenizer.h"],
}


class Page:
    """Parses one page into samples by name and labels; a sample that is there twice is an error."""

    def __init__(self, text):
        self.text = text
        self.samples = {}
        self.types = {}
        for family in parser.text_string_to_metric_families(text):
            # The parser takes _total off a counter's name.
            self.types[family.name + ("_total" if family.type == "counter" else "")] = family.type
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self.samples, f"twice on the page: {sample}"
                self.samples[key] = sample.value

    @classmethod
    def of(cls, daemon):
        status, text = daemon.http("GET", "/metrics")
        assert status == 200, text
        return cls(text)

    def rows(self, name, **labels):
        """{labels: value} of the samples that have at least these labels."""
        wanted = set(labels.items())
        return {key[1]: value for key, value in self.samples.items() if key[0] == name and wanted <= key[1]}

    def sum(self, name, **labels):
        rows = self.rows(name, **labels)
        assert rows, f"no {name} with {labels} on the page"
        return sum(rows.values())

    def names(self):
        """Names of samples: a histogram has three."""
        return {name for name, _ in self.samples}


def table(header):
    """[(id, type, name)] of the rows of a table of metrics."""
    text = (TREE / "bridge" / header).read_text()
    rows = re.findall(r'^ +X\((\w+), (\w+), "(\w+)", ', text, re.M)
    assert len(rows) > 5, f"{header} has no rows that this can read"
    return rows
