"""The mediator as long as it runs, at a steady rate of rows: its lag, and whether rows are lost or doubled by kills."""
