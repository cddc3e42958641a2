"""The Docker tier: connection, image, containers and their removal."""
