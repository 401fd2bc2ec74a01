"""Rules and targets: how they are declared, and what rules may do."""
