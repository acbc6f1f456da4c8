"""The main job: real retail data, written by agents that misbehave, reconciled to the cent."""
