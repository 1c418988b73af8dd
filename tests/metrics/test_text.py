"""What is written by hand is read by Prometheus' own parser as what it was."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from headway.metrics.histogram import Histogram
from headway.metrics.names import Metric
from headway.metrics.text import histograms, samples, series

COUNTER = Metric("a_total", "counter", 'Back\\slash, "quote"\nand line.', ("tenant", "code"))
SPREAD = Metric("b_seconds", "histogram", "Of b.", ("tenant",), (0.1, 1.0, 10.0))
# Names that a client or an operator made up.
words = st.text(st.characters(exclude_categories=("Cs", "Cc"), include_characters='"\\\n'), max_size=12)


@settings(deadline=None)
@given(st.dictionaries(st.tuples(words, words), st.floats(0, 1e15), max_size=8))
def test_a_counter_is_read_back(values: dict[tuple[str, ...], float]):
    text = series(COUNTER, values)
    (family,) = text_string_to_metric_families(text)
    assert family.type == "counter"
    read = {(sample.labels["tenant"], sample.labels["code"]): sample.value for sample in family.samples}
    assert read == values
    assert {(labels["tenant"], labels["code"]): value for _, labels, value in samples(text, ("a_total",))} == values


@settings(deadline=None)
@given(st.dictionaries(st.tuples(words), st.lists(st.floats(0, 20), max_size=8), max_size=5))
def test_a_histogram_is_read_back(observed: dict[tuple[str, ...], list[float]]):
    made = {}
    for labels, values in observed.items():
        made[labels] = Histogram((0.1, 0.5, 1.0, 10.0))
        for value in values:
            made[labels].observe(value)
    (family,) = text_string_to_metric_families(histograms(SPREAD, made))
    assert family.type == "histogram"
    for (tenant,), histogram in made.items():
        told = [sample for sample in family.samples if sample.labels["tenant"] == tenant]
        upto = {sample.labels["le"]: sample.value for sample in told if sample.name == "b_seconds_bucket"}
        assert list(upto.values()) == histogram.upto(SPREAD.buckets)
        assert list(upto) == ["0.1", "1.0", "10.0", "+Inf"]
        assert [sample.value for sample in told if sample.name == "b_seconds_sum"] == [histogram.sum]
        assert [sample.value for sample in told if sample.name == "b_seconds_count"] == [histogram.count]


def test_what_has_no_labels_has_no_braces():
    text = series(Metric("c", "gauge", "Of c."), {(): float("inf")})
    assert text.endswith("\nc +Inf\n")
