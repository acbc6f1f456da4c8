"""What a request costs the agent that sends it: httpx2 beside the SDK's own channel."""
