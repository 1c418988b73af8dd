"""The closed loop on virtual truths: it never makes a server worse, and never leaves one as it was not found."""

from __future__ import annotations

import msgspec
import pytest

from headway.loadtest.errors import InvalidPlan
from headway.loadtest.result import Slo
from headway.tune import Report, Settings, report_bytes
from headway.tune.tables import headline, sentences, tables
from tests.tune.truths import VirtualTarget, VirtualTester, options, predicted, tuning, workload, world

BAD = [Settings(1, 32), Settings(256, 4096)]


def tuned(start: Settings, rate: float = 8.0, **changes: object) -> tuple[Report, VirtualTarget]:
    of_tester = {name: changes.pop(name) for name in ("noise", "seed", "interrupts", "truth") if name in changes}
    dies_after = changes.pop("dies_after", None)
    target = VirtualTarget(start, dies_after=dies_after)  # type: ignore[arg-type]
    asked = changes.pop("asked", None) or options()
    tester = VirtualTester(target, asked, of_tester.pop("truth", None) or world(), **of_tester)  # type: ignore[arg-type]
    return tuning(target, tester, rate, **changes).run(), target


def share(settings: Settings, rate: float = 8.0) -> float:
    return predicted(world(), settings, workload(rate, asked=options())).good_ratio


@pytest.mark.parametrize("start", BAD, ids=lambda settings: settings.label)
def test_the_winner_is_at_least_as_good_as_the_start(start: Settings) -> None:
    report, target = tuned(start, noise=0.02)
    assert report.decision.winner is not None
    assert target.has == report.decision.kept == report.decision.winner
    assert share(report.decision.winner) >= share(start)
    assert len(report.trials) <= 5


@pytest.mark.slow
def test_from_two_bad_starts_it_ends_near_the_best_of_a_grid() -> None:
    grid = [Settings(seqs, tokens) for seqs in (2, 8, 32, 128) for tokens in (32, 64, 256, 1024) if seqs <= tokens]
    best = max(map(share, grid))
    for start in (Settings(1, 32), Settings(2, 64)):
        report, target = tuned(start)
        assert report.decision.winner != start
        assert target.has is not None
        assert share(target.has) >= 0.9 * best


@pytest.mark.parametrize("most", [2, 4])
def test_there_are_never_more_live_tests_than_allowed(most: int) -> None:
    report, target = tuned(Settings(1, 32), live_tests=most)
    assert target.tests == len(report.trials) <= most
    assert report.trials[0].current


@pytest.mark.slow
def test_what_is_only_better_by_noise_is_not_kept() -> None:
    """The fit is wrong: it makes everybody believe that the start is bad. In truth it is as good as any."""
    for seed in range(2):
        target = VirtualTarget(Settings(16, 256))
        tester = VirtualTester(target, options(), world(0.25), noise=0.1, seed=seed)
        wrong = world(1.9).fit
        report = tuning(target, tester, 6.0, fit=wrong).run()
        assert target.has == Settings(16, 256)
        assert report.decision.kept == Settings(16, 256)
        assert report.restored
        assert not report.failed


def test_it_puts_back_what_won_when_asked_to() -> None:
    report, target = tuned(Settings(1, 32), keep=False)
    assert report.decision.winner != Settings(1, 32)
    assert target.has == Settings(1, 32)
    assert "--max-num-seqs" in report.flags


@pytest.mark.parametrize("when", [1, 2])
def test_ctrl_c_restores_and_tells_what_was_measured(when: int) -> None:
    report, target = tuned(Settings(1, 32), interrupts=when)
    assert report.interrupted
    assert len(report.trials) == when - 1
    assert target.has == Settings(1, 32)
    assert headline(report)[1] == "INTERRUPTED"


def test_a_server_that_dies_is_reported_loudly_with_what_was_measured() -> None:
    report, _ = tuned(Settings(1, 32), dies_after=2)
    assert len(report.trials) == 2
    assert "does not answer any more" in report.failed
    assert report.restored is False
    tone, word, sentence, _ = headline(report)
    assert (tone, word) == ("bad", "NOT RESTORED")
    assert "could not be put back" in sentence


@pytest.mark.parametrize("told", [Settings(2, 64), None])
def test_a_server_that_cannot_be_changed_is_measured_once_and_advised(told: Settings | None) -> None:
    target = VirtualTarget(told, kind="vllm", changes=False)
    tester = VirtualTester(target, options(), world())
    report = tuning(target, tester, 8.0).run()
    assert len(report.trials) == 1
    assert told is None or report.decision.winner != told
    assert report.current == (told or Settings(64, 512))
    assert report.flags.startswith("--max-num-seqs ")
    assert report.restored is None


@pytest.mark.slow
def test_the_highest_load_is_found_and_all_are_tested_at_it() -> None:
    report, target = tuned(Settings(1, 32), fixed_rate=False, asked=options(duration_s=4.0), live_tests=2)
    assert report.rate is not None
    assert report.rate > 3.0
    assert report.trials[1].measured.good_ratio > 0.9
    assert target.has == report.decision.winner


@pytest.mark.parametrize(
    ("slo", "words"),
    [(Slo(ttft_s=0.01, itl_s=1.0), "--slo-ttft"), (Slo(ttft_s=9.0, itl_s=0.001), "--slo-itl"), (Slo(), "Nothing")],
)
def test_what_cannot_be_kept_is_said_before_any_test_and_the_server_is_as_it_was(slo: Slo, words: str) -> None:
    target = VirtualTarget(Settings(4, 64))
    with pytest.raises(InvalidPlan, match=words):
        tuning(target, VirtualTester(target, options(slo), world()), 2.0).run()
    assert target.has == Settings(4, 64)
    assert target.tests == 0


def test_a_server_that_is_gone_before_the_first_test_is_reported_as_not_restored() -> None:
    report, target = tuned(Settings(4, 64), 2.0, dies_after=0)
    assert target.tests == 0
    assert "gone" in report.failed
    assert "gone" in report.not_restored


def test_a_report_is_read_again_as_it_was_written() -> None:
    report, _ = tuned(Settings(1, 32), live_tests=2)
    content = report_bytes(report)
    assert content.startswith(b'{\n  "schema_version": 1')
    assert report_bytes(msgspec.json.decode(content, type=Report)) == content
    shown = [cell.text for table in tables(report) for row in table.rows for cell in row]
    assert "1 × 32 (had)" in shown
    assert any(line.startswith("For its next start: --max-num-seqs") for line in sentences(report))


def test_a_server_of_which_nobody_gets_an_answer_can_be_told_in_a_file() -> None:
    """What is infinite in a search has no place in JSON."""
    report, _ = tuned(Settings(1, 32), 30.0, live_tests=2)
    assert any(one.predicted.strain is None for one in report.searched)
    assert msgspec.json.decode(report_bytes(report), type=Report).searched == report.searched
