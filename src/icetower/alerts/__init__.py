"""When figures are out of bounds: rules, the alerts that stand, and how people hear of them."""
