"""The page of a tower: what a person sees of it. Pure but for the files that it is made of; `gateway` serves it."""
