"""The closed loop: fit a live server, search its settings on virtual time, test the best for real, keep the winner.

    target = find_target(Http(tester.template, tester.tls), None, None, 600.0)
    report = Tuning(target, tester, Wanted(profile=…, options=…), build, audience).run()

It decides nothing about requests: the simulation drives the core that serves, and the load tester measures.
"""

from headway.tune.judge import Gain
from headway.tune.loop import Audience, Tuning, Wanted, silent
from headway.tune.predict import Figures, Prediction, World, other_server
from headway.tune.report import Decision, Report, Trial, Tried, report_bytes
from headway.tune.settings import Settings
from headway.tune.target import Http, NotRestored, Target, find_target

__all__ = [
    "Audience",
    "Decision",
    "Figures",
    "Gain",
    "Http",
    "NotRestored",
    "Prediction",
    "Report",
    "Settings",
    "Target",
    "Trial",
    "Tried",
    "Tuning",
    "Wanted",
    "World",
    "find_target",
    "other_server",
    "report_bytes",
    "silent",
]
