"""Days of a warehouse, scaled down."""
