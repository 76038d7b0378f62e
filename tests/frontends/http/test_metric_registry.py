"""The text for Prometheus has the right names, types and units, few series, and no one's words or ids."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st
from prometheus_client import REGISTRY
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from intern.core.decisions import PairParked
from intern.core.flow import DeclineReason
from intern.core.ids import QAId
from intern.core.messages import AnswerResult, SilenceReason
from intern.frontends.http.metrics import GAUGES, Metrics
from intern.service.metrics import CallOutcome, Gauges, RequestOutcome
from tests.worlds.clock import HandClock
from tests.worlds.samples import pair

PROMPTS = ("gate", "answer")
UNITS = ("seconds", "bytes", "tokens", "cost", "pairs", "items", "captures", "sources")
NAMED_BY_THE_SPEC = {"intern_ai_selected_sources_histogram"}


def counters() -> Metrics:
    return Metrics(prompts=PROMPTS, version="1.2.3", currency="EUR")


def families(metrics: Metrics, gauges: Gauges | None = None) -> dict[str, Metric]:
    body, kind = metrics.text(gauges or {})
    assert kind.startswith("text/plain; version=0.0.4")
    return {family.name: family for family in text_string_to_metric_families(body.decode())}


def value(metrics: Metrics, name: str, **labels: str) -> float:
    samples = [each for family in families(metrics).values() for each in family.samples]
    [found] = [each.value for each in samples if each.name == name and each.labels == labels]
    return found


def faults_of(family: Metric) -> list[str]:
    """As `promtool check metrics` looks at them."""
    faults: list[str] = []
    name = family.name
    if not re.fullmatch(r"intern_[a-z][a-z0-9_]*", name):
        faults.append(f"{name}: not under the prefix, or no snake case")
    if not family.documentation:
        faults.append(f"{name}: no help")
    if family.type not in {"counter", "gauge", "histogram"}:
        faults.append(f"{name}: is a {family.type}")
    if re.search(r"_(milli|micro|kilo|mega)|_(ms|minutes|hours|mb|percent)(_|$)", name):
        faults.append(f"{name}: not in a base unit")
    if family.type == "gauge" and name.endswith(("_total", "_count", "_sum", "_bucket")):
        faults.append(f"{name}: its end is that of another type")
    if re.search(r"_(counter|gauge|histogram|summary)(_|$)", name) and name not in NAMED_BY_THE_SPEC:
        faults.append(f"{name}: tells its type")
    if family.type == "counter" and not all(each.name.endswith(("_total", "_created")) for each in family.samples):
        faults.append(f"{name}: a counter ends with _total")
    return faults


def test_each_metric_is_named_typed_and_told_as_prometheus_wants_it() -> None:
    gauges: Gauges = {
        name: {"a to b" if kind.label else "": 3.0} for name, kind in GAUGES.items() if name != "build_info"
    }
    found = families(counters(), gauges)
    assert {f"intern_{name}" for name in GAUGES} <= found.keys()
    assert [fault for family in found.values() for fault in faults_of(family)] == []
    assert found["intern_stream_items"].samples[0].labels == {"stream": "a to b"}
    assert found["intern_build_info"].samples[0].labels == {"version": "1.2.3"}


def test_the_check_knows_faults_when_it_sees_them() -> None:
    wrong = (("waiting_ms", "What waits"), ("waits_total", "What waits"), ("wait_gauge", "What waits"), ("wait", ""))
    assert all(faults_of(GaugeMetricFamily(f"intern_{name}", told, value=1)) for name, told in wrong)


def test_every_series_is_there_from_the_start_and_there_are_few() -> None:
    samples = [each for family in families(counters()).values() for each in family.samples]
    silences = {each.labels["reason"] for each in samples if each.name == "intern_silences_total"}
    assert silences == {reason for reason in get_args(SilenceReason) if reason}
    assert len([each for each in samples if not each.name.startswith("intern_process")]) < 300


def test_two_bots_in_one_process_count_apart_and_nothing_is_counted_globally() -> None:
    one, other = counters(), counters()
    one.count_request("ok")
    assert value(one, "intern_discord_requests_total", outcome="ok") == 1
    assert value(other, "intern_discord_requests_total", outcome="ok") == 0
    assert not [name for name in dir(REGISTRY) if name.startswith("intern")]
    assert not any(family.name.startswith("intern") for family in REGISTRY.collect())


def test_what_became_of_questions_is_counted_by_result_and_reason() -> None:
    metrics = counters()
    steps: dict[str, Any] = {
        "gate": {"kind": "question"},
        "selection": {"selected_sources_count": 2},
        "verification": {"is_good_enough": True},
        "seconds": 1.5,
    }
    metrics.count_answer(AnswerResult(should_reply=True, reply_text="7480", debug=steps))
    metrics.count_answer(AnswerResult(should_reply=False, reason="not_answerable", debug={"gate": {"kind": "unclear"}}))
    metrics.count_answer(AnswerResult(should_reply=False, reason="over_budget"))
    assert [value(metrics, "intern_ai_requests_total", result=each) for each in ("answered", "skipped", "error")] == [
        1
    ] * 3
    assert value(metrics, "intern_silences_total", reason="over_budget") == 1
    assert value(metrics, "intern_ai_gate_total", answerable="true") == 1
    assert value(metrics, "intern_ai_gate_total", answerable="false") == 1
    assert value(metrics, "intern_ai_verification_total", good_enough="true") == 1
    assert value(metrics, "intern_ai_selected_sources_histogram_sum") == 2
    assert value(metrics, "intern_ai_request_duration_seconds_sum") == 1.5


def test_what_is_learned_is_counted_with_how_long_it_took_to_the_archive() -> None:
    metrics, taught = counters(), pair()
    metrics.count_capture(taught)
    metrics.count_decision(PairParked(qa_id=QAId("qa_1"), at=HandClock().now(), reason="broken"))
    assert value(metrics, "intern_captures_total") == 1
    lag = max(0.0, (taught.timestamp - taught.answered_at).total_seconds())
    assert value(metrics, "intern_capture_lag_seconds_sum") == lag
    assert value(metrics, "intern_decisions_total", decision="parked") == 1


def test_calls_are_counted_by_prompt_with_time_tokens_and_money() -> None:
    metrics = counters()
    metrics.count_call("gate", "ok", 0.5)
    metrics.count_call("gate", "over_budget", 0.0)
    metrics.count_usage("gate", 100, 10, 0.25, 64)
    assert value(metrics, "intern_model_calls_total", prompt="gate", outcome="ok") == 1
    assert value(metrics, "intern_model_calls_total", prompt="gate", outcome="over_budget") == 1
    assert value(metrics, "intern_model_call_duration_seconds_sum", prompt="gate") == 0.5
    assert value(metrics, "intern_model_tokens_total", prompt="gate", kind="prompt") == 100
    assert value(metrics, "intern_model_tokens_total", prompt="gate", kind="completion") == 10
    assert value(metrics, "intern_model_cached_tokens_total", prompt="gate") == 64
    assert value(metrics, "intern_model_cost_total", prompt="gate", currency="EUR") == 0.25


@pytest.mark.parametrize("reason", get_args(DeclineReason))
def test_a_question_that_nobody_works_on_is_counted_by_reason(reason: DeclineReason) -> None:
    metrics = counters()
    metrics.count_decline(reason)
    counted = {each.labels["reason"]: each.value for each in families(metrics)["intern_questions_declined"].samples}
    assert (
        sum(
            number
            for name, number in counted.items()
            if name in {"shed", "over_limit", "over_day_limit", "too_old", "voice"}
        )
        == 1
    )


def test_this_process_s_own_figures_stand_under_the_same_prefix() -> None:
    found = families(counters())
    assert "intern_process_resident_memory_bytes" in found
    assert not [name for name in found if not name.startswith("intern_")]


@given(st.text(min_size=1), st.sampled_from(get_args(CallOutcome)), st.sampled_from(get_args(RequestOutcome)))
def test_nobody_s_words_ever_become_a_label(text: str, called: CallOutcome, requested: RequestOutcome) -> None:
    metrics = counters()
    before = _labels(metrics)
    metrics.count_post(text)
    metrics.count_call(text, called, 0.0)
    metrics.count_usage(text, 1, 1, 0.0)
    metrics.count_request(requested)
    metrics.count_answer(
        AnswerResult(should_reply=False, reason="rejected", debug={"gate": {"reason": text}, "error": text})
    )
    assert {label for _, label in _labels(metrics) - before} <= {"other", *PROMPTS}


def _labels(metrics: Metrics) -> set[tuple[str, str]]:
    samples = [each for family in families(metrics).values() for each in family.samples]
    return {label for each in samples for label in each.labels.items() if label[0] != "le"}
