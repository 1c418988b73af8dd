"""Why a server is slow: `Facts` from whatever it tells, rules over them, and the first cause rather than its symptoms.

`facts.py` says what may be known; `scrape.py`, `prometheus.py`, `step_log.py` and `bench.py` read it from where it is;
`rules/` are pure functions of facts; `diagnose.py` puts what they found in order; `effect.py` simulates the change.
"""
