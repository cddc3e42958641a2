"""The Docker tier: connection, image, containers, their removal."""
