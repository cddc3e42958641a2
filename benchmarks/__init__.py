"""Measurements that the documentation quotes; they run in a clone."""
