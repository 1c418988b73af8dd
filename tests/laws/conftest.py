"""A profile for `mutations.py`: it wants to know that a law fails, not the smallest reason."""

from hypothesis import Phase, settings

settings.register_profile("unshrunk", phases=[Phase.explicit, Phase.generate], database=None, deadline=None)
