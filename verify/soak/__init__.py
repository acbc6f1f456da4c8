"""Many agents over many tables for minutes: is the tower's memory flat, and is everybody served alike?"""
