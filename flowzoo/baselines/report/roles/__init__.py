"""What a report says of a run's roles: those that judge or choose, dead ones, and whom to blame."""
