"""A certificate as plain text."""
from decomp.certificate import Certificate
def text(certificate: Certificate) -> str:
    return "\n".join([certificate.rule, *certificate.faults])
