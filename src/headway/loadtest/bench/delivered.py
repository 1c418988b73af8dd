"""Whether requests were as long as asked, by what the server counted. In words, where they were not."""

from __future__ import annotations

from collections.abc import Sequence

from headway.loadtest.record import Record

# A request is off by more than both; a run says so when more than this share of its requests are.
OFF_RATIO, OFF_TOKENS = 0.03, 2
OFF_REQUESTS = 0.01
ADVICE = "; --tokenizer PATH or server makes them exact, where they are estimated"


def length_remarks(
    records: Sequence[Record], could_not: Sequence[int], *, given: bool, choices: int = 1
) -> dict[str, str]:
    """Remarks by name. `could_not`: of prompts of which was known, before they were sent, that they are off: tokens too
    many or too few. `given`: prompts were sent as they are, so that nobody asked for a length.
    `choices`: that each request asked for, all of its length.
    """
    said = {}
    inputs = [(one.asked_input_tokens, one.input_tokens) for one in records if one.ok and one.input_tokens >= 0]
    answered = [one for one in records if one.ok and one.output_tokens >= 0]
    outputs = [(one.asked_output_tokens * choices, one.output_tokens) for one in answered]
    about_inputs = [] if given else [_off(inputs, "prompts", ADVICE)]
    if could_not:
        most = max(map(abs, could_not))
        about_inputs.insert(
            0,
            f"{len(could_not):,} of {len(records):,} prompts could not be made as long as asked: "
            f"off by up to {most} tokens",
        )
    if told := "; ".join(filter(None, about_inputs)):
        said["prompt lengths"] = told
    if told := _off(outputs, "answers", ""):
        said["output lengths"] = told
    return said


def _off(lengths: Sequence[tuple[int, int]], what: str, advice: str) -> str:
    """Of pairs of asked and delivered tokens; empty where they agree."""
    off = [(asked, came) for asked, came in lengths if abs(came - asked) > max(OFF_TOKENS, OFF_RATIO * asked)]
    if len(off) <= OFF_REQUESTS * len(lengths):
        return ""
    asked, came = (sum(pair[place] for pair in lengths) / len(lengths) for place in (0, 1))
    fewest, most = (end(came / max(asked, 1) - 1 for asked, came in off) for end in (min, max))
    between = f"{fewest:+.0%}" if fewest == most else f"{fewest:+.0%} to {most:+.0%}"
    return (
        f"by the server's count {len(off):,} of {len(lengths):,} {what} were not as long as asked ({between} tokens; "
        f"mean {came:.4g} where {asked:.4g} were asked){advice}"
    )
