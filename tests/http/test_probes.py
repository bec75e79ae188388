"""What operators and probes read: health, figures in both forms, the list of queues."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families
from tests.http.wire import Plain


def test_probes_tell_who_answers(plain: Plain) -> None:
    for path in ("/health", "/readyz"):
        told = plain.get(path).json()
        assert (told["status"], told["database"]) == ("healthy", "connected") and told["server"] == "test" and told["version"]
    assert plain.get("/livez").json()["status"] == "alive"


def test_figures_count_what_was_done_in_both_forms(plain: Plain, queue: str) -> None:
    def read() -> dict[str, float]:
        figures: dict[str, float] = plain.get("/metrics").json()
        return figures

    before = read()
    assert plain.post("/api/v1/push", json={"items": [{"queue": queue, "payload": n} for n in range(3)]}).status_code == 201
    found = plain.get(f"/api/v1/pop/queue/{queue}", params={"batch": 10}).json()["messages"]
    plain.post("/api/v1/ack", json={name: found[0][name] for name in ("transactionId", "partitionId", "leaseId")})
    after = read()
    assert after["queen_items_total{kind=push}"] - before.get("queen_items_total{kind=push}", 0) == 3
    assert after["queen_items_total{kind=ack}"] - before.get("queen_items_total{kind=ack}", 0) == 1
    assert after["queen_messages_delivered_total"] - before.get("queen_messages_delivered_total", 0) == 3
    reply = plain.get("/metrics/prometheus")
    assert reply.headers["content-type"].startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(reply.text)}
    for name in ("queen_calls", "queen_call_seconds", "queen_lookup_lock_wait_seconds", "queen_stale_lookups", "queen_trigger_errors"):
        assert name in families, sorted(families)
    buckets = [
        sample for sample in families["queen_call_seconds"].samples if sample.name.endswith("_bucket") and sample.labels["kind"] == "pop"
    ]
    assert [sample.value for sample in buckets] == sorted(sample.value for sample in buckets) and buckets[-1].labels["le"] == "+Inf"


def test_queues_are_listed(plain: Plain, queue: str) -> None:
    plain.post("/api/v1/configure", json={"queue": f"{queue}.b.c"})
    (found,) = [each for each in plain.get("/api/v1/resources/queues").json()["queues"] if each["name"] == f"{queue}.b.c"]
    assert (found["namespace"], found["task"]) == (queue, "b")
