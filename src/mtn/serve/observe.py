"""Events -> log lines, one JSON object each, and figures for Prometheus."""

import json
import logging
import sys
import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()
SECONDS = Histogram(
    "mtn_request_seconds",
    "Time from a request's head to the end of its answer.",
    ("method", "route", "status"),
    registry=REGISTRY,
    buckets=(0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
)
ROWS = Histogram(
    "mtn_pass_rows", "Vectors of one pass.", registry=REGISTRY, buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
)
LESSONS = Counter("mtn_lessons", "Lessons by how they ended.", ("outcome",), registry=REGISTRY)
WAITING = Gauge("mtn_jobs_waiting", "Jobs accepted and not finished.", registry=REGISTRY)
CLASSES = Gauge("mtn_classes", "Classes known.", registry=REGISTRY)
EXEMPLARS = Gauge("mtn_exemplars", "Samples remembered.", registry=REGISTRY)

log = logging.getLogger("mtn.serve")


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        facts = {"time": round(record.created, 3), "level": record.levelname.lower(), "event": record.getMessage()}
        facts |= getattr(record, "facts", {})
        if record.exc_info:
            facts["trace"] = self.formatException(record.exc_info)
        return json.dumps(facts, ensure_ascii=False, default=str)


def set_up() -> None:
    """All loggers, uvicorn's too, write lines to standard error; an answer is logged by the guard alone."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    logging.getLogger("uvicorn.access").disabled = True
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def log_event(event: str, **facts: Any) -> None:
    """One line about something other than a request."""
    log.info(event, extra={"facts": facts})


def log_request(facts: dict[str, Any], start: float, error: BaseException | None) -> None:
    """One line and one count for each answer; `error` is an exception that nothing handles."""
    seconds = time.perf_counter() - start
    SECONDS.labels(facts["method"], facts["route"], facts["status"]).observe(seconds)
    level = logging.ERROR if error else logging.INFO
    log.log(level, "request", extra={"facts": facts | {"ms": round(1000 * seconds, 1)}}, exc_info=error)
