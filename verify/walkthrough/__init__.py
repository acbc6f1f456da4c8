"""The page that walks through the figures: run on Iceberg itself, drawn, and written into docs/. Not shipped."""
