"""Values and gradients, measured against the op itself and float64."""
