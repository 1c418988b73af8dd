"""A batch's report: one HTML file that needs no network."""
