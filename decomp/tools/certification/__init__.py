"""Certification of rules. A rule and its op run on points that cover the rule's domain, in all the ways that users run
it (as written, lowered to a target, differentiated, with symbolic sizes), and the results are compared with exact ones.
Certificates record the errors. The entry point is `certify`; the main class is in `certificate`."""

TARGETS = ("core_aten", "tinygrad", "luminal")
"""The targets that committed certificates measure."""
