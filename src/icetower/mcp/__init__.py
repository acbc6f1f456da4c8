"""MCP: the tower as tools for agents that speak the Model Context Protocol, over stdio and over HTTP in the tower.

Every tool is a client of the tower's own routes, with the caller's credential: it meets the same gate as any other
client, over any number of towers. Nothing is kept between two calls.
"""
