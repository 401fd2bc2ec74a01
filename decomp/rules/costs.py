"""What calls cost by the user's own measure, for those who choose between rules."""

from __future__ import annotations

from decomp.costs import model

Cost = model.Cost
price_of_calls, price_of_graph = model.price_of_calls, model.price
is_value, is_additive = model.is_value, model.is_additive
