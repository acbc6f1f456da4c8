"""Operations on intents a second, and what a commit's gate costs with them."""
