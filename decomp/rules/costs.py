"""What calls cost by the user's own measure, for those who choose between rules."""

from __future__ import annotations

from decomp.costs import model

Cost = model.Cost
price, price_of_graph = model.price_of_calls, model.price
